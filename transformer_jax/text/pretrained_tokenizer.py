"""Texts to the ids that a pretrained model was trained on, and back.

    tokenizer = load_pretrained_tokenizer("path/of/a/model")
    tokens, is_token, segment_ids = tokenizer(["A question?"], ["Its answer."], max_length=512)

The ids are those of Hugging Face Transformers, to the last one: a special token that is spelled out
in a text is read as that token (in `transformer_jax.text.tokenizer` it is text), what is too long
is cut from the right, of a pair the longer text first.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import tokenizers
from jaxtyping import Bool, Int, Int32
from tokenizers import models

from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.runtime.files import write_text
from transformer_jax.text.encoding import (
    Located,
    Truncation,
    framed_with_cuts,
    located,
    token_ids,
    tokens_by_word,
    told,
)
from transformer_jax.text.tokenizer import Tokenizer
from transformer_jax.text.tokenizer_files import (
    ROLES,
    TokenizerFiles,
    read_tokenizer_files,
    written_files,
)

Side = Literal["right", "left"]
FIRST, SECOND = -1, -2  # in a frame: where the texts stand; every other number there is an id
KINDS = {
    models.WordPiece: "wordpiece",
    models.BPE: "bpe",
    models.Unigram: "unigram",
    models.WordLevel: "word",
}


class Encoded(NamedTuple):
    """What a model takes: ids, which of them are not padding, and which text each belongs to (0 in
    padding).
    """

    tokens: Int32[np.ndarray, "B T"]
    is_token: Bool[np.ndarray, "B T"]
    segment_ids: Int32[np.ndarray, "B T"]


class PretrainedTokenizer:
    """A published vocabulary with its rules, its special tokens and its frame.

    An id is None where the model has no such token. `pad_id` is never None where there is an
    `eos_id`: GPT-2 and LLaMA have no token for padding, and what stands there is hidden anyway.
    """

    vocab_size: int
    pad_id: int | None
    cls_id: int | None
    sep_id: int | None
    unk_id: int | None
    mask_id: int | None
    bos_id: int | None
    eos_id: int | None

    def __init__(self, files: TokenizerFiles):
        """Raises TokenizerError where the vocabulary cannot be used."""
        core = files.core
        core.no_truncation()
        core.no_padding()
        self._files, self._core = files, core
        ids = core.get_vocab().values()
        self.vocab_size = max(ids, default=-1) + 1
        # A few places are empty in published vocabularies; an id far beyond is damage.
        if not ids or self.vocab_size > 2 * len(ids):
            raise TokenizerError(
                f"{files.source} is damaged: {len(ids)} tokens with ids up to {self.vocab_size - 1}"
            )
        for role in ROLES:
            name = files.special.get(role)
            setattr(self, f"{role}_id", None if name is None else core.token_to_id(name))
        if self.pad_id is None:
            self.pad_id = self.eos_id
        self._single, self._pair = (self._frame(pair) for pair in (False, True))

    @property
    def spec(self) -> str:
        """Its kind and size, as "wordpiece:30522"."""
        return f"{KINDS[type(self._core.model)]}:{self.vocab_size}"

    def __call__(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        side: Side = "right",
    ) -> Encoded:
        """Each text in the model's frame, or each with its pair, padded on `side` to the longest.

        At most `max_length` ids, the frame's included. Of a pair the longer text is cut until both
        are as long, then both; the odd token goes to the longer one, of equally long ones to the
        second.
        """
        if side not in get_args(Side):
            raise ValueError(f"side must be 'right' or 'left', got {side!r}")
        _must_be_texts("texts", texts)
        frame = self._single
        if pairs is not None:
            _must_be_texts("pairs", pairs)
            if len(pairs) != len(texts):
                raise ValueError(f"every text needs a pair, got {len(texts)} and {len(pairs)}")
            frame = self._pair
        room = None if max_length is None else self._room(frame, max_length)

        rows, kinds = [], []
        firsts = token_ids(self._core, texts)
        seconds = token_ids(self._core, [] if pairs is None else pairs)
        for first in firsts:
            second = next(seconds, [])
            first, second = _longest_first(first, second, room)
            row, kind = _framed(frame, first, second)
            rows.append(row)
            kinds.append(kind)
        return self._padded(rows, kinds, side)

    def encode(
        self, texts: Sequence[str], max_length: int, truncate: Truncation = "head"
    ) -> list[Int32[np.ndarray, " _"]]:
        """Each text in the model's frame, at most `max_length` ids in all and never padded.

        "head" keeps the start of a text; "head-tail" the first half of what fits, rounded up, and
        the last half, rounded down, as in `transformer_jax.text.tokenizer.Tokenizer.encode`.
        """
        return self.encode_with_cuts(texts, max_length, truncate)[0]

    def encode_with_cuts(
        self, texts: Sequence[str], max_length: int, truncate: Truncation = "head"
    ) -> tuple[list[Int32[np.ndarray, " _"]], Int32[np.ndarray, " B"]]:
        """What `encode` gives, and how many tokens each text lost to `max_length` (0 where it
        fits).
        """
        _must_be_texts("texts", texts)
        room = self._room(self._single, max_length)
        return framed_with_cuts(self._core, texts, room, truncate, self._framed)

    def locate(self, text: str, max_length: int, truncate: Truncation = "head") -> Located:
        """What `encode` gives for one text, and where in the text each token stands."""
        room = self._room(self._single, max_length)
        return located(self._core, text, room, truncate, self._framed)

    def _framed(self, ids: list[int]) -> list[int]:
        return _framed(self._single, ids, [])[0]

    def pieces(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " _"]]:
        """The ids of each text alone: no frame, and nothing cut."""
        _must_be_texts("texts", texts)
        return [np.array(ids, np.int32) for ids in token_ids(self._core, texts)]

    def by_word(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[int | None]]]:
        """The `pieces` of each text, and of each the number of the word that it is a piece of."""
        _must_be_texts("texts", texts)
        return tokens_by_word(self._core, texts)

    def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """The text of the ids, without padding and the tokens of frames; what was unknown or masked
        says so.
        """
        frame = {self.pad_id, self.cls_id, self.sep_id, self.bos_id, self.eos_id}
        kept = [self._valid_id(i) for i in ids if int(i) not in frame]
        with told(f"{self._files.source} does not say how tokens are joined"):
            return self._core.decode(kept, skip_special_tokens=False)

    def token(self, token_id: int | np.integer) -> str:
        """As the vocabulary spells it: "##ing", "Ġthe", "▁the"."""
        token = self._core.id_to_token(self._valid_id(token_id))
        if token is None:
            raise TokenizerError(f"{self._files.source} has no token of id {token_id}")
        return token

    def id_of(self, token: str) -> int | None:
        """Of a token as the vocabulary spells it; None where it has none."""
        return self._core.token_to_id(token)

    @property
    def end_id(self) -> int | None:
        """The token that ends a generated text."""
        return self.eos_id

    def prompt(self, text: str, *, framed: bool = False) -> Int32[np.ndarray, " T"]:
        """Return the ids of a text that a language model continues.

        The vocabulary's own frame begins a text (<s> in Llama, nothing in GPT-2), whatever `framed`
        says.
        """
        return self([text]).tokens[0]

    def continuation(self, prompt: Int[np.ndarray, " T"], ids: Sequence[int]) -> str:
        """Return the text of the ids generated after a prompt."""
        # A model's table may have spare rows, which are no tokens.
        known = [token_id for token_id in ids if token_id < self.vocab_size]
        # Decoded alone, the first word would lose the space before it in Llama's vocabulary.
        return self.decode([*prompt.tolist(), *known])[len(self.decode(prompt)) :]

    def spell(self, token_id: int) -> str:
        """Return a token as it stands in a text; a spare row of a model's table as its number."""
        return self.decode([token_id]) if token_id < self.vocab_size else f"<{token_id}>"

    def save(self, folder: str | Path) -> None:
        """Write files from which Transformers, beside the model's config.json, reads the same
        tokenizer.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.to_files().items():
            write_text(folder / name, content)

    def to_files(self) -> dict[str, str]:
        """Return the content of each file of the tokenizer by its name."""
        return written_files(self._files)

    def _valid_id(self, token_id: int | np.integer) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(
                f"id {token_id} is beyond the {self.vocab_size} of {self._files.source}"
            )
        return int(token_id)

    def _room(self, frame: list[tuple[int, int]], max_length: int) -> int:
        special = sum(part >= 0 for part, _ in frame)
        if max_length <= special:
            raise ValueError(
                f"max_length must be at least {special + 1} "
                f"({special} special tokens and one of the text), got {max_length}"
            )
        return max_length - special

    def _frame(self, pair: bool) -> list[tuple[int, int]]:
        """What stands around a text or a pair, in order: an id, or FIRST or SECOND, each with its
        segment.
        """
        with told(f"{self._files.source} cannot cut or frame a text"):
            text = self._some_text()
            framed = self._core.encode(text, text if pair else None)
        frame: list[tuple[int, int]] = []
        for token_id, segment, which in zip(
            framed.ids, framed.type_ids, framed.sequence_ids, strict=True
        ):
            part = (token_id if which is None else (FIRST, SECOND)[which], segment)
            if which is None or part not in frame:  # a text of several tokens is one part
                frame.append(part)
        return frame

    def _some_text(self) -> str:
        """One that is not empty to this vocabulary."""
        for text in ("a", *self._files.special.values(), *self._core.get_vocab()):
            if self._core.encode(text, add_special_tokens=False).ids:
                return text
        raise ValueError("no text has a token")

    def _padded(self, rows: list[list[int]], kinds: list[list[int]], side: Side) -> Encoded:
        lengths = np.array([len(row) for row in rows], np.int64)
        longest = int(lengths.max(initial=0))
        if self.pad_id is None and (lengths < longest).any():
            raise TokenizerError(f"{self._files.source} has no token for padding, nor for an end")
        places, own = np.arange(longest), lengths[:, None]
        is_token = places < own if side == "right" else places >= longest - own
        tokens = np.full(is_token.shape, self.pad_id or 0, np.int32)
        segment_ids = np.zeros(is_token.shape, np.int32)
        tokens[is_token] = [token_id for row in rows for token_id in row]
        segment_ids[is_token] = [segment for kind in kinds for segment in kind]
        return Encoded(tokens, is_token, segment_ids)


def load_pretrained_tokenizer(
    folder: str | Path, model_type: str | None = None
) -> PretrainedTokenizer:
    """The tokenizer in a folder of a published model: from tokenizer.json, else vocab.txt, else
    vocab.json and merges.txt.

    The last two say neither their rules nor their frame; those of `model_type` are taken (without
    one, that of the folder's config.json). Raises TokenizerError, in one line, where there is none
    that can be read.
    """
    return PretrainedTokenizer(read_tokenizer_files(Path(folder), model_type))


def as_published(tokenizer: Tokenizer) -> PretrainedTokenizer:
    """One that was learned here, in the form in which encoders have theirs: [MASK] in a text is
    then the mask.

    As in RoBERTa the mask takes the space before it along, which byte-level pieces have at their
    front.
    """
    content = json.loads(tokenizer.to_json())
    for token in content["added_tokens"]:
        token["lstrip"] = token["content"] == "[MASK]"
    core = tokenizers.Tokenizer.from_str(json.dumps(content))
    special = {
        role: f"[{role.upper()}]"
        for role in ROLES
        if core.token_to_id(f"[{role.upper()}]") is not None
    }
    return PretrainedTokenizer(TokenizerFiles(core, special, {}, Path("tokenizer.json")))


def _longest_first(
    first: list[int], second: list[int], room: int | None
) -> tuple[list[int], list[int]]:
    """Both texts, cut from the right to `room` tokens in all."""
    if room is None or len(first) + len(second) <= room:
        return first, second
    short = min(len(first), len(second), room // 2)
    if len(first) > len(second):
        return first[: room - short], second[:short]
    return first[:short], second[: room - short]


def _framed(
    frame: list[tuple[int, int]], first: list[int], second: list[int]
) -> tuple[list[int], list[int]]:
    """The ids in their frame, and the segment of each."""
    ids: list[int] = []
    segments: list[int] = []
    for part, segment in frame:
        piece = first if part == FIRST else second if part == SECOND else [part]
        ids += piece
        segments += [segment] * len(piece)
    return ids, segments


def _must_be_texts(name: str, texts: Any) -> None:
    if isinstance(texts, str):
        raise ValueError(f"{name} must be a sequence of strings, got one string; pass [text]")
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name} must hold strings, got {type(text).__name__}: {text!r:.60}")
