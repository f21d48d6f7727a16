"""Tokenizers that are trained on the texts of a run: texts to token ids and back.

There are four kinds of vocabulary:

    bpe:N    byte-level BPE with N tokens, learned from the training texts (`bpe` alone: 16384)
    word:N   the most frequent words and punctuation marks, N tokens in all (`word` alone: 30000)
    char     all characters of the training texts
    gpt2     the published GPT-2 vocabulary, followed by [PAD], [CLS], [SEP]

All are saved as JSON of the `tokenizers` library. tiktoken downloads and caches the files of GPT-2,
but a saved tokenizer needs neither tiktoken nor a network. The file also holds the rules that split
a text into words, so that prediction tokenizes exactly as training did.

Special tokens in a text are plain text: "[PAD]" or "<|endoftext|>" is tokenized like any other
word. `<br />` becomes a space unless the tokenizer is `lossless`, which text generation needs.
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

from transformer_jax.runtime.errors import TokenizerError, one_line
from transformer_jax.runtime.files import write_text
from transformer_jax.runtime.progress import ProgressBar
from transformer_jax.runtime.texts import EncodingError, read_text
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
# Their indices in this list are their ids in `bpe`, `word` and `char`.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DEFAULT_SIZES = {"bpe": 16384, "word": 30000}
SMALLEST_SIZES = {"bpe": 256 + len(SPECIAL_TOKENS), "word": 1 + len(SPECIAL_TOKENS)}

# A run of tags with the spaces after it, so that the usual "<br /><br />" becomes one space.
LINE_BREAKS = r"(?i)(?:<br\s*/?>\s*)+"
# Letters and digits of any script, with the letters after an apostrophe ("don't" is one word, so
# that a negation stays with its verb). Any other visible character is a word of its own.
WORD = r"[\p{L}\p{M}\p{N}]+(?:'[\p{L}\p{M}]+)*|[^\s\p{L}\p{M}\p{N}]"


class Tokenizer:
    """A vocabulary and the rules that tokenize a text.

    `unk_id` and `mask_id` are None for gpt2, whose vocabulary has neither token. `bpe` has an
    unknown token only so that all vocabularies have the same layout. It never occurs, because every
    byte is a token.
    """

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    unk_id: int | None
    mask_id: int | None

    def __init__(self, core: tokenizers.Tokenizer):
        """Wrap a tokenizer of the `tokenizers` library.

        Raises TokenizerError if `core` is not of one of the four kinds.
        """
        # "[PAD]" in a text is plain text. It is set here because the file does not keep this flag.
        core.encode_special_tokens = True
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
        """The kind of vocabulary as in `train_tokenizer`: "gpt2", "char", "bpe:N" or "word:N".

        N is the actual size of the vocabulary.
        """
        if isinstance(self._core.model, models.WordLevel):
            if isinstance(self._core.decoder, decoders.Fuse):
                return "char"
            return f"word:{self.vocab_size}"
        return "gpt2" if self.mask_id is None else f"bpe:{self.vocab_size}"

    @property
    def lowercase(self) -> bool:
        """Whether texts are lower-cased."""
        normalizer = self._core.normalizer
        return normalizer is not None and normalizer.normalize_str("A") == "a"

    def encode(
        self, texts: Sequence[str], max_length: int, truncate: Truncation | None = None
    ) -> list[Int32[np.ndarray, " _"]]:
        """Encode each text as [CLS] tokens [SEP], at most `max_length` ids and without padding.

        `truncate` is "head" (the default), which keeps the first max_length - 2 tokens of a long
        text, "tail", which keeps the last ones, or "head-tail", which fills half of these (rounded
        up) with its start and half (rounded down) with its end, because a review often ends with
        its verdict. Raises ValueError for a
        max_length below 3.
        """
        return self.encode_with_cuts(texts, max_length, truncate)[0]

    def encode_with_cuts(
        self, texts: Sequence[str], max_length: int, truncate: Truncation | None = None
    ) -> tuple[list[Int32[np.ndarray, " _"]], Int32[np.ndarray, " B"]]:
        """Encode as `encode` does, and also return the number of tokens that each text lost."""
        room = self._room(max_length)
        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of strings, got one string; pass [text]")
        return framed_with_cuts(self._core, texts, room, truncate or "head", self._frame)

    def locate(self, text: str, max_length: int, truncate: Truncation | None = None) -> Located:
        """Encode one text as `encode` does, with the position of each token in the text."""
        return located(self._core, text, self._room(max_length), truncate or "head", self._frame)

    def _room(self, max_length: int) -> int:
        if max_length < 3:
            raise ValueError(
                f"max_length must be at least 3 ([CLS], a token, [SEP]), got {max_length}"
            )
        return max_length - 2

    def _frame(self, ids: list[int]) -> list[int]:
        return [self.cls_id, *ids, self.sep_id]

    def pieces(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " _"]]:
        """Return the ids of each text, without [CLS] and [SEP] and without truncation."""
        return [np.array(ids, np.int32) for ids in token_ids(self._core, texts)]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Return the text of the ids, without padding, [CLS] and [SEP].

        The words of a `word` vocabulary are separated by one space.
        """
        frame = {self.pad_id, self.cls_id, self.sep_id}
        # Not `skip_special_tokens`, which would also drop the tokens of unknown words.
        kept = [int(i) for i in ids if int(i) not in frame]
        with told("the tokenizer cannot decode tokens; its file is damaged or of another kind"):
            return self._core.decode(kept, skip_special_tokens=False)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token by its text or special token's name, or None if unknown."""
        if token in SPECIAL_TOKENS:
            return self._core.token_to_id(token)
        ids = self.pieces([token])[0].tolist()
        return ids[0] if len(ids) == 1 and ids[0] != self.unk_id else None

    def token(self, token_id: int) -> str:
        """Return the text of a token, or the name of a special token."""
        name = self._core.id_to_token(token_id)
        return name if name in SPECIAL_TOKENS else self.decode([token_id])

    @property
    def end_id(self) -> int:
        """The id of the token that ends a generated text, [SEP]."""
        return self.sep_id

    def prompt(self, text: str, *, framed: bool) -> Int[np.ndarray, " T"]:
        """Return the ids of a prompt for a language model, after [CLS] if `framed`."""
        (ids,) = self.pieces([text])
        return np.concatenate([[self.cls_id], ids]) if framed else ids

    def continuation(self, prompt: Int[np.ndarray, " T"], ids: Sequence[int]) -> str:
        """Return the text of the ids generated after a prompt."""
        return self.decode(ids)

    def spell(self, token_id: int) -> str:
        """Return the text of a token, or the name of a special token."""
        return self.token(token_id)

    def for_table(self, rows: int) -> "Tokenizer":
        """Return the tokenizer itself; raise TokenizerError if it has more than `rows` tokens."""
        if self.vocab_size > rows:
            raise TokenizerError(
                f"the tokenizer has {self.vocab_size} tokens and the model {rows}; "
                "they do not belong together"
            )
        return self

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file, which `tokenizers.Tokenizer.from_file` also reads."""
        write_text(Path(path), self.to_json())

    def to_json(self) -> str:
        """Return the JSON text that `save` writes."""
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
    """Load a tokenizer that `save` wrote. Raises TokenizerError if the file holds none."""
    try:
        text = read_text(Path(path))
    except (OSError, EncodingError) as error:
        raise TokenizerError(f"{path} cannot be read: {one_line(error)}") from None
    with told(f"{path} is not a tokenizer of ours"):
        return Tokenizer(tokenizers.Tokenizer.from_str(text))


def load_own_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer that was trained in a run from its run folder.

    Raises TokenizerError if there is none.
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
    """Train a tokenizer of the kind `spec` on `texts`.

    `spec` is "bpe:N", "word:N", "char" or "gpt2". N counts all ids, including the five special
    tokens. `word:N` takes the most frequent words; equally frequent words are taken in code point
    order. The same texts in any order give the same file. Small texts may give fewer than N tokens,
    because BPE only merges a pair that occurs at least twice.

    With `lossless`, decoding restores the exact text, spaces included (`word` cannot do this), and
    each digit is a token, as in LLaMA. `char` is always lossless. `gpt2` is not trained and keeps
    case. Its files encoder.json and vocab.bpe are read from the folder `gpt2_files`, or through
    tiktoken, which downloads them once and caches them. Raises TokenizerError for an unknown
    `spec`, a size that is too small, texts without words, or files that cannot be read.
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
        raise TokenizerError(f"{spec} drops the spaces between words; pass bpe:N or char")
    size = int(size or DEFAULT_SIZES[kind])
    if size < SMALLEST_SIZES[kind]:
        raise TokenizerError(
            f"{kind}:N needs N >= {SMALLEST_SIZES[kind]} "
            f"({len(SPECIAL_TOKENS)} special tokens and the smallest vocabulary), got {size}"
        )
    core, trainer = _untrained_bpe(size) if kind == "bpe" else _untrained_words(size)
    # Users may type ’ where the training texts have '.
    steps = [_line_breaks(), normalizers.Replace("’", "'")]
    if lossless:  # so that any sequence of digits can be generated, not only those of the texts
        digits = pre_tokenizers.Digits(individual_digits=True)
        core.pre_tokenizer = pre_tokenizers.Sequence([digits, core.pre_tokenizer])
    else:
        core.normalizer = normalizers.Sequence(
            [*steps, normalizers.Lowercase()] if lowercase else steps
        )
    bar = ProgressBar(texts, desc="training the tokenizer", unit="text", leave=False)
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
        # All bytes, so that nothing is out of vocabulary.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def _untrained_words(size: int) -> tuple[tokenizers.Tokenizer, trainers.Trainer]:
    core = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    # "removed" with "invert" keeps the matches and drops the text between them.
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
    """Build GPT-2's vocabulary and [PAD], [CLS], [SEP], as in the tutorial's listing 1.25."""
    vocabulary, merges = read_gpt2_files(folder)
    with told(f"the GPT-2 files in {folder or 'the cache of tiktoken'} are damaged"):
        _, *lines = merges.decode().splitlines()  # the first line is the format's version
        pairs: list[Any] = [tuple(line.split(" ")) for line in lines if line]
        ids = json.loads(vocabulary)
        if len(ids) != 256 + len(pairs) + 1:  # bytes, merges, the end-of-text token
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
    """Make the `tokenizers` library add [CLS] and [SEP] too, for users who load it directly."""
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, core.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return core
