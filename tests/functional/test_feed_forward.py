"""The feed-forward network is f(x W1 + b1) W2 + b2, the same at every position."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import float32, normal, rounded
from transformer_jax.functional.feed_forward import (
    ACTIVATIONS,
    GATES,
    feed_forward,
    gated_feed_forward,
)

pytestmark = pytest.mark.usefixtures("strict")

B, T, D, F, M = 2, 5, 13, 17, 7


def phi(z):
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def gelu_tanh(z):
    return z / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


# Each activation with its derivative, one number at a time.
FORMULAS = {
    "relu": (lambda z: max(z, 0.0), lambda z: float(z > 0)),
    "gelu": (
        lambda z: z * (1 + math.erf(z / math.sqrt(2))) / 2,
        lambda z: (1 + math.erf(z / math.sqrt(2))) / 2 + z * phi(z),
    ),
    "gelu_tanh": (gelu_tanh, lambda z: (gelu_tanh(z + 1e-5) - gelu_tanh(z - 1e-5)) / 2e-5),
}


def parameters():
    return normal(1, D, F) / 4, normal(2, F), normal(3, F, M) / 4, normal(4, M)


def test_every_activation_has_its_formula_here():
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("activation", FORMULAS)
def test_value_and_gradient_equal_the_formula(activation):
    x, cotangent = normal(5, B, T, D), normal(6, B, T, M)
    w1, b1, w2, b2 = parameters()
    function, slope = map(np.vectorize, FORMULAS[activation])
    before = x @ w1 + b1
    hidden = function(before)
    d_before = (cotangent @ w2.T) * slope(before)
    expected = (
        hidden @ w2 + b2,
        d_before @ w1.T,
        np.einsum("btd,btf->df", x, d_before),
        d_before.sum((0, 1)),
        np.einsum("btf,btm->fm", hidden, cotangent),
        cotangent.sum((0, 1)),
    )

    @jax.jit
    def run(cotangent, *arrays):
        def loss(*arrays):
            y = feed_forward(*arrays, activation=activation)
            return jnp.sum(y * cotangent), y

        grads, y = jax.grad(loss, argnums=tuple(range(5)), has_aux=True)(*arrays)
        return y, *grads

    for one, other in zip(run(*float32(cotangent, x, w1, b1, w2, b2)), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_exact_and_tanh_gelu_differ_where_they_should():
    # x Phi(x) at 2 is 1.9545; the tanh formula says 1.9546.
    @jax.jit
    def run(two, one):
        names = "gelu", "gelu_tanh"
        return [feed_forward(two, one, None, one, None, activation=name)[0, 0] for name in names]

    exact, tanh = map(float, run(*rounded([[2.0]], [[1.0]])))
    assert abs(exact - 1.9544997) < 1e-6
    assert abs(tanh - 1.9545977) < 1e-6


@pytest.fixture(scope="module")
def network():
    weights = float32(*parameters())
    return jax.jit(lambda x: feed_forward(x, *weights, activation="relu"))


def test_positions_do_not_mix(network):
    x, moved = rounded(normal(7, B, T, D), normal(7, B, T, D))
    moved[1, 3] += 1
    changed = np.abs(np.asarray(network(moved)) - network(x)).max(-1) > 0
    assert changed.sum() == 1 and changed[1, 3]


def test_dropout_falls_on_the_hidden_features():
    """With W1 = 1 and W2 = 1 each hidden feature is seen in the output: 0 where dropped, doubled
    where kept.
    """
    x, unit = float32(np.ones((101, 31)), np.eye(31))
    drop = jax.jit(
        lambda key: feed_forward(
            x,
            unit,
            None,
            unit,
            jnp.full(31, 5.0),
            activation="relu",
            dropout_rate=0.5,
            dropout_rng=key,
        )
    )
    y = np.asarray(drop(jax.random.key(0)))
    assert set(np.unique(y)) == {5.0, 7.0}  # the bias of W2 is not dropped
    assert abs((y == 7).mean() - 0.5) < 4 * 0.5 / np.sqrt(x.size)


@pytest.mark.usefixtures("as_users_run_it")
def test_an_unknown_activation_is_named_with_those_that_are_known():
    x = jnp.ones((1, 1))
    with pytest.raises(ValueError, match="one of relu, gelu, gelu_tanh; got 'swish'"):
        feed_forward(x, x, None, x, None, activation="swish")


# Gated
# --------------------------------------------------------------------------------------------------

GATE_FORMULAS = {
    "swiglu": lambda z: z / (1 + math.exp(-z)),
    "geglu": FORMULAS["gelu"][0],
    "geglu_tanh": FORMULAS["gelu_tanh"][0],
}


def test_every_gate_has_its_formula_here():
    assert set(GATE_FORMULAS) == set(GATES)


@pytest.mark.parametrize("gate", GATE_FORMULAS)
def test_a_gate_multiplies_its_function_of_one_product_with_the_other(gate):
    x, gate_kernel, in_kernel, out_kernel = (
        normal(1, B, T, D),
        *(normal(seed, *shape) / 4 for seed, shape in ((2, (D, F)), (3, (D, F)), (4, (F, M)))),
    )
    gate_bias, in_bias, out_bias = normal(5, F), normal(6, F), normal(7, M)
    opened = np.vectorize(GATE_FORMULAS[gate])(x @ gate_kernel + gate_bias)
    expected = (opened * (x @ in_kernel + in_bias)) @ out_kernel + out_bias
    names = ("gate_bias", "in_bias", "out_bias")
    biases = dict(zip(names, float32(gate_bias, in_bias, out_bias), strict=True))
    y = jax.jit(lambda *args: gated_feed_forward(*args, gate=gate, **biases))(
        *float32(x, gate_kernel, in_kernel, out_kernel)
    )
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


def test_a_closed_gate_lets_nothing_through_and_an_open_one_everything():
    """silu(-100) = 0 and silu(100) = 100: the other product is then the output, times 100."""
    x, unit = rounded([[3.0, -2.0]], np.eye(2))
    run = jax.jit(lambda x, *kernels, bias: gated_feed_forward(x, *kernels, gate_bias=bias))
    for bias, through in ((-100.0, 0.0), (100.0, 100.0)):
        y = run(x, 0 * unit, unit, unit, bias=np.full(2, bias, np.float32))
        np.testing.assert_allclose(y, through * x, rtol=1e-6, atol=1e-6)


def test_dropout_falls_on_the_gated_features():
    x, unit = float32(np.ones((101, 31)), np.eye(31))
    drop = jax.jit(
        lambda key: gated_feed_forward(
            x, unit, unit, unit, out_bias=jnp.full(31, 5.0), dropout_rate=0.5, dropout_rng=key
        )
    )
    y = np.asarray(drop(jax.random.key(0)))
    opened = 1 / (1 + math.exp(-1))
    kept = np.abs(y - (5 + 2 * opened)) < 1e-5
    assert ((y == 5) | kept).all()
    assert abs(kept.mean() - 0.5) < 4 * 0.5 / np.sqrt(x.size)


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gelu_of_a_short_dtype_is_exact_to_its_last_digit(dtype):
    z = jnp.linspace(-4, 4, 801).astype(dtype)
    exact = np.array([0.5 * x * math.erfc(-x / math.sqrt(2)) for x in np.asarray(z, np.float64)])
    found = ACTIVATIONS["gelu"](z)
    assert found.dtype == dtype
    error = np.abs(np.asarray(found, np.float64) - exact)
    assert (error <= float(jnp.finfo(dtype).eps) * np.abs(exact) + 3e-7).all()


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize(
    "activation",
    [ACTIVATIONS["gelu"], ACTIVATIONS["gelu_tanh"], *GATES.values()],
    ids=["gelu", "gelu_tanh", *GATES],
)
def test_the_gradient_of_a_short_dtype_keeps_the_argument_alone(activation):
    x = jax.ShapeDtypeStruct((7, 31), jnp.bfloat16)
    kept = jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(activation, x)[1], x))
    assert [(array.shape, array.dtype) for array in kept] == [(x.shape, x.dtype)]
