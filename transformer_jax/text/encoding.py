"""Many texts through a tokenizer of the `tokenizers` library: ids, a progress bar, cuts, and
mistakes as one line.

What `tokenizers.Tokenizer` and `pretrained_tokenizer.PretrainedTokenizer` have in common.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import tokenizers
from jaxtyping import Int32
from tqdm import tqdm

from transformer_jax.runtime.errors import TokenizerError, one_line

Truncation = Literal["head", "head-tail"]
CHUNK = 1000  # texts between two movements of the progress bar


def framed_with_cuts(
    core: tokenizers.Tokenizer,
    texts: Sequence[str],
    room: int,
    truncate: Truncation,
    frame: Callable[[list[int]], list[int]],
) -> tuple[list[Int32[np.ndarray, " _"]], Int32[np.ndarray, " B"]]:
    """`frame` of at most `room` ids of each text, and how many it lost: what `encode_with_cuts`
    gives.
    """
    head, tail = _ends(room, truncate)
    encoded = []
    cuts = np.zeros(len(texts), np.int32)
    for ids in token_ids(core, texts):
        if len(ids) > room:
            cuts[len(encoded)] = len(ids) - room
            ids = ids[:head] + ids[len(ids) - tail :]
        encoded.append(np.array(frame(ids), np.int32))
    return encoded, cuts


@dataclass(frozen=True)
class Located:
    """A text as a model reads it, with the place of every token in it."""

    text: str  # as `valid` has it
    ids: Int32[np.ndarray, " T"]  # what `encode_with_cuts` gives
    spans: tuple[tuple[int, int] | None, ...]  # the characters of each; None for the frame
    head: range  # where the tokens before a gap stand
    gap: tuple[int, int] | None  # the characters that were not read
    cut: int  # how many tokens that were


def located(
    core: tokenizers.Tokenizer,
    text: str,
    room: int,
    truncate: Truncation,
    frame: Callable[[list[int]], list[int]],
) -> Located:
    """Return what `framed_with_cuts` gives for one text, with the places.

    It is slower, since it asks for them.
    """
    head, tail = _ends(room, truncate)
    text = valid(text)
    with told("the tokenizer cannot cut a text; its file is damaged or of another kind"):
        encoding = core.encode(text, add_special_tokens=False)
    ids, offsets = encoding.ids, encoding.offsets
    kept, cut, gap = list(range(len(ids))), max(len(ids) - room, 0), None
    if cut:
        start = offsets[head - 1][1]
        gap = start, max(start, offsets[len(ids) - tail][0]) if tail else len(text)
        kept = kept[:head] + kept[len(ids) - tail :]
    # Framed are the places, below zero so that no id of the frame is taken for one.
    framed = frame([-1 - place for place in kept])
    first = next((t for t, place in enumerate(framed) if place < 0), 0)
    return Located(
        text,
        np.array([ids[-1 - x] if x < 0 else x for x in framed], np.int32),
        tuple(offsets[-1 - x] if x < 0 else None for x in framed),
        range(first, first + min(head, len(kept))),
        gap,
        cut,
    )


def _ends(room: int, truncate: Truncation) -> tuple[int, int]:
    """How many tokens of the start and of the end are kept of a text that has more than `room`."""
    if truncate not in get_args(Truncation):
        raise ValueError(f"truncate must be 'head' or 'head-tail', got {truncate!r}")
    head = room if truncate == "head" else (room + 1) // 2
    return head, room - head


def token_ids(core: tokenizers.Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """The ids of each text without a frame, under a progress bar where the texts are many."""
    # The fast one leaves out where in the text a token stood, which nobody asks for.
    return (encoding.ids for encoding in _encodings(core.encode_batch_fast, texts))


def tokens_by_word(
    core: tokenizers.Tokenizer, texts: Sequence[str]
) -> Iterator[tuple[list[int], list[int | None]]]:
    """The ids of each text, and of each id the number of the word that it is a piece of."""
    return ((encoding.ids, encoding.word_ids) for encoding in _encodings(core.encode_batch, texts))


def _encodings(
    encode: Callable[..., list[tokenizers.Encoding]], texts: Sequence[str]
) -> Iterator[tokenizers.Encoding]:
    quiet = True if len(texts) <= CHUNK else None  # None: shown on a terminal only
    with tqdm(total=len(texts), desc="tokenizing", unit="text", leave=False, disable=quiet) as bar:
        for start in range(0, len(texts), CHUNK):
            chunk = [valid(text) for text in texts[start : start + CHUNK]]
            with told("the tokenizer cannot cut a text; its file is damaged or of another kind"):
                encodings = encode(chunk, add_special_tokens=False)
            yield from encodings
            bar.update(len(chunk))


def valid(text: str) -> str:
    """The text itself, but for half characters (lone surrogates), which become U+FFFD, as in
    tiktoken.
    """
    if not isinstance(text, str):
        raise TypeError(f"a text must be a string, got {type(text).__name__}: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@contextmanager
def told(problem: str) -> Iterator[None]:
    """Makes a TokenizerError of what the library raises: plain Exceptions, and panics, which are
    not even those.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{problem}: {one_line(error)}") from None
