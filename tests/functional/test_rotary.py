"""RoPE turns pairs of features as complex numbers turn, so that scores depend on the distance
alone.
"""

import cmath
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import float32, normal
from transformer_jax.functional.rotary import (
    LAYOUTS,
    SCALINGS,
    Rotary,
    rope,
    rope_frequencies,
    yarn_temperature,
)

pytestmark = pytest.mark.usefixtures("strict")

B, T, N, H = 2, 5, 3, 10
turn = jax.jit(rope, static_argnames="layout")


def drawn(seed, *shape):
    return normal(seed, *shape).astype(np.float32)


def loops(x, positions, frequencies, layout):
    """(a + ib) e^(i p f), a pair at a time."""
    R, turned = len(frequencies), np.array(x)
    for b, t, n in np.ndindex(x.shape[:3]):
        for i in range(R):
            first, second = (i, i + R) if layout == "half" else (2 * i, 2 * i + 1)
            pair = complex(x[b, t, n, first], x[b, t, n, second])
            pair *= cmath.exp(1j * float(positions[b, t]) * float(frequencies[i]))
            turned[b, t, n, first], turned[b, t, n, second] = pair.real, pair.imag
    return turned


@partial(jax.jit, static_argnames="layout")
def value_and_gradient(x, positions, frequencies, cotangent, layout):
    y, pull = jax.vjp(lambda x: rope(x, positions, layout=layout, frequencies=frequencies), x)
    return y, pull(cotangent)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pairs", [H // 2, 2, 1])
def test_value_and_gradient_equal_complex_numbers(layout, pairs):
    frequencies = np.asarray(rope_frequencies(2 * pairs))
    for seed in range(5):
        x, cotangent = normal(seed, B, T, N, H), normal(seed + 9, B, T, N, H)
        positions = np.random.default_rng(seed).integers(-20, 100, (B, T))
        ours, gradient = value_and_gradient(
            *float32(x), positions, frequencies, *float32(cotangent), layout
        )
        expected = loops(x, positions, frequencies, layout)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=5e-5)
        # The inverse of a rotation is the rotation back.
        back = loops(cotangent, -positions, frequencies, layout)
        np.testing.assert_allclose(gradient, back, rtol=0, atol=5e-5)


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_float64_stays_float64(layout):
    x, positions = normal(1, B, T, N, H), np.arange(B * T).reshape(B, T) * 37
    frequencies = np.asarray(rope_frequencies(H), np.float64)
    with jax.enable_x64(True):
        y = turn(x, positions, layout=layout)
        assert y.dtype == jnp.float64
        expected = loops(x, positions, frequencies, layout)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("mixed_dtypes")
def test_bfloat16_is_turned_in_float32():
    x = drawn(1, 1, 1, 1, 2).astype(jnp.bfloat16)
    at = np.array([257])  # bfloat16 has no 257
    y = turn(x, at, frequencies=np.ones(1, jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    wide = turn(x.astype(np.float32), at, frequencies=np.ones(1, np.float32))
    np.testing.assert_array_equal(y, np.asarray(wide).astype(jnp.bfloat16))


def test_the_layouts_are_permutations_of_one_another():
    x, at = drawn(1, B, T, N, H), np.arange(T)
    pairs_apart = np.concatenate([np.arange(0, H, 2), np.arange(1, H, 2)])
    half = turn(x[..., pairs_apart], at, layout="half")
    interleaved = np.asarray(turn(x, at, layout="interleaved"))
    np.testing.assert_allclose(half, interleaved[..., pairs_apart], rtol=0, atol=1e-6)
    # And not the same: weights trained with one are wrong with the other.
    assert np.abs(turn(x, at, layout="half") - interleaved).max() > 0.1


@jax.jit
def _scores(query, key, at, where):
    return jnp.einsum("BTNH,BSNH->BNTS", rope(query, at), rope(key, where))


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32 - 1), st.integers(-1000, 1000))
def test_scores_depend_on_the_distance_alone(seed, shift):
    random = np.random.default_rng(seed)
    query, key = float32(*random.standard_normal((2, B, T, N, H)))
    at, where = random.integers(0, 100, (2, T)).astype(np.int32)
    here, there = _scores(query, key, at, where), _scores(query, key, at + shift, where + shift)
    np.testing.assert_allclose(here, there, rtol=0, atol=2e-3)  # angles of 1000 in float32


def test_scores_do_depend_on_the_distance():
    query, key = float32(normal(1, B, T, N, H), normal(2, B, T, N, H))
    at = np.arange(T, dtype=np.int32)
    assert np.abs(_scores(query, key, at, at) - _scores(query, key, at, at + 1)).max() > 0.1


def test_lengths_are_kept_and_position_zero_is_left_as_it_is():
    x = drawn(3, B, T, N, H)
    y = np.asarray(turn(x, np.arange(T)))
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(y[:, 0], x[:, 0])


def test_features_beyond_the_frequencies_are_left_as_they_are():
    x, at = drawn(4, B, T, N, H), np.arange(T)
    y = np.asarray(turn(x, at, frequencies=rope_frequencies(4)))
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(y[..., :4], turn(x[..., :4], at))
    assert (y[:, 1:, :, :4] != x[:, 1:, :, :4]).all()


def test_positions_may_differ_by_example():
    x, positions = drawn(5, B, T, N, H), np.array([[0, 1, 2, 3, 4], [7, 3, 9, 0, 2]])
    together = np.asarray(turn(x, positions))
    for b in range(B):
        np.testing.assert_array_equal(together[b : b + 1], turn(x[b : b + 1], positions[b]))
        np.testing.assert_array_equal(together[b : b + 1], turn(x[b : b + 1], positions[b : b + 1]))


def test_one_token_at_a_time_is_the_whole_text():
    x, at = drawn(6, B, T, N, H), np.arange(T)
    steps = [turn(x[:, t : t + 1], at[t : t + 1]) for t in range(T)]
    np.testing.assert_allclose(np.concatenate(steps, axis=1), turn(x, at), rtol=0, atol=1e-6)


# Frequencies
# ---------------------------------------------------------------------------------------------

FEATURES, LENGTH, FACTOR = 64, 2048, 8.0
FREQUENCIES = np.array([10_000.0 ** (-2 * i / FEATURES) for i in range(FEATURES // 2)])
scaled = partial(rope_frequencies, FEATURES, original_length=LENGTH)


def test_frequencies_are_powers_of_the_base():
    np.testing.assert_allclose(rope_frequencies(FEATURES), FREQUENCIES, rtol=1e-5)
    np.testing.assert_allclose(rope_frequencies(6, base=8.0), [1, 1 / 2, 1 / 4], rtol=1e-6)


def test_linear_divides_every_frequency():
    np.testing.assert_allclose(
        scaled(scaling="linear", factor=FACTOR), FREQUENCIES / FACTOR, rtol=1e-5
    )


def test_linear_is_the_position_divided():
    x, slow = drawn(7, 1, 4, 1, FEATURES), scaled(scaling="linear", factor=2.0)
    np.testing.assert_allclose(
        turn(x, np.arange(0, 8, 2), frequencies=slow), turn(x, np.arange(4)), rtol=0, atol=1e-5
    )


def test_ntk_keeps_the_fastest_and_divides_the_slowest():
    ours = np.asarray(scaled(scaling="ntk", factor=FACTOR), np.float64)
    np.testing.assert_allclose(ours[0], FREQUENCIES[0])
    np.testing.assert_allclose(ours[-1], FREQUENCIES[-1] / FACTOR, rtol=1e-5)
    base = 10_000 * FACTOR ** (FEATURES / (FEATURES - 2))
    expected = [base ** (-2 * i / FEATURES) for i in range(FEATURES // 2)]
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_yarn_keeps_the_fast_divides_the_slow_and_ramps_between():
    ours = np.asarray(scaled(scaling="yarn", factor=FACTOR), np.float64)
    turns = LENGTH * FREQUENCIES / (2 * math.pi)
    fast, slow = turns > 32, turns < 1
    assert fast.sum() > 5 and slow.sum() > 5 and (~fast & ~slow).sum() > 5
    np.testing.assert_allclose(ours[fast], FREQUENCIES[fast], rtol=1e-5)
    np.testing.assert_allclose(ours[slow], FREQUENCIES[slow] / FACTOR, rtol=1e-5)
    share = (FREQUENCIES - ours) / (FREQUENCIES - FREQUENCIES / FACTOR)
    between = share[(share > 1e-4) & (share < 1 - 1e-4)]
    np.testing.assert_allclose(np.diff(between), np.diff(between)[0], atol=1e-4)  # a straight line
    assert np.diff(between)[0] > 0


@pytest.mark.parametrize("truncate", [True, False])
def test_the_bounds_of_yarn_are_arguments(truncate):
    low, high = 0.5, 8.0
    ours = np.asarray(
        scaled(scaling="yarn", factor=FACTOR, beta_slow=low, beta_fast=high, truncate=truncate),
        np.float64,
    )
    for i, plain in enumerate(FREQUENCIES):
        first, last = (
            FEATURES * math.log(LENGTH / (2 * math.pi * turns)) / (2 * math.log(10_000.0))
            for turns in (high, low)
        )
        if truncate:
            first, last = math.floor(first), math.ceil(last)
        share = min(max((i - first) / (last - first), 0.0), 1.0)
        expected = plain * (1 - share) + plain / FACTOR * share
        np.testing.assert_allclose(ours[i], expected, rtol=1e-5)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_factor_of_one_changes_nothing(scaling):
    np.testing.assert_allclose(
        scaled(scaling=scaling, factor=1.0), rope_frequencies(FEATURES), rtol=1e-6
    )


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("features", [2, 4, 6, 128])
@pytest.mark.parametrize("length", [7, 2048, 100_000])
def test_scaling_makes_no_pair_faster_nor_slower_than_the_factor_says(scaling, features, length):
    plain = np.asarray(rope_frequencies(features))
    ours = np.asarray(
        rope_frequencies(features, scaling=scaling, factor=FACTOR, original_length=length)
    )
    assert (ours <= plain * (1 + 1e-5)).all()
    assert (ours >= plain / FACTOR * (1 - 1e-5)).all()
    assert (np.diff(ours) < 0).all()


def test_the_temperature_of_yarn():
    assert yarn_temperature(1.0) == 1.0
    assert yarn_temperature(math.e) == pytest.approx(1.1)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_scale_of_a_rotary_multiplies_what_it_turns(dtype):
    x, positions = jnp.asarray(drawn(9, B, T, N, H), dtype), jnp.arange(T)[None]
    plain = Rotary(positions, rope_frequencies(H)).turn(x.astype(jnp.float32))
    with jax.numpy_dtype_promotion("standard"):  # of the dtypes, which are promoted explicitly
        found = Rotary(positions, rope_frequencies(H), scale=0.7).turn(x)
    assert found.dtype == dtype
    right = (0.7 * np.asarray(plain)).astype(dtype).astype(np.float32)
    np.testing.assert_allclose(np.asarray(found, np.float32), right, rtol=1e-2, atol=1e-6)


def test_rotary_is_an_argument_of_transformations():
    """jit, checkpoint, grad, vmap and tree.map; the layout is static in all of them."""
    x, positions = drawn(8, B, T, N, H), jax.device_put(np.arange(B * T).reshape(B, T))
    rotary = Rotary(positions, rope_frequencies(H), "interleaved")
    twice = jax.tree.map(lambda leaf: 2 * leaf, rotary)
    assert twice.layout == "interleaved"
    np.testing.assert_array_equal(twice.positions, 2 * np.asarray(positions))

    def turned(rotary, x):
        return rotary.turn(x)

    @jax.jit
    def run(rotary, twice, x):
        loss = jax.checkpoint(lambda rotary, x: turned(rotary, x).sum())
        stacked = jnp.stack([rotary.positions, twice.positions])
        axes = Rotary(0, None, "interleaved")
        by_rotary = jax.vmap(turned, in_axes=(axes, None))
        return (
            rope(x, rotary.positions, layout="interleaved", frequencies=rotary.frequencies),
            turned(rotary, x),
            jax.checkpoint(turned)(rotary, x),
            by_rotary(Rotary(stacked, rotary.frequencies, "interleaved"), x)[0],
            jax.vmap(turned, in_axes=(None, 0))(rotary, jnp.stack([x, x]))[1],
        ), (jax.grad(loss, argnums=1)(rotary, x), jax.grad(lambda x: rotary.turn(x).sum())(x))

    (expected, *others), gradients = run(rotary, twice, x)
    for other in others:
        np.testing.assert_allclose(other, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(*gradients)
