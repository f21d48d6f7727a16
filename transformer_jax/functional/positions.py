"""Encodings of positions: those that work (sinusoidal, learned), those that fail, and counting.

Positions are counted from a mask of real tokens or from segments.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.precision import wide


def sinusoidal_positions(
    positions: Int[Array, "..."], features: int, *, base: float = 10_000.0
) -> Float[Array, "... D"]:
    """Return the sinusoidal encoding of positions.

        PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D))

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.5. For a fixed k, PE(p + k) is
    the same rotation of PE(p) for every p. Raises TypeError for positions that are not integers,
    ValueError for fewer than one feature or a base of 0 or less.

    >>> sinusoidal_positions(jnp.array([1]), 6).round(4)
    Array([[0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1.    ]], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    _at_least_one(features=features)
    if not base > 0:
        raise ValueError(f"base must be above 0; got {base}")
    even = jnp.arange(0, features, 2, dtype=jnp.float32)
    angles = positions[..., None].astype(jnp.float32) / base ** (even / features)
    code = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    # An odd number of features ends on a sine.
    return code.reshape(*positions.shape, -1)[..., :features]


def lookup(table: Float[Array, "L D"], positions: Int[Array, "..."]) -> Float[Array, "... D"]:
    """Return rows of a table, such as token embeddings or learned positions.

    The result equals one_hot(positions) @ table. Positions that are learned, not computed, are of
    Gehring et al., 2017, https://arxiv.org/abs/1705.03122, section 3.1. An index outside the table
    is a mistake that a gather would hide: it gives NaN, since traced indices cannot raise an error.
    Raises TypeError for indices that are not integers, ValueError for a table of other than two
    axes.

    >>> lookup(jnp.eye(3), jnp.array([2, 0]))
    Array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    check_arrays(table=(table, "L D"), positions=(positions, "int ..."))
    table = jnp.asarray(table)
    # In float32 because of the gradient, in which a row is a sum over all its occurrences. Only
    # rows that are read are widened.
    rows = (
        wide(table).at[positions].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    )
    return rows.astype(table.dtype)


def count_in_segments(segment_ids: Int[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Return positions that start at 0 in each segment, for texts that are packed into one row.

    The tokens of a segment must be adjacent (Krell et al., 2021, https://arxiv.org/abs/2107.02027).
    Raises TypeError for ids that are not integers, ValueError for other axes than [B, T] or [T].

    >>> count_in_segments(jnp.array([[4, 4, 4, 7, 7]]))
    Array([[0, 1, 2, 0, 1]], dtype=int32)
    """
    check_arrays(segment_ids=(segment_ids, "int [B] T"))
    changes = segment_ids[..., 1:] != segment_ids[..., :-1]
    first = jnp.concatenate([jnp.ones_like(segment_ids[..., :1], bool), changes], axis=-1)
    index = jnp.arange(segment_ids.shape[-1], dtype=jnp.int32)
    return index - lax.cummax(jnp.where(first, index, 0), axis=first.ndim - 1)


def count_positions(is_token: Bool[Array, "*B T"]) -> Int[Array, "*B T"]:
    """Return the positions 0, 1, 2, ... of the real tokens of each row.

    Padding on the left does not shift them. Raises TypeError for a mask that is not boolean,
    ValueError for other axes than [B, T] or [T].

    >>> count_positions(jnp.array([[False, False, True, True, True]]))
    Array([[0, 0, 0, 1, 2]], dtype=int32)
    """
    check_arrays(is_token=(is_token, "bool [B] T"))
    return jnp.maximum(jnp.cumsum(is_token, axis=-1, dtype=jnp.int32) - 1, 0)


# Encodings that fail, and why. The sinusoids were designed to avoid these failures.


def integer_positions(positions: Int[Array, "..."]) -> Float[Array, "... 1"]:
    """Return the positions p themselves, as one feature.

    The feature grows without bound: next to embeddings of size 1, token 500 is its position and
    little else. Raises TypeError for positions that are not integers.

    >>> integer_positions(jnp.array([0, 1, 500]))[:, 0]
    Array([  0.,   1., 500.], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    return positions[..., None].astype(jnp.float32)


def normalised_positions(positions: Int[Array, "..."], length: int) -> Float[Array, "... 1"]:
    """Return the positions divided by the last one, so that they are in [0, 1].

        p / (T - 1)

    The feature is bounded, but one step means another distance in every text: 1 / (T - 1). A text
    of one token has the position 0. Raises ValueError for a length below 1.

    >>> normalised_positions(jnp.array([0, 1, 2]), 3)[:, 0]
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    _at_least_one(length=length)
    return integer_positions(positions) / max(length - 1, 1)


def one_hot_positions(positions: Int[Array, "..."], length: int) -> Float[Array, "... L"]:
    """Return one-hot vectors of the positions: a 1 in place p of L.

    There are as many features as positions, and every two positions are equally far apart. A
    position outside has no 1. Raises ValueError for a length below 1.

    >>> one_hot_positions(jnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    _at_least_one(length=length)
    return (positions[..., None] == jnp.arange(length, dtype=positions.dtype)).astype(jnp.float32)


def binary_positions(positions: Int[Array, "..."], bits: int) -> Float[Array, "... D"]:
    """Return the bits of the positions, most significant first.

    The encoding is bounded and short, but it jumps: 3 = 011 and 4 = 100 share no bit. The sinusoids
    are its smooth form, in which each feature oscillates at its own speed. Raises ValueError for
    fewer than one bit.

    >>> binary_positions(jnp.array([3, 4]), 3)
    Array([[0., 1., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    _at_least_one(bits=bits)
    places = jnp.arange(bits - 1, -1, -1, dtype=positions.dtype)
    return (positions[..., None] >> places & 1).astype(jnp.float32)


def _at_least_one(**sizes):
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be 1 or more; got {size}")
