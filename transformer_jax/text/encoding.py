"""Encoding of many texts with a tokenizer of the `tokenizers` library: ids, truncation, a progress
bar, and errors of one line.

`tokenizer.Tokenizer` and `pretrained_tokenizer.PretrainedTokenizer` share these functions. The
frame of a text is the special tokens around it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import tokenizers
from jaxtyping import Int32
from tokenizers import normalizers

from transformer_jax.runtime.errors import TokenizerError, one_line
from transformer_jax.runtime.progress import ProgressBar

Truncation = Literal["head", "tail", "head-tail"]  # the part of a long text that is kept
CHUNK = 1000  # texts between two updates of the progress bar


def framed_with_cuts(
    core: tokenizers.Tokenizer,
    texts: Sequence[str],
    room: int,
    truncate: Truncation,
    frame: Callable[[list[int]], list[int]],
) -> tuple[list[Int32[np.ndarray, " _"]], Int32[np.ndarray, " B"]]:
    """Encode texts, truncate each to `room` ids and add the frame, as `encode_with_cuts` does.

    Returns the ids of each text, and the number of ids that each text lost.
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
    """An encoded text with the position of every token in the text."""

    text: str  # as returned by `valid`
    ids: Int32[np.ndarray, " T"]  # as returned by `encode_with_cuts`
    spans: tuple[tuple[int, int] | None, ...]  # character span of each token; None for the frame
    head: range  # indices of the tokens before the gap
    gap: tuple[int, int] | None  # span of the characters that were cut; None if nothing was
    cut: int  # number of tokens that were cut


def located(
    core: tokenizers.Tokenizer,
    text: str,
    room: int,
    truncate: Truncation,
    frame: Callable[[list[int]], list[int]],
) -> Located:
    """Encode one text as `framed_with_cuts` does, with the character span of each token.

    Computing the spans makes it slower.
    """
    head, tail = _ends(room, truncate)
    text = valid(text)
    with told("the tokenizer cannot encode a text; its file is damaged or of another kind"):
        encoding = core.encode(text, add_special_tokens=False)
    ids, offsets = encoding.ids, encoding.offsets
    kept, cut, gap = list(range(len(ids))), max(len(ids) - room, 0), None
    if cut:
        start = offsets[head - 1][1] if head else 0
        gap = start, max(start, offsets[len(ids) - tail][0]) if tail else len(text)
        kept = kept[:head] + kept[len(ids) - tail :]
    # The frame is put around the negative indices of the tokens instead of their ids, so that the
    # ids of the frame, which are not negative, can be told from them.
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
    """Return how many tokens are kept at the start and at the end of a truncated text."""
    if truncate not in get_args(Truncation):
        raise ValueError(f"truncate must be 'head', 'tail' or 'head-tail', got {truncate!r}")
    head = {"head": room, "tail": 0, "head-tail": (room + 1) // 2}[truncate]
    return head, room - head


def token_ids(core: tokenizers.Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the ids of each text without a frame, with a progress bar if there are many texts."""
    # The fast variant does not compute the positions of the tokens in the text.
    return (encoding.ids for encoding in _encodings(core.encode_batch_fast, texts))


def tokens_by_word(
    core: tokenizers.Tokenizer, texts: Sequence[str]
) -> Iterator[tuple[list[int], list[int | None]]]:
    """Yield the ids of each text, and for each id the index of its word (None if it has none)."""
    return ((encoding.ids, encoding.word_ids) for encoding in _encodings(core.encode_batch, texts))


def _encodings(
    encode: Callable[..., list[tokenizers.Encoding]], texts: Sequence[str]
) -> Iterator[tokenizers.Encoding]:
    few = len(texts) <= CHUNK
    with ProgressBar(
        total=len(texts), desc="tokenizing", unit="text", leave=False, disable=few
    ) as bar:
        for start in range(0, len(texts), CHUNK):
            chunk = [valid(text) for text in texts[start : start + CHUNK]]
            with told("the tokenizer cannot encode a text; its file is damaged or of another kind"):
                encodings = encode(chunk, add_special_tokens=False)
            yield from encodings
            bar.update(len(chunk))


def lowercased(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer that lower-cases texts before its other rules."""
    rules = core.normalizer
    if any(mark in str(rules) for mark in ("Lowercase", "lowercase=True")):
        return core
    found = tokenizers.Tokenizer.from_str(core.to_str())
    found.encode_special_tokens = core.encode_special_tokens
    steps = [] if rules is None else [rules]
    found.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    return found


def valid(text: str) -> str:
    """Replace lone surrogates (halves of a character) in a text by U+FFFD, as tiktoken does.

    Raises TypeError if it is not a string.
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
    """Raise a TokenizerError that begins with `problem` if the `tokenizers` library fails.

    The library raises plain Exceptions, and panics, which derive from BaseException only.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{problem}: {one_line(error)}") from None
