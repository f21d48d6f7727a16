"""One vector for a text: the same wherever the padding stands and whatever it holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional.pooling import POOLINGS, layer_weighted_pool

pytestmark = pytest.mark.usefixtures("strict")

B, T, D = 5, 7, 3
IS_TOKEN = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1],
        [0, 1, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
    ],
    bool,
)
SLOW = {
    "cls": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
    "mean": lambda rows: sum(rows) / len(rows),
    "max": lambda rows: np.array([max(row[d] for row in rows) for d in range(D)]),
}
# How much of the gradient of each feature goes to each row.
SHARE = {
    "cls": lambda rows: np.eye(len(rows))[[0] * D].T,
    "last": lambda rows: np.eye(len(rows))[[-1] * D].T,
    "mean": lambda rows: np.ones((len(rows), D)) / len(rows),
    "max": lambda rows: np.eye(len(rows))[np.argmax(rows, axis=0)].T,
}


def draw(seed):
    random = np.random.default_rng(seed)
    return random.standard_normal((B, T, D)), random.standard_normal((B, D))


@pytest.fixture(scope="module")
def run():
    """Every pooling's value and gradient, in one compilation."""

    @jax.jit
    def run(x, is_token, cotangent):
        def one(pool):
            y, pull = jax.vjp(lambda x: pool(x, is_token), x)
            return y, pull(cotangent.astype(y.dtype))[0]

        return {name: one(pool) for name, pool in POOLINGS.items()}

    return lambda x, is_token, cotangent: jax.device_get(
        run(jnp.asarray(x, jnp.float32), jnp.array(is_token), jnp.asarray(cotangent, jnp.float32))
    )


def test_every_pooling_has_its_loop_here():
    assert set(SLOW) == set(POOLINGS) == set(SHARE)


@pytest.mark.parametrize("name", SLOW)
def test_value_and_gradient_equal_the_loops(run, name):
    for seed in range(3):
        x, cotangent = draw(seed)
        y, gradient = run(x, IS_TOKEN, cotangent)[name]
        expected, expected_gradient = np.zeros((B, D)), np.zeros((B, T, D))
        for b in range(B):
            if IS_TOKEN[b].any():
                rows = x[b, IS_TOKEN[b]]
                expected[b] = SLOW[name](list(rows))
                expected_gradient[b, IS_TOKEN[b]] = SHARE[name](rows) * cotangent[b]
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e9])
def test_what_stands_in_the_padding_reaches_no_value_and_no_gradient(run, name, poison):
    x, cotangent = draw(0)
    clean = run(x, IS_TOKEN, cotangent)[name]
    dirty = run(np.where(IS_TOKEN[..., None], x, poison), IS_TOKEN, cotangent)[name]
    np.testing.assert_array_equal(clean[0], dirty[0])
    np.testing.assert_array_equal(clean[1], dirty[1])
    assert not dirty[1][~IS_TOKEN].any()


@pytest.mark.parametrize("name", SLOW)
def test_a_row_without_tokens_gives_zeros_and_no_gradient(run, name):
    x, cotangent = draw(1)
    y, gradient = run(x, IS_TOKEN, cotangent)[name]
    assert not y[4].any()
    assert not gradient[4].any()


@pytest.mark.parametrize("name", SLOW)
def test_the_same_tokens_pool_alike_on_either_side_of_the_padding(run, name):
    x, cotangent = draw(2)
    x[2, 4:] = x[1, :3]  # example 1 is padded on the right, example 2 on the left
    y, _ = run(x, IS_TOKEN, cotangent)[name]
    np.testing.assert_allclose(y[1], y[2], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "moves"), [("mean", False), ("max", False), ("cls", True), ("last", True)]
)
def test_mean_and_max_do_not_know_the_order(run, name, moves):
    x, cotangent = draw(3)
    order = np.array([6, 5, 0, 1, 2, 3, 4])
    full = np.ones((B, T), bool)
    y, _ = run(x, full, cotangent)[name]
    other, _ = run(x[:, order], full, cotangent)[name]
    assert (np.abs(y - other).max() > 0.1) == moves


def test_negative_features_have_a_negative_maximum(run):
    x, cotangent = draw(4)
    y, _ = run(-1 - np.abs(x), IS_TOKEN, cotangent)["max"]
    assert (y[:4] <= -1).all()  # not the zeros of the padding


@pytest.mark.usefixtures("mixed_dtypes")
def test_a_mean_of_bfloat16_is_summed_in_float32():
    # A running sum of ones in bfloat16 stops at 256.
    x = jnp.ones((1, 1025, 1), jnp.bfloat16)
    y = jax.jit(POOLINGS["mean"])(x, jnp.ones((1, 1025), bool))
    assert y.dtype == jnp.bfloat16
    assert float(y[0, 0]) == 1.0


def test_the_dtype_is_that_of_the_input():
    x, is_token = jnp.ones((1, 3, 2), jnp.bfloat16), jnp.ones((1, 3), bool)
    with jax.numpy_dtype_promotion("standard"):
        for pool in POOLINGS.values():
            assert jax.eval_shape(pool, x, is_token).dtype == jnp.bfloat16


# Layer-weighted
# ------------------------------------------------------------------------------------------

L = 4


@jax.jit
def weighted(layers, is_token, logits, cotangent):
    y, pull = jax.vjp(
        lambda layers, logits: layer_weighted_pool(layers, is_token, logits), layers, logits
    )
    return y, *pull(cotangent)


def draw_layers(seed):
    random = np.random.default_rng(seed)
    shapes = (L, B, T, D), (L,), (B, D)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_layers_are_pooled_and_weighted_value_and_gradient():
    for seed in range(3):
        layers, logits, cotangent = draw_layers(seed)
        share = np.exp(logits) / np.exp(logits).sum()
        pooled, each = np.zeros((L, B, D)), np.zeros((L, B, T, D))
        for i, b in np.ndindex(L, B):
            if IS_TOKEN[b].any():
                pooled[i, b] = SLOW["mean"](list(layers[i, b, IS_TOKEN[b]]))
                each[i, b, IS_TOKEN[b]] = share[i] * cotangent[b] / IS_TOKEN[b].sum()
        of_share = np.array([np.sum(pooled[i] * cotangent) for i in range(L)])
        expected = (
            np.einsum("l,lbd->bd", share, pooled),
            each,
            share * (of_share - share @ of_share),
        )
        ours = weighted(layers, IS_TOKEN, logits, cotangent)
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_padding_reaches_no_layer_weighted_value_and_no_gradient(poison):
    layers, logits, cotangent = draw_layers(4)
    clean = weighted(layers, IS_TOKEN, logits, cotangent)
    dirty = np.where(IS_TOKEN[..., None], layers, poison).astype(np.float32)
    for one, other in zip(clean, weighted(dirty, IS_TOKEN, logits, cotangent), strict=True):
        np.testing.assert_array_equal(one, other)
    y, d_layers, _ = clean
    assert not y[4].any() and not d_layers[:, 4].any()  # the row without tokens
    assert not d_layers[:, ~IS_TOKEN].any()


def test_a_large_logit_chooses_its_layer():
    layers, _, cotangent = draw_layers(5)
    logits = np.full(L, -50, np.float32)
    logits[2] = 50
    y, *_ = weighted(layers, IS_TOKEN, logits, cotangent)
    np.testing.assert_allclose(
        y, POOLINGS["mean"](jnp.array(layers[2]), jnp.array(IS_TOKEN)), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("odd", [0.0, np.nan, np.inf, -np.inf])
def test_the_first_of_the_largest_is_chosen(odd):
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 3, (5, 37, 11)).astype(np.float32)  # ties everywhere
    x[rng.random(x.shape) < 0.02] = odd
    is_token = jnp.ones(x.shape[:2], bool)
    chosen = jax.jit(jax.grad(lambda x: POOLINGS["max"](x, is_token).sum()))(x)
    np.testing.assert_array_equal(chosen, np.arange(37)[:, None] == x.argmax(axis=1)[:, None])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_entry_is_compared_with_the_maximum(dtype):
    """XLA may compute both again, and round them in two ways."""
    x, is_token = jnp.ones((2, 5, 3), dtype), jnp.ones((2, 5), bool)
    found = jax.make_jaxpr(jax.grad(lambda x: POOLINGS["max"](x, is_token).sum()))(x)
    equal = [eqn for eqn in found.eqns if eqn.primitive.name == "eq"]
    assert all(eqn.invars[0].aval.dtype == jnp.int32 for eqn in equal) and equal


def test_a_text_of_minus_infinity_is_no_padding():
    x = jnp.full((1, 3, 2), -jnp.inf)
    is_token = jnp.array([[False, True, True]])
    assert (POOLINGS["max"](x, is_token) == -jnp.inf).all()
