"""Biases are rules: of a distance, block by block, for the positions of a cache, with a gradient
that reaches their numbers.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import jax_normal
from transformer_jax.attention.bias_rule import Bias, as_bias, dense_bias
from transformer_jax.attention.biases import alibi, alibi_slopes, relative_bias, relative_buckets
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.rule import Block, rendered

pytestmark = pytest.mark.usefixtures("strict")

B, T, S, N, R = 2, 5, 7, 6, 8
MAX_DISTANCE = 6
bucketed = partial(relative_bias, max_distance=MAX_DISTANCE)


SLOPES, TABLE, ARRAY = jax_normal(1, N), jax_normal(2, R, N), jax_normal(3, B, 1, T, S)
RULES = {
    "alibi": lambda **positions: alibi(SLOPES, **positions),
    "relative": lambda **positions: bucketed(TABLE, **positions),
    "relative, of the past": lambda **positions: bucketed(TABLE, bidirectional=False, **positions),
    "their sum": lambda **positions: alibi(SLOPES, **positions) + bucketed(TABLE, **positions),
}
buckets_of = jax.jit(
    relative_buckets, static_argnums=1, static_argnames=("bidirectional", "max_distance")
)


@partial(jax.jit, static_argnums=(1, 2))
def _rendered(rule, T, S):
    return rule.to_array(T, S)


def as_array(rule, T=T, S=S):
    return np.asarray(_rendered(rule, T, S))


# ALiBi
# --------------------------------------------------------------------------------------------------


def published_slopes(n):
    """The slopes of the authors' get_slopes: github.com/ofirpress/attention_with_linear_biases."""

    def of_a_power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return of_a_power_of_two(n)
    below = 2 ** math.floor(math.log2(n))
    return of_a_power_of_two(below) + published_slopes(2 * below)[0::2][: n - below]


@pytest.mark.parametrize("heads", [*range(1, 18), 24, 32, 40, 112])
def test_slopes_are_those_of_the_authors_code(heads):
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,) and slopes.dtype == jnp.float32
    np.testing.assert_allclose(slopes, published_slopes(heads), rtol=1e-6)


def test_the_slopes_of_eight_heads_are_those_of_the_paper():
    np.testing.assert_array_equal(alibi_slopes(8), [1 / 2**n for n in range(1, 9)])  # section 3


def test_the_slopes_of_twelve_heads_are_eight_and_every_other_of_sixteen():
    twelve = alibi_slopes(12)
    np.testing.assert_array_equal(twelve[:8], alibi_slopes(8))
    np.testing.assert_array_equal(twelve[8:], alibi_slopes(16)[::2][:4])


def test_alibi_is_minus_the_slope_times_the_distance():
    ours, slopes = as_array(alibi(SLOPES)), np.asarray(SLOPES)
    for n, t, s in np.ndindex(N, T, S):
        distance = abs(t + S - T - s)  # the last query stands where the last key does
        np.testing.assert_allclose(ours[0, n, t, s], -slopes[n] * distance, rtol=1e-6)


@pytest.mark.usefixtures("mixed_dtypes")
def test_slopes_in_bfloat16_do_not_round_the_distance():
    slopes = jax.device_put(np.ones(1, jnp.bfloat16))  # bfloat16 has no 257
    assert as_array(alibi(slopes), 1, 258)[0, 0, 0, 0] == -257.0


# Buckets
# -------------------------------------------------------------------------------------------------


def exact_bucket(distance, buckets, bidirectional, max_distance):
    """T5's bucket in whole numbers: n is in the k-th logarithmic bucket or beyond where
    log(n / exact) / log(max / exact) >= k / m, that is n^m >= exact^(m - k) max^k."""
    side = buckets // 2 if bidirectional else buckets
    exact = side // 2
    m = side - exact
    n = abs(distance) if bidirectional else max(-distance, 0)
    bucket = n
    if n >= exact:
        k = 0
        while k < m - 1 and n**m >= exact ** (m - k - 1) * max_distance ** (k + 1):
            k += 1
        bucket = exact + k
    return bucket + (side if bidirectional and distance > 0 else 0)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (4, 20), (8, 100), (12, 81), (16, 125), (64, 1000)]
)
def test_buckets_are_those_of_whole_number_arithmetic(buckets, max_distance, bidirectional):
    """(12, 81) has a boundary at 9 = 3 * 27^(1/3), which a logarithm in float32 may miss."""
    distances = np.arange(-2 * max_distance, 2 * max_distance + 1)
    ours = buckets_of(
        distances.astype(np.int32),
        buckets,
        bidirectional=bidirectional,
        max_distance=max_distance,
    )
    loops = [exact_bucket(int(d), buckets, bidirectional, max_distance) for d in distances]
    np.testing.assert_array_equal(ours, loops)
    assert set(loops) == set(range(buckets)) - ({buckets // 2} if bidirectional else set())


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_of_t5_are_those_of_its_float_formula(bidirectional):
    """Weights were trained with the formula in float32, as the paper's code has it."""
    distance = np.arange(-300, 301)
    side = 16 if bidirectional else 32
    past = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    exact = side // 2
    share = np.log(np.maximum(past, 1).astype(np.float32) / exact) / np.float32(
        math.log(128 / exact)
    )
    far = np.minimum(exact + (share * (side - exact)).astype(np.int32), side - 1)
    expected = np.where(past < exact, past, far) + (bidirectional & (distance > 0)) * 16
    ours = buckets_of(distance.astype(np.int32), 32, bidirectional=bidirectional)
    np.testing.assert_array_equal(ours, expected)


def test_the_future_has_a_bucket_of_its_own_on_both_sides_and_none_on_one():
    future = np.arange(1, 200, dtype=np.int32)
    assert (np.asarray(buckets_of(future, 32)) >= 16).all()
    assert (np.asarray(buckets_of(-future, 32)) < 16).all()
    one_sided = np.asarray(buckets_of(future, 32, bidirectional=False))
    assert not one_sided.any()  # the bucket of distance 0


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_looks_its_bucket_up(bidirectional):
    ours = as_array(bucketed(TABLE, bidirectional=bidirectional))
    table = np.asarray(TABLE)
    assert ours.shape == (1, N, T, S)
    for t, s in np.ndindex(T, S):
        bucket = exact_bucket(s - (t + S - T), R, bidirectional, MAX_DISTANCE)
        np.testing.assert_array_equal(ours[0, :, t, s], table[bucket])


# Rules
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_a_block_is_a_slice_of_the_whole(name):
    rule = RULES[name]() + ARRAY
    whole = as_array(rule)

    @partial(jax.jit, static_argnames=("queries", "keys"))
    def part(query_start, key_start, queries, keys):
        return rule.block(Block(query_start, queries, key_start, keys, T, S))

    for queries, keys in ((1, 3), (2, 2), (T, S)):
        for query_start in range(T - queries + 1):
            for key_start in range(S - keys + 1):
                here = np.s_[..., query_start : query_start + queries, key_start : key_start + keys]
                block = part(query_start, key_start, queries=queries, keys=keys)
                np.testing.assert_allclose(block, whole[here], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_traced_positions_of_each_example_give_their_rows_of_the_whole(name):
    whole = as_array(RULES[name](), S, S)
    at = np.array([[0, 4], [6, 2]])  # the positions of two queries in each of two examples
    slots = np.array([3, 1, 6, 0, 2, 5, 4])  # where the keys of a cache stand

    @jax.jit
    def render(at, slots):
        return RULES[name](query_positions=at, key_positions=slots).to_array(2, S)

    ours = np.asarray(render(at, slots))
    assert ours.shape == (2, N, 2, S)
    for b, t in np.ndindex(2, 2):
        row = whole[0][:, at[b, t]][:, slots]
        np.testing.assert_allclose(ours[b, :, t], row, rtol=0, atol=1e-6)


def test_a_sum_adds_rules_and_arrays_from_either_side():
    rule, other = alibi(SLOPES), bucketed(TABLE)
    numpy = np.asarray(ARRAY)
    expected = as_array(rule) + as_array(other) + numpy
    for both in (
        rule + other + ARRAY,
        ARRAY + rule + other,
        numpy + (other + rule),
        rule + numpy + other,
    ):
        assert isinstance(both, Bias)
        np.testing.assert_allclose(as_array(both), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(T, S), (S,), (N, 1, 1), (B, 1, T, 1), (1, 1, 1, 1), ()])
def test_an_array_broadcasts_to_four_axes(shape):
    array = jax_normal(4, *shape)
    expected = np.broadcast_to(array, (B, N, T, S))
    both = jax.jit(lambda x: (rendered(as_bias(x), T, S), dense_bias(x).to_array(T, S)))(array)
    assert both[0].ndim == 4
    for whole in both:
        np.testing.assert_array_equal(np.broadcast_to(whole, (B, N, T, S)), expected)


@pytest.mark.parametrize("name", RULES)
def test_attention_with_a_rule_is_attention_with_its_array(name):
    query, key = jax_normal(5, B, T, N, 3), jax_normal(6, B, S, 2, 3)
    attend = jax.jit(lambda bias: dot_product_attention(query, key, key, bias=bias))
    rule = RULES[name]()  # through jit as an argument: a rule is a pytree
    by_array = np.asarray(attend(as_array(rule)))
    np.testing.assert_allclose(attend(rule), by_array, rtol=0, atol=1e-6)
    assert np.abs(by_array - attend(np.zeros((1, N, T, S), np.float32))).max() > 0.1


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32 - 1))
def test_the_gradient_reaches_the_table_and_the_slopes(seed):
    cotangent = np.random.default_rng(seed).standard_normal((N, T, S))
    d_slopes, d_table = _gradients(cotangent.astype(np.float32))
    slope, table = np.zeros(N), np.zeros((R, N))
    for n, t, s in np.ndindex(N, T, S):
        distance = s - (t + S - T)
        slope[n] -= cotangent[n, t, s] * abs(distance)
        table[exact_bucket(distance, R, True, MAX_DISTANCE), n] += cotangent[n, t, s]
    np.testing.assert_allclose(d_slopes, slope, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(d_table, table, rtol=1e-5, atol=1e-5)


@jax.jit
def _gradients(cotangent):
    def loss(slopes, table):
        bias = alibi(slopes) + bucketed(table)
        return jnp.sum(bias.to_array(T, S)[0] * cotangent)

    return jax.grad(loss, argnums=(0, 1))(SLOPES, TABLE)
