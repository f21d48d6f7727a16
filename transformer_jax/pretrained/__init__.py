"""Pretrained models without PyTorch: loading and saving of weights in Hugging Face's layout.

    from transformer_jax.pretrained import from_pretrained, tokenizer_of
    model, tokenizer = from_pretrained("bert-base-uncased"), tokenizer_of("bert-base-uncased")

`families/` has one file for each model family, with its configuration and tensor names (`bert`,
`roberta`, `distilbert`, `modernbert`, `gpt2`, `llama`). `tensor_layout` maps kernels to tensors,
`files` and `hub` find the tensors, `loading` and `saving` convert whole models.
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
    if name == "SentenceEncoder":  # lazily, because its package imports this one
        from transformer_jax.inference.embed import SentenceEncoder

        return SentenceEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
