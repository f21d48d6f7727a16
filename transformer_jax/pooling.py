"""One vector for a whole text. Padding never counts; a row without tokens gives zeros."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.positions import count_positions


def cls_pool(x: Float[Array, "B T D"], is_token: Bool[Array, "B T"]) -> Float[Array, "B D"]:
    """The first real token, on whichever side the padding stands."""
    first = is_token & (count_positions(is_token) == 0)
    return _select(x, first)


def last_pool(x: Float[Array, "B T D"], is_token: Bool[Array, "B T"]) -> Float[Array, "B D"]:
    """The last real token."""
    count = is_token.sum(axis=-1, keepdims=True)
    return _select(x, is_token & (count_positions(is_token) == count - 1))


def mean_pool(x: Float[Array, "B T D"], is_token: Bool[Array, "B T"]) -> Float[Array, "B D"]:
    """The mean over the real tokens, summed in float32 or wider."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    total = jnp.where(is_token[..., None], x, 0).sum(axis=1, dtype=wide)
    count = jnp.maximum(is_token.sum(axis=-1, keepdims=True), 1)
    return (total / count.astype(wide)).astype(x.dtype)


def max_pool(x: Float[Array, "B T D"], is_token: Bool[Array, "B T"]) -> Float[Array, "B D"]:
    """The largest value of each feature over the real tokens."""
    # Chosen by index, not `.max()`: its gradient looks for the entries equal to the maximum, and compiled by XLA
    # (jax 0.10 on CPU) it may compare two computations of them that round apart, and lose them.
    visible = jnp.where(is_token[..., None], x, jnp.finfo(x.dtype).min)
    highest = visible.argmax(axis=1, keepdims=True) == jnp.arange(x.shape[1])[:, None]
    return jnp.where(highest & is_token[..., None], x, 0).sum(axis=1, dtype=x.dtype)


def _select(x, one_hot):
    # `where` and a sum, not a product: 0 * NaN in the padding would be NaN.
    return jnp.where(one_hot[..., None], x, 0).sum(axis=1, dtype=x.dtype)


POOLINGS = {"cls": cls_pool, "mean": mean_pool, "max": max_pool, "last": last_pool}
