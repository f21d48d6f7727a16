"""linear is x W + b, with heads as axes of the kernel."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import normal, rounded
from transformer_jax.functional.linear import linear

pytestmark = pytest.mark.usefixtures("strict")

B, T, D, F, N, H = 2, 5, 13, 17, 6, 3


@pytest.mark.parametrize(
    ("x", "kernel", "axes", "einsum"),
    [
        ((B, T, D), (D, F), 1, "btd,df->btf"),
        ((B, T, D), (D, N, H), 1, "btd,dnh->btnh"),
        ((B, T, N, H), (N, H, D), 2, "btnh,nhd->btd"),
        ((D,), (D, F), 1, "d,df->f"),
    ],
)
def test_value_and_gradient_equal_the_sum_over_products(x, kernel, axes, einsum):
    inputs, output = einsum.split("->")
    left, right = inputs.split(",")
    arrays = normal(1, *x), normal(2, *kernel), normal(3, *kernel[axes:])
    y = np.einsum(einsum, *arrays[:2]) + arrays[2]
    cotangent = normal(4, *y.shape)
    expected = (
        y,
        np.einsum(f"{output},{right}->{left}", cotangent, arrays[1]),
        np.einsum(f"{left},{output}->{right}", arrays[0], cotangent),
        cotangent.sum(tuple(range(len(x) - axes))),
    )

    @jax.jit
    def run(*arrays):
        def loss(*arrays):
            y = linear(*arrays, axes=axes)
            return jnp.sum(y * cotangent.astype(np.float32)), y

        grads, y = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*arrays)
        return y, *grads

    ours = run(*rounded(*arrays))
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_without_a_bias_none_is_added():
    x, kernel = rounded(normal(1, T, D), normal(2, D, F))
    np.testing.assert_allclose(jax.jit(linear)(x, kernel), x @ kernel, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("mixed_dtypes")
def test_bfloat16_sums_in_float32_and_adds_the_bias_before_rounding():
    x, kernel = np.ones((1, 1025), jnp.bfloat16), np.ones((1025, 1), jnp.bfloat16)
    y = jax.jit(linear)(x, kernel, np.full(1, -1024.0, jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    # 1025 is no bfloat16: rounded before the bias it would be 1024, and the result 0.
    assert np.asarray(y) == 1.0


@pytest.mark.usefixtures("mixed_dtypes")
def test_float64_stays_float64():
    with jax.enable_x64(True):
        y = jax.jit(linear)(normal(1, T, D), normal(2, D, F))
        assert y.dtype == jnp.float64
        np.testing.assert_allclose(y, normal(1, T, D) @ normal(2, D, F), rtol=0, atol=1e-13)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("x", "kernel", "axes"),
    [((T, D), (F, D), 1), ((T, N, H), (N, D, H), 2), ((T, N * H), (N, H, D), 2)],
)
def test_axes_that_do_not_meet_are_named(x, kernel, axes):
    with pytest.raises(ValueError, match=rf"last {axes} of the axes of x, .*must equal"):
        jax.eval_shape(partial(linear, axes=axes), *rounded(np.ones(x), np.ones(kernel)))
