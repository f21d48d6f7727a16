"""Where a token stands: the codes that work (sinusoidal, learned), those that fail, and counting
from a mask.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.precision import wide


def sinusoidal_positions(
    positions: Int[Array, "..."], features: int, *, base: float = 10_000.0
) -> Float[Array, "... D"]:
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D)).

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.5. PE(p + k) is the same
    rotation of PE(p) for every p. Raises TypeError for positions that are not integers, ValueError
    for fewer than one feature or a base of 0 or less.

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
    """Rows of a table: a token embedding, or a learned position. The same as one_hot(positions) @
    table.

    Positions that are learned, not computed, are of Gehring et al., 2017,
    https://arxiv.org/abs/1705.03122, section 3.1. An index outside the table is a mistake that a
    gather would hide: it yields NaN, since traced indices cannot raise. Raises TypeError for
    indices that are not integers, ValueError for a table of other than two axes.

    >>> lookup(jnp.eye(3), jnp.array([2, 0]))
    Array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    check_arrays(table=(table, "L D"), positions=(positions, "int ..."))
    table = jnp.asarray(table)
    # In float32 for its gradient's sake, where a row is a sum over all its places; only rows that
    # are read are widened.
    rows = (
        wide(table).at[positions].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    )
    return rows.astype(table.dtype)


def count_in_segments(segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """0, 1, 2, ... from the first token of each segment: texts packed into a row each begin at 0.

    The tokens of a segment stand together (Krell et al., 2021, https://arxiv.org/abs/2107.02027).
    Raises TypeError for ids that are not integers, ValueError for other than two axes.

    >>> count_in_segments(jnp.array([[4, 4, 4, 7, 7]]))
    Array([[0, 1, 2, 0, 1]], dtype=int32)
    """
    check_arrays(segment_ids=(segment_ids, "int B T"))
    index = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None]
    first = jnp.concatenate(
        [jnp.ones_like(segment_ids[:, :1], bool), segment_ids[:, 1:] != segment_ids[:, :-1]], axis=1
    )
    return index - lax.cummax(jnp.where(first, index, 0), axis=1)


def count_positions(is_token: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """0, 1, 2, ... over the real tokens of each row, so that padding on the left moves nothing.

    Raises TypeError for a mask that is not boolean, ValueError for other than two axes.

    >>> count_positions(jnp.array([[False, False, True, True, True]]))
    Array([[0, 0, 0, 1, 2]], dtype=int32)
    """
    check_arrays(is_token=(is_token, "bool B T"))
    return jnp.maximum(jnp.cumsum(is_token, axis=-1, dtype=jnp.int32) - 1, 0)


# The ideas that fail, and why: what the sinusoids were made to cure.


def integer_positions(positions: Int[Array, "..."]) -> Float[Array, "... 1"]:
    """p itself. It grows without bound: beside embeddings of size 1, token 500 is its position and
    little else.

    Raises TypeError for positions that are not integers.

    >>> integer_positions(jnp.array([0, 1, 500]))[:, 0]
    Array([  0.,   1., 500.], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    return positions[..., None].astype(jnp.float32)


def normalised_positions(positions: Int[Array, "..."], length: int) -> Float[Array, "... 1"]:
    """p / (T - 1), in [0, 1]. Bounded, but one step means another distance in every text: 1 / (T -
    1).

    A text of one token has the position 0. Raises ValueError for a length below 1.

    >>> normalised_positions(jnp.array([0, 1, 2]), 3)[:, 0]
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    _at_least_one(length=length)
    return integer_positions(positions) / max(length - 1, 1)


def one_hot_positions(positions: Int[Array, "..."], length: int) -> Float[Array, "... L"]:
    """A 1 in place p of L. As many features as positions, and every two positions are equally far
    apart.

    Raises ValueError for a length below 1. A position outside has no 1.

    >>> one_hot_positions(jnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    _at_least_one(length=length)
    return (positions[..., None] == jnp.arange(length)).astype(jnp.float32)


def binary_positions(positions: Int[Array, "..."], bits: int) -> Float[Array, "... D"]:
    """The bits of p, most significant first: bounded and short, but it jumps. 3 = 011 and 4 = 100
    share no bit.

    The sinusoids are its smooth form: each feature turns at its own speed. Raises ValueError for
    fewer than one bit.

    >>> binary_positions(jnp.array([3, 4]), 3)
    Array([[0., 1., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    check_arrays(positions=(positions, "int ..."))
    _at_least_one(bits=bits)
    return (positions[..., None] >> jnp.arange(bits - 1, -1, -1) & 1).astype(jnp.float32)


def _at_least_one(**sizes):
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be 1 or more; got {size}")
