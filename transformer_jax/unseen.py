"""Zeros in place of what a mask hides from everybody, before any product: 0 * NaN is NaN, in values and gradients.

A weight of zero does not keep an unseen key or value out of a product, nor a query that sees nothing out of the
gradient of the keys. The masks are rendered: boolean arrays of four axes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def hide_unseen(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K E"],
    mask: Bool[Array, "#B #N #T #S"] | None,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K E"]]:
    """Zeros in place of queries that see nothing and keys that nobody sees, whatever their widths."""
    if mask is None:
        return query, key
    query = jnp.where(seeing_queries(mask), query, 0)
    return query, jnp.where(seen_keys(mask, key.shape[2]), key, 0)


def hide_lone_rows(
    x: Float[Array, "B T D"], mask: Bool[Array, "#B #N #T #T"]
) -> Float[Array, "B T D"]:
    """Zeros in the rows of a self-attention that see nothing and that nobody sees.

    Norms and feed-forward networks read every row: a NaN there would reach their gradients as 0 * NaN.
    """
    return jnp.where(seeing_queries(mask).any(axis=2) | seen_keys(mask, 1)[..., 0], x, 0)


def seeing_queries(mask: Bool[Array, "#B #N #T #S"]) -> Bool[Array, "#B #T #N 1"]:
    """Where a query sees any key."""
    return mask.any(axis=3).swapaxes(1, 2)[..., None]


def seen_keys(mask: Bool[Array, "#B #N #T #S"], K: int) -> Bool[Array, "#B #S #K 1"]:
    """A key head is seen where any query of any of its group's heads may see it."""
    seen = mask.any(axis=2)
    if seen.shape[1] > 1:
        seen = seen.reshape(seen.shape[0], K, seen.shape[1] // K, seen.shape[2]).any(axis=2)
    return seen.swapaxes(1, 2)[..., None]
