"""Pretrained models without PyTorch: weights in the layout of Hugging Face, loaded, used and given
back.

    from transformer_jax.pretrained import from_pretrained, tokenizer_of
    model, tokenizer = from_pretrained("bert-base-uncased"), tokenizer_of("bert-base-uncased")

One file a family holds the table of its names (`bert`, `roberta`, `distilbert`, `modernbert`,
`gpt2`, `llama`); `layout` says how a kernel lies in a tensor, `files` and `hub` find the tensors,
`loading` and `saving` go either way; `sentences` and `filling` use them.
"""

from transformer_jax.pretrained.files import PretrainedError
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
