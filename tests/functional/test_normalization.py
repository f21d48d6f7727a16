"""Layer norm: against NumPy in float64, nnx.LayerNorm; two passes, eps inside the root. RMS and
batch norm: what each is beside it (tests/contracts/test_loops.py has their loops)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.arrays import normal, rounded
from transformer_jax.functional.normalization import (
    BatchStatistics,
    batch_norm,
    batch_statistics,
    layer_norm,
    rms_norm,
    running_statistics,
)

pytestmark = pytest.mark.usefixtures("strict")

B, T, D = 2, 5, 7
EPSILON = 1e-3
ONES, ZEROS = rounded(np.ones(D), np.zeros(D))
statistics_of = jax.jit(batch_statistics)


@jax.jit
def value_and_gradient(x, scale, bias, cotangent):
    def loss(x, scale, bias):
        y = layer_norm(x, scale, bias, epsilon=EPSILON)
        return jnp.sum(y * cotangent), y

    grads, y = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(x, scale, bias)
    return y, *grads


def loops(x, scale, bias, cotangent):
    y, d_x, d_scale = np.zeros_like(x), np.zeros_like(x), np.zeros_like(scale)
    for row in np.ndindex(*x.shape[:-1]):
        mean = sum(x[row]) / D
        variance = sum((value - mean) ** 2 for value in x[row]) / D
        root = np.sqrt(variance + EPSILON)
        normed = (x[row] - mean) / root
        y[row] = scale * normed + bias
        g = cotangent[row] * scale
        d_x[row] = (g - g.mean() - normed * (g * normed).mean()) / root
        d_scale += cotangent[row] * normed
    return y, d_x, d_scale, cotangent.sum((0, 1))


def draw(seed):
    arrays = normal(seed, B, T, D), normal(seed, D), normal(seed + 1, D), normal(seed + 2, B, T, D)
    return arrays, rounded(*arrays)


def test_value_and_gradient_equal_the_loops():
    for seed in range(4):
        arrays, ours = draw(seed)
        for one, other in zip(value_and_gradient(*ours), loops(*arrays), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_value_and_gradient_equal_two_pass_nnx_layer_norm():
    _, (x, scale, bias, cotangent) = draw(1)
    graph, _ = nnx.split(
        nnx.eval_shape(
            lambda: nnx.LayerNorm(D, epsilon=EPSILON, use_fast_variance=False, rngs=nnx.Rngs(0))
        )
    )

    def loss(x, scale, bias):
        state = nnx.State({"scale": nnx.Param(scale), "bias": nnx.Param(bias)})
        y = nnx.merge(graph, state)(x)
        return jnp.sum(y * cotangent), y

    with jax.numpy_dtype_promotion("standard"):
        grads, y = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(x, scale, bias)
    for one, other in zip(value_and_gradient(x, scale, bias, cotangent), (y, *grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_a_large_mean_costs_no_digits():
    """At a mean of 5e3 the one-pass variance E[x^2] - E[x]^2 is off by more than the variance
    itself.
    """
    (small, *_), (_, scale, bias, cotangent) = draw(2)
    shifted = (small + 5000).astype(np.float32)  # what float32 keeps of it
    expected = loops(
        shifted.astype(np.float64), *(np.asarray(a, np.float64) for a in (scale, bias, cotangent))
    )
    for one, other in zip(
        value_and_gradient(shifted, scale, bias, cotangent), expected, strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-3)


def test_shifting_a_row_changes_nothing_and_scaling_it_almost_nothing():
    _, (x, scale, bias, cotangent) = draw(3)
    y = value_and_gradient(x, scale, bias, cotangent)[0]
    shifted = value_and_gradient(x + 7, scale, bias, cotangent)[0]
    np.testing.assert_allclose(shifted, y, rtol=0, atol=1e-5)
    large = value_and_gradient(1e3 * x, scale, bias, cotangent)[0]
    larger = value_and_gradient(1e4 * x, scale, bias, cotangent)[0]
    np.testing.assert_allclose(larger, large, rtol=0, atol=1e-5)


def test_a_constant_row_gives_the_bias_and_a_finite_gradient():
    _, (x, scale, bias, cotangent) = draw(4)
    y, *grads = value_and_gradient(np.full_like(x, 3.0), scale, bias, cotangent)
    np.testing.assert_allclose(y, np.broadcast_to(bias, y.shape), rtol=0, atol=1e-4)
    assert all(np.isfinite(gradient).all() for gradient in grads)


def test_rows_do_not_mix():
    _, (x, scale, bias, cotangent) = draw(5)
    y = value_and_gradient(x, scale, bias, cotangent)[0]
    changed_x = x.copy()  # JAX may still read x, whose memory it shares
    changed_x[0, 1] *= 9
    other = value_and_gradient(changed_x, scale, bias, cotangent)[0]
    changed = np.abs(y - other).max(-1) > 0
    assert changed.sum() == 1 and changed[0, 1]


def test_without_a_bias_none_is_added():
    _, (x, scale, _, cotangent) = draw(6)
    with_zero = value_and_gradient(x, scale, ZEROS, cotangent)[0]
    without = jax.jit(lambda x, scale: layer_norm(x, scale, epsilon=EPSILON))(x, scale)
    np.testing.assert_allclose(without, with_zero, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("mixed_dtypes")
def test_statistics_of_bfloat16_are_float32():
    # 256 + {0, 2, 4, 6}: neither the mean, 259, nor the squares of the deviations sum exactly in
    # bfloat16.
    x = np.array([256.0, 258.0, 260.0, 262.0], jnp.bfloat16)
    y = jax.jit(layer_norm)(x, np.ones(4, np.float32))
    assert y.dtype == jnp.bfloat16
    expected = np.array([-3, -1, 1, 3]) / np.sqrt(5)
    np.testing.assert_allclose(np.asarray(y, np.float32), expected, rtol=2**-8)


@pytest.mark.usefixtures("mixed_dtypes")
def test_float64_stays_float64():
    (x, scale, bias, cotangent), _ = draw(7)
    with jax.enable_x64(True):
        y = jax.jit(lambda *a: layer_norm(*a, epsilon=EPSILON))(x, scale, bias)
        assert y.dtype == jnp.float64
        np.testing.assert_allclose(y, loops(x, scale, bias, cotangent)[0], rtol=0, atol=1e-13)


# RMS norm
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rms():
    return jax.jit(lambda x, scale: rms_norm(x, scale, epsilon=EPSILON))


def test_rms_norm_of_centred_rows_is_their_layer_norm(rms):
    _, (x, scale, _, cotangent) = draw(8)
    centred = x - x.mean(-1, keepdims=True)
    expected = value_and_gradient(centred, scale, ZEROS, cotangent)[0]
    np.testing.assert_allclose(rms(centred, scale), expected, rtol=0, atol=1e-5)
    assert np.abs(rms(x + 1, scale) - rms(x, scale)).max() > 0.1  # it does not centre


def test_rms_norm_gives_rows_of_mean_square_one(rms):
    _, (x, *_) = draw(9)
    large = np.asarray(rms(1e3 * x, ONES))
    np.testing.assert_allclose(np.square(large).mean(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(rms(-1e3 * x, ONES), -large, rtol=0, atol=1e-6)


def test_a_row_of_zeros_stays_zero_with_a_finite_gradient(rms):

    @jax.jit
    def run(x):
        y, pull = jax.vjp(lambda x: rms(x, jnp.ones(D)), x)
        return y, *pull(jnp.ones_like(y))

    y, gradient = run(np.zeros((B, T, D), np.float32))
    assert not np.any(y)
    np.testing.assert_allclose(gradient, EPSILON**-0.5, rtol=1e-5)


@pytest.mark.usefixtures("mixed_dtypes")
def test_mean_squares_of_bfloat16_are_float32():
    x = np.ones((1, 1025), jnp.bfloat16)  # a running sum in bfloat16 stops at 256
    y = jax.jit(rms_norm)(x, np.ones(1025, np.float32))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(y, np.float32), 1)


# Batch norm
# ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def batch():
    """(x, scale, bias, statistics or None) -> batch norm."""
    return jax.jit(
        lambda x, scale, bias, statistics: batch_norm(
            x, scale, bias, statistics=statistics, epsilon=EPSILON
        )
    )


def test_a_batch_norm_has_the_mean_of_the_bias_and_the_deviation_of_the_scale(batch):
    _, (x, scale, bias, _) = draw(10)
    y = np.asarray(batch(1e3 * x, scale, bias, None)).reshape(-1, D)
    np.testing.assert_allclose(y.mean(0), bias, rtol=0, atol=1e-5)
    np.testing.assert_allclose(y.std(0), np.abs(scale), rtol=1e-5)


def test_in_training_every_token_moves_every_other_and_in_evaluation_none(batch):
    """Batch norm fails with padding: the padding is in the statistics."""
    _, (x, scale, bias, _) = draw(11)
    padded = x.copy()
    padded[1, 3:] = 50
    statistics = statistics_of(x)
    for given, moved in ((None, True), (statistics, False)):
        before, after = (np.asarray(batch(x, scale, bias, given)) for x in (x, padded))
        assert (np.abs(before - after)[0].max() > 0.1) == moved
        if not moved:
            np.testing.assert_array_equal(before[0], after[0])
            np.testing.assert_array_equal(before[1, :3], after[1, :3])
    layer = jax.jit(layer_norm)
    before, after = (np.asarray(layer(x, scale)) for x in (x, padded))
    np.testing.assert_array_equal(before[0], after[0])


def test_evaluation_is_the_same_in_any_batch(batch):
    _, (x, scale, bias, _) = draw(12)
    statistics = BatchStatistics(*jax.device_put(rounded(np.arange(D) / 7, 1 + np.arange(D) / 5)))
    together = np.asarray(batch(x, scale, bias, statistics))
    for b in range(B):
        alone = batch(x[b : b + 1], scale, bias, statistics)
        np.testing.assert_allclose(alone, together[b : b + 1], rtol=0, atol=1e-6)


def test_with_its_own_statistics_evaluation_is_training(batch):
    _, (x, scale, bias, _) = draw(13)
    np.testing.assert_allclose(
        batch(x, scale, bias, statistics_of(x)), batch(x, scale, bias, None), rtol=0, atol=1e-5
    )


def test_running_statistics_converge_to_those_of_the_stream():
    mean, deviation = np.linspace(-3, 3, D), np.linspace(0.5, 2, D)
    random = np.random.default_rng(0)
    stream = mean + deviation * random.standard_normal((500, 11, D))

    @jax.jit
    def run(stream):
        start = BatchStatistics(jnp.full(D, 100.0), jnp.full(D, 100.0))
        step = lambda running, x: (running_statistics(running, x, momentum=0.98), None)  # noqa: E731
        return jax.lax.scan(step, start, stream)[0]

    running = jax.device_get(run(*rounded(stream)))
    # About (1 + momentum) / (1 - momentum) = 99 batches of 11 rows count: 5 standard errors of
    # their mean and variance.
    rows = 99 * 11
    np.testing.assert_allclose(
        running.mean, mean, rtol=0, atol=5 * 2 / np.sqrt(rows) + 100 * 0.98**500
    )
    np.testing.assert_allclose(
        running.variance / deviation**2, 1, rtol=0, atol=5 * np.sqrt(2 / rows) + 400 * 0.98**500
    )
    # Unbiased: n - 1 in place of n. The biased one would be 10/11 of it.
    assert abs(np.mean(running.variance / deviation**2) - 1) < 0.05


def test_a_momentum_of_one_learns_nothing_and_of_zero_forgets_all():
    _, (x, *_) = draw(14)
    running = BatchStatistics(*jax.device_put([ZEROS, ONES]))

    @jax.jit
    def run(running, x):
        return [running_statistics(running, x, momentum=momentum) for momentum in (1.0, 0.0)]

    (kept, new), of_x, rows = run(running, x), statistics_of(x), B * T
    np.testing.assert_array_equal(kept.mean, running.mean)
    np.testing.assert_array_equal(kept.variance, running.variance)
    np.testing.assert_allclose(new.mean, of_x.mean, rtol=1e-6)
    biased = np.asarray(of_x.variance)
    np.testing.assert_allclose(new.variance, biased * rows / (rows - 1), rtol=1e-6)


def test_a_large_mean_costs_a_batch_variance_no_digits():
    x = np.random.default_rng(1).standard_normal((101, D)) + 5000
    narrow = x.astype(np.float32)
    variance = statistics_of(narrow).variance
    np.testing.assert_allclose(variance, narrow.astype(np.float64).var(0), rtol=1e-4)


@pytest.mark.usefixtures("mixed_dtypes")
def test_batch_statistics_of_bfloat16_are_float32():
    x = np.ones((1025, 1), jnp.bfloat16)
    statistics = statistics_of(x)
    assert statistics.mean.dtype == statistics.variance.dtype == jnp.float32
    assert np.asarray(statistics.mean) == 1.0
    assert jax.eval_shape(batch_norm, x, ONES[:1]).dtype == jnp.bfloat16
