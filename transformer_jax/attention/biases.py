"""Attention biases as rules: numbers that are added to the logits, as a function of positions.

    alibi(alibi_slopes(N))     # a penalty that grows with the distance of query and key
    relative_bias(table)       # a learned number for each bucket of distances

`bias_rule.py` says how they are added and differentiated.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.attention.bias_rule import Bias
from transformer_jax.attention.rule import Positions, check_positions, distances, rule_class
from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.precision import wide


@rule_class()
class _Alibi(Bias):
    slopes: Array
    query_positions: Positions = None
    key_positions: Positions = None

    def block(self, block):
        # Slopes in bfloat16 must not round the distance: bfloat16 cannot represent 257.
        slopes = wide(self.slopes)
        return -slopes[:, None, None] * jnp.abs(distances(self, block)).astype(slopes.dtype)


@rule_class(static=("bidirectional", "max_distance"))
class _Relative(Bias):
    table: Array
    bidirectional: bool
    max_distance: int
    query_positions: Positions = None
    key_positions: Positions = None

    def block(self, block):
        buckets = relative_buckets(
            distances(self, block)[:, 0],
            self.table.shape[0],
            bidirectional=self.bidirectional,
            max_distance=self.max_distance,
        )
        return jnp.moveaxis(self.table[buckets], -1, 1)


def alibi_slopes(num_heads: int) -> Float[Array, " N"]:
    """Return the slopes of ALiBi, one for each head.

        m_n = 2^(-8n/N), n = 1..N, for N a power of two

    For other N they are the slopes of the next lower power of two, followed by every other slope of
    the next higher one, as in the authors' code. Press et al., 2022,
    https://arxiv.org/abs/2108.12409, section 3. Raises ValueError for fewer than one head.

    >>> alibi_slopes(4)
    Array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be 1 or more; got {num_heads}")
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    between = [2 ** (-4 * n / power) for n in range(1, 2 * power + 1, 2)]
    return jnp.array(slopes + between[: num_heads - power], jnp.float32)


def alibi(
    slopes: Float[Array, " N"],
    *,
    query_positions: Positions = None,
    key_positions: Positions = None,
) -> Bias:
    """Return the ALiBi bias: a penalty for each head that is proportional to the distance.

        b_nts = -m_n |position of t - position of s|

    Attention with linear biases needs no position embedding (Press et al., 2022,
    https://arxiv.org/abs/2108.12409). The paper is causal; the absolute value extends it to both
    sides. Raises ValueError for slopes of other than one axis, TypeError if they are not floating
    point.

    >>> alibi(jnp.array([0.5])).to_array(3)[0, 0]
    Array([[-0. , -0.5, -1. ],
           [-0.5, -0. , -0.5],
           [-1. , -0.5, -0. ]], dtype=float32)
    """
    check_arrays(slopes=(slopes, "N"))
    check_positions(query_positions, key_positions)
    return _Alibi(slopes, query_positions, key_positions)


def relative_bias(
    table: Float[Array, "R N"],
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    query_positions: Positions = None,
    key_positions: Positions = None,
) -> Bias:
    """Return T5's relative bias: a learned number for each head and each bucket of distances.

        b_nts = table[bucket(position of s - position of t), n]

    The table has R buckets and N heads, and the gradient reaches it. `relative_buckets` says which
    distance is in which bucket. Raffel et al., 2020, https://arxiv.org/abs/1910.10683, section 2.1.
    Raises as `relative_buckets` does.

    >>> relative_bias(jnp.arange(4.0)[:, None], max_distance=4).to_array(3)[0, 0]
    Array([[0., 3., 3.],
           [1., 0., 3.],
           [1., 1., 0.]], dtype=float32)
    """
    check_arrays(table=(table, "R N"))
    check_positions(query_positions, key_positions)
    _check_buckets(table.shape[0], bidirectional, max_distance)
    return _Relative(
        jnp.asarray(table), bidirectional, max_distance, query_positions, key_positions
    )


def relative_buckets(
    distance: Int[Array, "..."],
    num_buckets: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
) -> Int[Array, "..."]:
    """Return T5's bucket of each distance, key position minus query position.

    Short distances have a bucket each; long ones share buckets that widen logarithmically. If
    `bidirectional`, the past and the future have R' = R/2 buckets each, the future the upper half.
    Otherwise the past has all R' = R, and keys after the query are in bucket 0. A distance of n <
    R'/2 tokens has its own bucket. Larger n share the other R'/2 buckets, with all n beyond
    `max_distance` in the last. Raffel et al., 2020, https://arxiv.org/abs/1910.10683, section 2.1.

    Raises TypeError for distances that are not integers. Raises ValueError if the buckets cannot be
    split like this, or if `max_distance` is so small that no bucket needs sharing.

    >>> relative_buckets(jnp.array([0, -1, -8, -100, 1]), 32)
    Array([ 0,  1,  8, 15, 17], dtype=int32)
    """
    check_arrays(distance=(distance, "int ..."))
    _check_buckets(num_buckets, bidirectional, max_distance)
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2
    past = jnp.abs(distance) if bidirectional else jnp.maximum(-distance, 0)
    starts = jnp.array(_starts(exact, max_distance, side - exact), distance.dtype)
    far = exact + jnp.searchsorted(starts, past, side="right", method="scan_unrolled").astype(
        distance.dtype
    )
    bucket = jnp.where(past < exact, past, far)
    return bucket + jnp.where(distance > 0, side, 0) if bidirectional else bucket


def _starts(exact, max_distance, buckets):
    """Return the smallest n of every logarithmic bucket but the first."""
    # For k = 1.. it is exact (max_distance / exact)^(k / buckets), rounded up. Found in whole
    # numbers, since a logarithm in float32 may fall on either side of one.
    starts = []
    for k in range(1, buckets):
        n = int(exact * (max_distance / exact) ** (k / buckets))
        reached = n**buckets >= exact ** (buckets - k) * max_distance**k
        starts.append(n if reached else n + 1)
    return starts


def _check_buckets(num_buckets, bidirectional, max_distance):
    least = 4 if bidirectional else 2
    if num_buckets < least or num_buckets % least:
        raise ValueError(f"the number of buckets must be a multiple of {least}; got {num_buckets}")
    exact = num_buckets // least
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must be more than {exact} for {num_buckets} buckets; got {max_distance}"
        )
