"""Layer norm: against NumPy in float64, nnx.LayerNorm; two passes, eps inside the root."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.normalization import layer_norm

pytestmark = pytest.mark.usefixtures("strict")

B, T, D = 2, 5, 7
EPSILON = 1e-3


def normal(seed, *shape):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


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
    return arrays, [jnp.asarray(x, jnp.float32) for x in arrays]


def test_value_and_gradient_equal_the_loops():
    for seed in range(4):
        arrays, ours = draw(seed)
        for one, other in zip(value_and_gradient(*ours), loops(*arrays), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_value_and_gradient_equal_two_pass_nnx_layer_norm():
    _, (x, scale, bias, cotangent) = draw(1)
    norm = nnx.LayerNorm(D, epsilon=EPSILON, use_fast_variance=False, rngs=nnx.Rngs(0))
    graph, _ = nnx.split(norm)

    def loss(x, scale, bias):
        state = nnx.State({"scale": nnx.Param(scale), "bias": nnx.Param(bias)})
        y = nnx.merge(graph, state)(x)
        return jnp.sum(y * cotangent), y

    with jax.numpy_dtype_promotion("standard"):
        grads, y = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(x, scale, bias)
    for one, other in zip(value_and_gradient(x, scale, bias, cotangent), (y, *grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_a_large_mean_costs_no_digits():
    """At a mean of 5e3 the one-pass variance E[x^2] - E[x]^2 is off by more than the variance itself."""
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
    y, *grads = value_and_gradient(jnp.full_like(x, 3.0), scale, bias, cotangent)
    np.testing.assert_allclose(y, np.broadcast_to(bias, y.shape), rtol=0, atol=1e-4)
    assert all(np.isfinite(gradient).all() for gradient in grads)


def test_rows_do_not_mix():
    _, (x, scale, bias, cotangent) = draw(5)
    y = value_and_gradient(x, scale, bias, cotangent)[0]
    other = value_and_gradient(x.at[0, 1].multiply(9.0), scale, bias, cotangent)[0]
    changed = np.abs(y - other).max(-1) > 0
    assert changed.sum() == 1 and changed[0, 1]


def test_without_a_bias_none_is_added():
    _, (x, scale, _, cotangent) = draw(6)
    with_zero = value_and_gradient(x, scale, jnp.zeros(D), cotangent)[0]
    without = jax.jit(lambda x: layer_norm(x, scale, epsilon=EPSILON))(x)
    np.testing.assert_allclose(without, with_zero, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("mixed_dtypes")
def test_statistics_of_bfloat16_are_float32():
    # 256 + {0, 2, 4, 6}: neither the mean, 259, nor the squares of the deviations sum exactly in bfloat16.
    x = jnp.array([256.0, 258.0, 260.0, 262.0], jnp.bfloat16)
    y = jax.jit(layer_norm)(x, jnp.ones(4))
    assert y.dtype == jnp.bfloat16
    expected = np.array([-3, -1, 1, 3]) / np.sqrt(5)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=2**-8)


@pytest.mark.usefixtures("mixed_dtypes")
def test_float64_stays_float64():
    (x, scale, bias, cotangent), _ = draw(7)
    with jax.enable_x64(True):
        y = jax.jit(lambda *a: layer_norm(*a, epsilon=EPSILON))(*map(jnp.array, (x, scale, bias)))
        assert y.dtype == jnp.float64
        np.testing.assert_allclose(y, loops(x, scale, bias, cotangent)[0], rtol=0, atol=1e-13)
