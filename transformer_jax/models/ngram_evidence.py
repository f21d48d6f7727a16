"""A linear model over the n-grams of a text, whose logits a classifier adds to its own."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.ngrams import ngram_evidence, ngram_rows, ngram_shares
from transformer_jax.models.config import ClassifierConfig, EncoderClassifierConfig
from transformer_jax.nn.parameters import zeros


class NgramEvidence(nnx.Module):
    """A module with the tables of `ngram_evidence`, which computes class logits from n-grams.

    The logits are z + b, or -(z + b)/2 and (z + b)/2 for two classes. The tables are initialized to
    zero and have no effect then. A solver fits them (`train/classifier/ngram_solver.py`); they are
    not trained by gradient descent.
    """

    def __init__(self, num_classes: int, *, longest: int, bits: int):
        columns = 1 if num_classes == 2 else num_classes
        self.weight = zeros(2**bits, columns)
        self.square = zeros(2**bits, columns)
        self.bias = zeros(columns)
        self.longest, self.bits = longest, bits

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        presence: Float[Array, "B T"] | None = None,
    ) -> Float[Array, "B C"]:
        rows, there = ngram_rows(tokens, is_token, self.longest, self.bits)
        share = ngram_shares(rows, there)
        z = ngram_evidence(self.weight[...], self.square[...], rows, share, presence)
        z = z + self.bias[...].astype(z.dtype)
        return jnp.concatenate([-z / 2, z / 2], axis=-1) if z.shape[-1] == 1 else z


def evidence_of(config: ClassifierConfig | EncoderClassifierConfig) -> NgramEvidence | None:
    """Create the `NgramEvidence` of a classifier; return None if its `ngrams` is 0."""
    if not config.ngrams:
        return None
    return NgramEvidence(config.num_classes, longest=config.ngrams, bits=config.ngram_bits)
