"""The tokenizers of pretrained models: texts to the ids that a model was trained on, and back.

    tokenizer = load_pretrained_tokenizer("path/of/a/model")
    tokens, is_token, segment_ids = tokenizer(["A question?"], ["Its answer."], max_length=512)

The ids are identical to those of Hugging Face Transformers 5. A special token that is spelled out
in a text is read as that token (in `transformer_jax.text.tokenizer` it is plain text), unless the
files set split_special_tokens. A long text is truncated on the right, or on the left if the files
say so; in a pair, the longer text is truncated first. The frame of a text is the special tokens
around it.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Int, Int32
from tokenizers import models

from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.runtime.files import write_text
from transformer_jax.text.encoding import (
    Located,
    Truncation,
    framed_with_cuts,
    located,
    lowercased,
    token_ids,
    tokens_by_word,
    told,
)
from transformer_jax.text.frame import (
    FIRST,
    SECOND,
    Encoded,
    Frame,
    cleaned_up,
    framed,
    longest_first,
    padded,
)
from transformer_jax.text.tokenizer_files import (
    TokenizerFiles,
    read_tokenizer_files,
    written_files,
)
from transformer_jax.text.tokenizer_settings import ROLES, Side

KINDS = {
    models.WordPiece: "wordpiece",
    models.BPE: "bpe",
    models.Unigram: "unigram",
    models.WordLevel: "word",
}


class PretrainedTokenizer:
    """A published vocabulary with its tokenization rules, special tokens and frame.

    An id is None if the model has no such token. A missing `pad_id` is replaced by `eos_id`: GPT-2
    and LLaMA have no padding token, and padding is masked in any case.
    """

    vocab_size: int
    pad_id: int | None
    cls_id: int | None
    sep_id: int | None
    unk_id: int | None
    mask_id: int | None
    bos_id: int | None
    eos_id: int | None
    max_length: int | None  # model_max_length of the files
    truncate: Truncation  # the part of a long text that is kept by default

    def __init__(self, files: TokenizerFiles):
        """Create a tokenizer. Raises TokenizerError if the vocabulary cannot be used."""
        core = files.core
        core.no_truncation()
        core.no_padding()
        self._files, self._core = files, core
        ids = core.get_vocab().values()
        self.vocab_size = max(ids, default=-1) + 1
        # Published vocabularies leave a few ids unused. A much larger id means a damaged file.
        if not ids or self.vocab_size > 2 * len(ids):
            raise TokenizerError(
                f"{files.source} is damaged: {len(ids)} tokens with ids up to {self.vocab_size - 1}"
            )
        for role in ROLES:
            name = files.special.get(role)
            setattr(self, f"{role}_id", None if name is None else core.token_to_id(name))
        if self.pad_id is None:
            self.pad_id = self.eos_id
        self.max_length = files.defaults.max_length
        self.truncate: Truncation = "tail" if files.defaults.truncation_side == "left" else "head"
        self._rows = self.vocab_size
        self._single, self._pair = (self._frame(pair) for pair in (False, True))

    @property
    def spec(self) -> str:
        """The kind and size of the vocabulary, such as "wordpiece:30522"."""
        return f"{KINDS[type(self._core.model)]}:{self.vocab_size}"

    def __call__(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        side: Side | None = None,
    ) -> Encoded:
        """Encode texts, or pairs of texts, with the frame, padded on `side` to the longest one.

        By default `side` is the padding_side of the files, else "right". A row has at most
        `max_length` ids, frame included. In a pair, the longer text is truncated until both have
        the same length, then both are. An odd token goes to the longer text, or to the second one
        if both are equally long. Raises ValueError if an argument is not of the form above or
        `max_length` leaves no room for a token of the text.
        """
        side = self._files.defaults.padding_side if side is None else side
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
            first, second = longest_first(first, second, room, self.truncate)
            row, kind = framed(frame, first, second)
            rows.append(row)
            kinds.append(kind)
        self._check_fits(rows)
        lengths = {len(row) for row in rows}
        if self.pad_id is None and len(lengths) > 1:
            raise TokenizerError(f"{self._files.source} has no token for padding (pad or eos)")
        return padded(rows, kinds, side, self.pad_id or 0)

    def encode(
        self, texts: Sequence[str], max_length: int, truncate: Truncation | None = None
    ) -> list[Int32[np.ndarray, " _"]]:
        """Encode each text with the frame, as at most `max_length` ids and without padding.

        `truncate` is "head", which keeps the start of a long text, "tail", which keeps its end, or
        "head-tail", which fills half of the room (rounded up) with its start and half (rounded
        down) with its end, as in `transformer_jax.text.tokenizer.Tokenizer.encode`. By default it
        is "head", or "tail" if the files say truncation_side=left.
        """
        return self.encode_with_cuts(texts, max_length, truncate)[0]

    def encode_with_cuts(
        self, texts: Sequence[str], max_length: int, truncate: Truncation | None = None
    ) -> tuple[list[Int32[np.ndarray, " _"]], Int32[np.ndarray, " B"]]:
        """Encode as `encode` does, and also return the number of tokens that each text lost."""
        _must_be_texts("texts", texts)
        room = self._room(self._single, max_length)
        part = self.truncate if truncate is None else truncate
        encoded, cuts = framed_with_cuts(self._core, texts, room, part, self._framed)
        self._check_fits(encoded)
        return encoded, cuts

    def locate(self, text: str, max_length: int, truncate: Truncation | None = None) -> Located:
        """Encode one text as `encode` does, with the position of each token in the text."""
        room = self._room(self._single, max_length)
        part = self.truncate if truncate is None else truncate
        found = located(self._core, text, room, part, self._framed)
        self._check_fits([found.ids])
        return found

    def _framed(self, ids: list[int]) -> list[int]:
        return framed(self._single, ids, [])[0]

    def pieces(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " _"]]:
        """Return the ids of each text, without a frame and without truncation."""
        _must_be_texts("texts", texts)
        encoded = [np.array(ids, np.int32) for ids in token_ids(self._core, texts)]
        self._check_fits(encoded)
        return encoded

    def by_word(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[int | None]]]:
        """Yield the `pieces` of each text, and for each of them the index of its word."""
        _must_be_texts("texts", texts)

        def checked() -> Iterator[tuple[list[int], list[int | None]]]:
            for ids, words in tokens_by_word(self._core, texts):
                self._check_fits([ids])
                yield ids, words

        return checked()

    def for_table(self, rows: int) -> "PretrainedTokenizer":
        """Return the tokenizer for a model whose embedding table has `rows` rows.

        A published vocabulary may have tokens beyond the table, which the model cannot read. A text
        with such a token then raises TokenizerError, and special tokens beyond the table count as
        missing.
        """
        found = copy.copy(self)
        found._rows = rows
        for role in ROLES:
            if (getattr(self, f"{role}_id") or 0) >= rows:
                setattr(found, f"{role}_id", None)
        if found.pad_id is None:
            found.pad_id = found.eos_id
        return found

    def lowercased(self) -> "PretrainedTokenizer":
        """Return a tokenizer that lower-cases texts before its other rules."""
        core = lowercased(self._core)
        found = copy.copy(self)
        # The class of the model would build its rules without this one.
        settings = self._files.settings | {"tokenizer_class": "PreTrainedTokenizerFast"}
        found._core, found._files = core, self._files._replace(core=core, settings=settings)
        return found

    def _check_fits(self, encoded: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Raise TokenizerError if an id is beyond the embedding table of the model."""
        if self.vocab_size <= self._rows:
            return
        worst = max((int(np.max(ids)) for ids in encoded if len(ids)), default=0)
        if worst >= self._rows:
            raise TokenizerError(
                f"{self._files.source}: the token {self.token(worst)!r:.60} of a text has the id "
                f"{worst}, but the model embeds {self._rows} of the {self.vocab_size} tokens; "
                "leave the token out, or use the tokenizer that belongs to the model"
            )

    def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Return the text of the ids, without padding and frames.

        Unknown and mask tokens stay in the text. Raises TokenizerError for an id that is not in the
        vocabulary.
        """
        frame = {self.pad_id, self.cls_id, self.sep_id, self.bos_id, self.eos_id}
        kept = [self._valid_id(i) for i in ids if int(i) not in frame]
        with told(f"{self._files.source} does not say how tokens are joined"):
            text = self._core.decode(kept, skip_special_tokens=False)
        return cleaned_up(text) if self._files.defaults.cleans_up else text

    def token(self, token_id: int | np.integer) -> str:
        """Return a token as the vocabulary spells it, such as "##ing", "Ġthe" or "▁the".

        Raises TokenizerError if there is no token with this id.
        """
        token = self._core.id_to_token(self._valid_id(token_id))
        if token is None:
            raise TokenizerError(f"{self._files.source} has no token of id {token_id}")
        return token

    def id_of(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it, or None if there is none."""
        return self._core.token_to_id(token)

    @property
    def end_id(self) -> int | None:
        """The token that ends a generated text."""
        return self.eos_id

    def prompt(self, text: str, *, framed: bool = False) -> Int32[np.ndarray, " T"]:
        """Return the ids of a prompt for a language model.

        The prompt begins with the frame of the vocabulary (<s> in Llama, none in GPT-2). `framed`
        is ignored.
        """
        return self([text]).tokens[0]

    def continuation(self, prompt: Int[np.ndarray, " T"], ids: Sequence[int]) -> str:
        """Return the text of the ids generated after a prompt."""
        # An embedding table may have spare rows, which are no tokens.
        known = [token_id for token_id in ids if token_id < self.vocab_size]
        # Decoded alone, the first word would lose the space before it in Llama's vocabulary.
        return self.decode([*prompt.tolist(), *known])[len(self.decode(prompt)) :]

    def spell(self, token_id: int) -> str:
        """Return the text of a token, or "<id>" for a spare row of the embedding table."""
        return self.decode([token_id]) if token_id < self.vocab_size else f"<{token_id}>"

    def save(self, folder: str | Path) -> None:
        """Write files from which Transformers loads the same tokenizer to a folder.

        Transformers also needs the model's config.json there.
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

    def _room(self, frame: Frame, max_length: int) -> int:
        special = sum(part >= 0 for part, _ in frame)
        if max_length <= special:
            raise ValueError(
                f"max_length must be at least {special + 1} "
                f"({special} special tokens and one of the text), got {max_length}"
            )
        return max_length - special

    def _frame(self, pair: bool) -> Frame:
        """Return the frame of a text or pair as (id, FIRST or SECOND; segment), in order."""
        with told(f"{self._files.source} cannot encode a text with its special tokens"):
            text = self._some_text()
            framed = self._core.encode(text, text if pair else None)
        frame: Frame = []
        for token_id, segment, which in zip(
            framed.ids, framed.type_ids, framed.sequence_ids, strict=True
        ):
            part = (token_id if which is None else (FIRST, SECOND)[which], segment)
            if which is None or part not in frame:  # all tokens of a text are one part
                frame.append(part)
        return frame

    def _some_text(self) -> str:
        """Return a text that has at least one token in this vocabulary."""
        for text in ("a", *self._files.special.values(), *self._core.get_vocab()):
            if self._core.encode(text, add_special_tokens=False).ids:
                return text
        raise ValueError("no text has a token")


def load_pretrained_tokenizer(
    folder: str | Path, model_type: str | None = None
) -> PretrainedTokenizer:
    """Load the tokenizer of a published model from its folder.

    It is read from tokenizer.json, else vocab.txt, else vocab.json and merges.txt. The latter two
    formats do not contain the tokenization rules and the frame, so those of `model_type` are used
    (by default that of the folder's config.json). Raises TokenizerError, with a message of one
    line, if there is no tokenizer that can be read.
    """
    return PretrainedTokenizer(read_tokenizer_files(Path(folder), model_type))


def _must_be_texts(name: str, texts: Any) -> None:
    if isinstance(texts, str):
        raise ValueError(f"{name} must be a sequence of strings, got one string; pass [text]")
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name} must hold strings, got {type(text).__name__}: {text!r:.60}")
