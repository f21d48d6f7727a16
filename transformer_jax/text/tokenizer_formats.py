"""The file formats of tokenizers, the function that loads each, and a conversion between them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer, load_pretrained_tokenizer
from transformer_jax.text.tokenizer import Tokenizer, load_own_tokenizer
from transformer_jax.text.tokenizer_files import TokenizerFiles
from transformer_jax.text.tokenizer_protocol import TextTokenizer
from transformer_jax.text.tokenizer_settings import ROLES


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


def as_published(tokenizer: Tokenizer) -> PretrainedTokenizer:
    """Convert a tokenizer that was trained here to a `PretrainedTokenizer`.

    [MASK] in a text is then read as the mask token. As in RoBERTa, the mask includes the space
    before it, because byte-level tokens begin with their space.
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
