"""Pretrained models without PyTorch: weights in the layout of Hugging Face, loaded, used and given
back.

    from transformer_jax.pretrained import from_pretrained, tokenizer_of
    model, tokenizer = from_pretrained("bert-base-uncased"), tokenizer_of("bert-base-uncased")

`families/` has one file a family, with the table of its names (`bert`, `roberta`, `distilbert`,
`modernbert`, `gpt2`, `llama`); `tensor_layout` says how a kernel lies in a tensor, `files` and
`hub` find the tensors, `loading` and `saving` go either way.
"""

from transformer_jax.pretrained.loading import from_pretrained, tokenizer_of
from transformer_jax.pretrained.saving import save_pretrained
from transformer_jax.runtime.errors import PretrainedError
from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer

__all__ = [
    "PretrainedError",
    "PretrainedTokenizer",
    "from_pretrained",
    "save_pretrained",
    "tokenizer_of",
]


def __getattr__(name: str):
    if name == "SentenceEncoder":  # of a package that imports this one
        from transformer_jax.inference.embed import SentenceEncoder

        return SentenceEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
