"""The file formats of tokenizers, and the function that loads each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import load_own_tokenizer
from transformer_jax.text.tokenizer_protocol import TextTokenizer


@dataclass(frozen=True)
class TokenizerFormat:
    """A format of tokenizer files, which `TextTokenizer.to_files` writes."""

    load: Callable[[Path], TextTokenizer]  # loads from a folder; raises TokenizerError
    may_differ: (
        bool  # whether the embedding table may have more or fewer rows than there are tokens
    )


TOKENIZER_FORMATS = {
    "learned": TokenizerFormat(load_own_tokenizer, may_differ=False),
    "published": TokenizerFormat(load_pretrained_tokenizer, may_differ=True),
}
