"""The softmax of attention: that of jax.nn where a row sees anything, zeros where it does not, and
the log of its sum.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import normal
from transformer_jax.attention.softmax import masked_logsumexp, masked_softmax

pytestmark = pytest.mark.usefixtures("strict")

B, S = 5, 7
MASK = np.random.default_rng(0).random((B, S)) < 0.5
MASK[1], MASK[2] = False, True
SEEING = MASK.any(-1)


def drawn(seed, *shape):
    return normal(seed, *shape).astype(np.float32)


@jax.jit
def ours(logits, mask, d_weights, d_sum):
    (weights, total), pull = jax.vjp(
        lambda x: (masked_softmax(x, mask), masked_logsumexp(x, mask)), logits
    )
    return weights, total, *(pull((d_weights * i, d_sum * (1 - i)))[0] for i in (1.0, 0.0))


@jax.jit
def theirs(logits, mask, d_weights, d_sum):
    (weights, total), pull = jax.vjp(
        lambda x: (jax.nn.softmax(x, where=mask), jax.nn.logsumexp(x, axis=-1, where=mask)), logits
    )
    return weights, total, *(pull((d_weights * i, d_sum * (1 - i)))[0] for i in (1.0, 0.0))


def test_value_and_gradient_equal_jax_nn_where_a_row_sees_anything():
    for seed in range(5):
        args = drawn(seed, B, S), MASK, drawn(seed, B, S), drawn(seed, B)
        for one, other in zip(*jax.device_get((ours(*args), theirs(*args))), strict=True):
            np.testing.assert_allclose(one[SEEING], other[SEEING], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hidden", [0.0, np.nan, np.inf, -np.inf, 1e30])
def test_what_is_hidden_reaches_nothing(hidden):
    logits = drawn(1, B, S)
    args = MASK, drawn(2, B, S), drawn(3, B)
    planted = np.where(MASK, logits, np.float32(hidden))
    clean, dirty = jax.device_get((ours(logits, *args), ours(planted, *args)))
    for one, other in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(one, other)
    weights, total, d_weights, d_total = dirty
    assert not weights[~MASK].any() and not d_weights[~MASK].any() and not d_total[~MASK].any()
    np.testing.assert_allclose(weights.sum(-1), SEEING, rtol=1e-6)
    assert total[1] == -np.inf and np.isfinite(total[SEEING]).all()
    assert not d_total[1].any()


def test_the_gradient_of_the_logsumexp_is_the_softmax():
    logits = drawn(4, B, S)
    weights, _, _, gradient = ours(logits, MASK, 0 * logits, np.ones(B, np.float32))
    np.testing.assert_allclose(gradient, weights, rtol=1e-6)


@pytest.mark.parametrize("constant", [50.0, 300.0, -300.0])  # exp(300) is inf, exp(-300) is 0
def test_what_is_added_to_a_row_adds_to_the_logsumexp_alone(constant):
    logits, args = drawn(5, B, S), (MASK, drawn(6, B, S), drawn(7, B))
    before, after = jax.device_get((ours(logits, *args), ours(logits + constant, *args)))
    np.testing.assert_allclose(after[0], before[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(after[1], before[1] + constant, rtol=1e-5)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_logits_give_a_one_and_zeros(size):
    logits = drawn(8, B, S) * np.float32(size)
    weights, total, *gradients = ours(logits, MASK, drawn(9, B, S), drawn(10, B))
    largest = np.where(MASK, logits, -np.inf).max(-1)
    np.testing.assert_array_equal(total, largest)
    np.testing.assert_array_equal(weights, MASK & (logits == largest[:, None]))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_rows_of_no_keys_at_all():

    @jax.jit
    def run(nothing):
        return masked_softmax(nothing, True), masked_logsumexp(nothing, True)

    weights, total = run(np.zeros((B, 0), np.float32))
    assert weights.shape == (B, 0)
    np.testing.assert_array_equal(total, np.full(B, -np.inf))


def test_the_second_derivative_is_that_of_jax_nn():
    logits, direction = drawn(11, S), drawn(12, S)
    mask = MASK[0]

    def curvature(softmax, logsumexp):
        def loss(x):
            return jnp.sum(softmax(x) * direction) + logsumexp(x)

        return jax.jit(jax.hessian(loss))(logits)

    mine = curvature(lambda x: masked_softmax(x, mask), lambda x: masked_logsumexp(x, mask))
    nn = curvature(
        lambda x: jax.nn.softmax(x, where=mask), lambda x: jax.nn.logsumexp(x, where=mask)
    )
    np.testing.assert_allclose(mine, nn, rtol=1e-5, atol=1e-6)
    assert np.abs(nn).max() > 0.01
