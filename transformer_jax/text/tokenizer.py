"""Texts to token ids and back: one small wrapper around one file format for four kinds of
vocabulary.

    bpe:N    byte-level BPE of N tokens, learned from the training texts (`bpe` alone: 16384)
    word:N   the most frequent words and punctuation marks, N tokens in all (`word` alone: 30000)
    char     every character that the training texts have
    gpt2     the published GPT-2 vocabulary with [PAD], [CLS], [SEP] behind it

All are `tokenizers` JSON, GPT-2 included: tiktoken fetches its files and keeps them, but what is
saved needs neither tiktoken nor a network. The rules that turn a text into words stand in that file
too, so that training and prediction cannot come to differ.

A text is data: "[PAD]" or "<|endoftext|>" in it is spelled out like any other text, and `<br />` is
a space unless the tokenizer is `lossless`, as a text that is to be written again needs.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Int, Int32
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tqdm import tqdm

from transformer_jax.runtime.errors import TokenizerError, one_line
from transformer_jax.runtime.files import write_text
from transformer_jax.text.encoding import (
    Located,
    Truncation,
    framed_with_cuts,
    located,
    token_ids,
    told,
    valid,
)
from transformer_jax.text.gpt2_vocabulary import read_gpt2_files

TOKENIZER_FILE = "tokenizer.json"
# Their places in this list are their ids in `bpe` and `word`.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DEFAULT_SIZES = {"bpe": 16384, "word": 30000}
SMALLEST_SIZES = {"bpe": 256 + len(SPECIAL_TOKENS), "word": 1 + len(SPECIAL_TOKENS)}

# A run of tags with the spaces behind it, so that the usual "<br /><br />" is one space.
LINE_BREAKS = r"(?i)(?:<br\s*/?>\s*)+"
# Letters and digits of any script, with what follows an apostrophe ("don't" is one word: the
# negation stays with its verb); any other visible character is a word of its own.
WORD = r"[\p{L}\p{M}\p{N}]+(?:'[\p{L}\p{M}]+)*|[^\s\p{L}\p{M}\p{N}]"


class Tokenizer:
    """A vocabulary and the rules that cut a text into it.

    `unk_id` and `mask_id` are None for gpt2, whose vocabulary has neither. `bpe` has an unknown
    token for the sake of one layout and never produces it: every byte is a token.
    """

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    unk_id: int | None
    mask_id: int | None

    def __init__(self, core: tokenizers.Tokenizer):
        """Raises TokenizerError where `core` is not one of the kinds."""
        core.encode_special_tokens = True  # "[PAD]" in a text is text; the file does not keep this
        core.no_truncation()
        core.no_padding()
        self._core = core
        self.vocab_size = core.get_vocab_size()
        if not isinstance(core.model, models.BPE | models.WordLevel):
            raise TokenizerError(
                f"expected a BPE or WordLevel model, got {type(core.model).__name__}"
            )
        self.unk_id, self.mask_id = map(core.token_to_id, ("[UNK]", "[MASK]"))
        self.pad_id, self.cls_id, self.sep_id = (
            _required_id(core, token) for token in ("[PAD]", "[CLS]", "[SEP]")
        )
        if set(core.get_vocab().values()) != set(range(self.vocab_size)):
            raise TokenizerError(
                f"the ids of {self.vocab_size} tokens are not 0 to {self.vocab_size - 1}"
            )

    @property
    def spec(self) -> str:
        """What it is, as `train_tokenizer` takes it: "gpt2", "char", or "bpe:N" or "word:N" with
        the N it came to.
        """
        if isinstance(self._core.model, models.WordLevel):
            if isinstance(self._core.decoder, decoders.Fuse):
                return "char"
            return f"word:{self.vocab_size}"
        return "gpt2" if self.mask_id is None else f"bpe:{self.vocab_size}"

    @property
    def lowercase(self) -> bool:
        """Whether case is lost."""
        normalizer = self._core.normalizer
        return normalizer is not None and normalizer.normalize_str("A") == "a"

    def encode(
        self, texts: Sequence[str], max_length: int, truncate: Truncation = "head"
    ) -> list[Int32[np.ndarray, " _"]]:
        """[CLS] tokens [SEP] of each text, at most `max_length` ids in all and never padded.

        "head" keeps the first max_length - 2 tokens of a text; "head-tail" the first half of them,
        rounded up, and the last half, rounded down, since a review often ends with its verdict.
        """
        return self.encode_with_cuts(texts, max_length, truncate)[0]

    def encode_with_cuts(
        self, texts: Sequence[str], max_length: int, truncate: Truncation = "head"
    ) -> tuple[list[Int32[np.ndarray, " _"]], Int32[np.ndarray, " B"]]:
        """What `encode` gives, and how many tokens each text lost to `max_length` (0 where it
        fits).
        """
        room = self._room(max_length)
        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of strings, got one string; pass [text]")
        return framed_with_cuts(self._core, texts, room, truncate, self._frame)

    def locate(self, text: str, max_length: int, truncate: Truncation = "head") -> Located:
        """What `encode` gives for one text, and where in the text each token stands."""
        return located(self._core, text, self._room(max_length), truncate, self._frame)

    def _room(self, max_length: int) -> int:
        if max_length < 3:
            raise ValueError(
                f"max_length must be at least 3 ([CLS], a token, [SEP]), got {max_length}"
            )
        return max_length - 2

    def _frame(self, ids: list[int]) -> list[int]:
        return [self.cls_id, *ids, self.sep_id]

    def pieces(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " _"]]:
        """The ids of each text alone: no frame, and nothing cut."""
        return [np.array(ids, np.int32) for ids in token_ids(self._core, texts)]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Return the text of the ids, without padding, [CLS] and [SEP].

        Words are set apart by one space.
        """
        frame = {self.pad_id, self.cls_id, self.sep_id}
        # Not `skip_special_tokens`, which would also hide that a word was unknown.
        kept = [int(i) for i in ids if int(i) not in frame]
        with told("the tokenizer cannot join tokens; its file is damaged or of another kind"):
            return self._core.decode(kept, skip_special_tokens=False)

    def id_of(self, token: str) -> int | None:
        """Of a token by its text, as it stands in a text or as `token` names a special one; None
        where there is none.
        """
        if token in SPECIAL_TOKENS:
            return self._core.token_to_id(token)
        ids = self.pieces([token])[0].tolist()
        return ids[0] if len(ids) == 1 and ids[0] != self.unk_id else None

    def token(self, token_id: int) -> str:
        """The text of one id; a special one by its name."""
        name = self._core.id_to_token(token_id)
        return name if name in SPECIAL_TOKENS else self.decode([token_id])

    @property
    def end_id(self) -> int:
        """The token that ends a generated text, [SEP]."""
        return self.sep_id

    def prompt(self, text: str, *, framed: bool) -> Int[np.ndarray, " T"]:
        """Return the ids of a text that a language model continues, behind [CLS] where `framed`."""
        (ids,) = self.pieces([text])
        return np.concatenate([[self.cls_id], ids]) if framed else ids

    def continuation(self, prompt: Int[np.ndarray, " T"], ids: Sequence[int]) -> str:
        """Return the text of the ids generated after a prompt."""
        return self.decode(ids)

    def spell(self, token_id: int) -> str:
        """Return a token as it stands in a text."""
        return self.token(token_id)

    def save(self, path: str | Path) -> None:
        """Write one JSON file, which `tokenizers.Tokenizer.from_file` reads as well."""
        write_text(Path(path), self.to_json())

    def to_json(self) -> str:
        """Return what `save` writes."""
        return self._core.to_str()

    def to_files(self) -> dict[str, str]:
        """Return the content of each file of the tokenizer by its name."""
        return {TOKENIZER_FILE: self.to_json()}


def _required_id(core: tokenizers.Tokenizer, token: str) -> int:
    token_id = core.token_to_id(token)
    if token_id is None:
        raise TokenizerError(f"the vocabulary lacks {token}")
    return token_id


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer that `save` wrote. Raises TokenizerError where there is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {one_line(error)}") from None
    with told(f"{path} is not a tokenizer of ours"):
        return Tokenizer(tokenizers.Tokenizer.from_str(text))


def load_own_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer that a run learned from its texts, from the run's folder.

    Raises TokenizerError where there is none.
    """
    return load_tokenizer(folder / TOKENIZER_FILE)


def train_tokenizer(
    spec: str,
    texts: Iterable[str],
    *,
    lowercase: bool = True,
    lossless: bool = False,
    gpt2_files: str | Path | None = None,
) -> Tokenizer:
    """A tokenizer of the kind that `spec` names, learned from `texts` and nothing else.

    N counts every id, the five special ones included. `word:N` takes the most frequent words; of
    equally frequent ones, those first in code point order. The same texts, in any order, give the
    same file. Small texts may give fewer than N tokens: a BPE pair has to occur twice to be merged.

    With `lossless` the text comes back as it was, to the last space (`word` cannot), and each digit
    is a token, as in LLaMA; `char` always is. `gpt2` reads no texts and keeps case: tiktoken's copy
    of its files (fetched once, then cached), or a folder `gpt2_files` with encoder.json and
    vocab.bpe.
    """
    match = re.fullmatch(r"(bpe|word)(?::([0-9]{1,9}))?|(gpt2)|(char)", spec)
    if match is None:
        raise TokenizerError(f"tokenizer must be bpe:N, word:N, char or gpt2, got {spec!r}")
    kind, size, gpt2, char = match.groups()
    if gpt2:
        return Tokenizer(_gpt2(gpt2_files, lossless))
    if char:
        return Tokenizer(_characters(texts))
    if lossless and kind == "word":
        raise TokenizerError(f"{spec} forgets what stands between words; pass bpe:N or char")
    size = int(size or DEFAULT_SIZES[kind])
    if size < SMALLEST_SIZES[kind]:
        raise TokenizerError(
            f"{kind}:N needs N >= {SMALLEST_SIZES[kind]} "
            f"({len(SPECIAL_TOKENS)} special tokens and the smallest vocabulary), got {size}"
        )
    core, trainer = _untrained_bpe(size) if kind == "bpe" else _untrained_words(size)
    # People type ’ where the training texts have '.
    steps = [_line_breaks(), normalizers.Replace("’", "'")]
    if lossless:  # what is written again may need digits that no training text had side by side
        digits = pre_tokenizers.Digits(individual_digits=True)
        core.pre_tokenizer = pre_tokenizers.Sequence([digits, core.pre_tokenizer])
    else:
        core.normalizer = normalizers.Sequence(
            [*steps, normalizers.Lowercase()] if lowercase else steps
        )
    bar = tqdm(texts, desc="training the tokenizer", unit="text", leave=False, disable=None)
    core.train_from_iterator(map(valid, bar), trainer)
    if core.get_vocab_size() < SMALLEST_SIZES[kind]:
        raise TokenizerError(f"no words to learn {spec} from: the training texts are empty")
    return Tokenizer(_framed(core))


def _untrained_bpe(size: int) -> tuple[tokenizers.Tokenizer, trainers.Trainer]:
    core = _byte_level(models.BPE())
    return core, trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=SPECIAL_TOKENS,
        # All bytes: nothing is unknown.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _untrained_words(size: int) -> tuple[tokenizers.Tokenizer, trainers.Trainer]:
    core = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    # "removed" with "invert": what matches is kept, what lies between is dropped.
    core.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    return core, trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=SPECIAL_TOKENS, show_progress=False
    )


def _characters(texts: Iterable[str]) -> tokenizers.Tokenizer:
    found = sorted({character for text in texts for character in valid(text)})
    if not found:
        raise TokenizerError("no characters to learn from: the training texts are empty")
    ids = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *found])}
    core = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens(SPECIAL_TOKENS)
    return _framed(core)


def _gpt2(folder: str | Path | None, lossless: bool) -> tokenizers.Tokenizer:
    """GPT-2's vocabulary; [PAD], [CLS], [SEP] take the three ids behind it, as in the tutorial's
    listing 1.25.
    """
    vocabulary, merges = read_gpt2_files(folder)
    with told(f"the GPT-2 files in {folder or 'the cache of tiktoken'} are damaged"):
        _, *lines = merges.decode().splitlines()  # the first line is the format's version
        pairs: list[Any] = [tuple(line.split(" ")) for line in lines if line]
        ids = json.loads(vocabulary)
        if len(ids) != 256 + len(pairs) + 1:  # bytes, merges, the end of a text
            raise ValueError(f"{len(ids)} tokens and {len(pairs)} merges do not belong together")
        core = _byte_level(models.BPE(ids, pairs))
    if not lossless:
        core.normalizer = _line_breaks()
    core.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    return _framed(core)


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    core = tokenizers.Tokenizer(model)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return core


def _line_breaks() -> normalizers.Normalizer:
    return normalizers.Replace(Regex(LINE_BREAKS), " ")


def _framed(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """For those who read the file without us: encoding there also gives [CLS] ... [SEP]."""
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, core.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return core
