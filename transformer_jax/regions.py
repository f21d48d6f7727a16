"""Region embeddings: a token is read together with its neighbours, each in its own place.

Johnson and Zhang, 2015, "Effective use of word order for text categorization with convolutional neural
networks" (https://arxiv.org/abs/1412.1058): a convolution over one-hot words. "not good" and "good, not" share
no vector, which a sum of plain word embeddings cannot express.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.positions import lookup


def region_embedding(
    table: Float[Array, "R V D"], tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"]
) -> Float[Array, "B T D"]:
    """x_t = sum_r table[r, token_(t + r - R//2)], over the places r whose token is real."""
    length, reach = tokens.shape[1], table.shape[0] // 2
    ends = ((0, 0), (reach, reach))
    tokens, is_token = jnp.pad(tokens, ends), jnp.pad(is_token, ends)
    # A lookup for each place: one of all places at once is no faster on a CPU, and R times as large.
    return sum(
        jnp.where(is_token[:, r : r + length, None], lookup(table[r], tokens[:, r : r + length]), 0)
        for r in range(table.shape[0])
    )
