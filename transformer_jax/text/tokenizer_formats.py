"""The formats in which a folder holds a tokenizer: one entry says how a format is read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import load_own_tokenizer
from transformer_jax.text.tokenizer_protocol import TextTokenizer


@dataclass(frozen=True)
class TokenizerFormat:
    """A format of tokenizer files; `TextTokenizer.to_files` writes them."""

    load: Callable[[Path], TextTokenizer]  # of a folder; raises TokenizerError
    spare_rows: bool  # whether a model's table may have more rows than the vocabulary has tokens


TOKENIZER_FORMATS = {
    "learned": TokenizerFormat(load_own_tokenizer, spare_rows=False),
    "published": TokenizerFormat(load_pretrained_tokenizer, spare_rows=True),
}
