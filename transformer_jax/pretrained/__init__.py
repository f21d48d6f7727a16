"""Pretrained models without PyTorch: loading and saving of weights in Hugging Face's layout.

    from transformer_jax.pretrained import from_pretrained, tokenizer_of
    model, tokenizer = from_pretrained("bert-base-uncased"), tokenizer_of("bert-base-uncased")

`families/` has one file for each model family, with its configuration and tensor names (`bert`,
`roberta`, `distilbert`, `modernbert`, `gpt2`, `llama`). `tensor_layout` maps kernels to tensors,
`files` and `hub` find the tensors, `loading` and `saving` convert whole models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformer_jax.runtime.errors import PretrainedError

if TYPE_CHECKING:
    from transformer_jax.inference.embed import SentenceEncoder as SentenceEncoder
    from transformer_jax.pretrained.loading import from_pretrained, tokenizer_of
    from transformer_jax.pretrained.saving import save_pretrained
    from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer

__all__ = [
    "PretrainedError",
    "PretrainedTokenizer",
    "from_pretrained",
    "save_pretrained",
    "tokenizer_of",
]

# Imported when they are first used, because a model need not be loaded to find that it is missing.
PLACES = {
    "PretrainedTokenizer": "transformer_jax.text.pretrained_tokenizer",
    "SentenceEncoder": "transformer_jax.inference.embed",
    "from_pretrained": "transformer_jax.pretrained.loading",
    "save_pretrained": "transformer_jax.pretrained.saving",
    "tokenizer_of": "transformer_jax.pretrained.loading",
}


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(import_module(PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
