"""Region embeddings: a token is read together with its neighbours, each in its own place; patches of them.

Johnson and Zhang, 2015, "Effective use of word order for text categorization with convolutional neural
networks" (https://arxiv.org/abs/1412.1058): a convolution over one-hot words. "not good" and "good, not" share
no vector, which a sum of plain word embeddings cannot express.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.pooling import max_pool
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


def to_front(
    tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"]
) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    """The real tokens of every row first, in their order: where the padding stood is forgotten."""
    order = jnp.argsort(~is_token, axis=-1, stable=True)
    return tuple(jnp.take_along_axis(x, order, axis=-1) for x in (tokens, is_token))


def max_patches(
    x: Float[Array, "B T D"], is_token: Bool[Array, "B T"], width: int
) -> tuple[Float[Array, "B P D"], Bool[Array, "B P"]]:
    """The largest value of each feature in every patch of `width` neighbours, P = ceil(T / width), and which
    patches hold a real token; the others are zero."""
    B, T, D = x.shape
    if width == 1:
        return jnp.where(is_token[..., None], x, 0), is_token
    end = -T % width
    x = jnp.pad(x, ((0, 0), (0, end), (0, 0))).reshape(-1, width, D)
    is_token = jnp.pad(is_token, ((0, 0), (0, end))).reshape(-1, width)
    return max_pool(x, is_token).reshape(B, -1, D), is_token.any(axis=-1).reshape(B, -1)
