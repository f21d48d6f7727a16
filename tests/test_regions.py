"""A region embedding is a convolution over one-hot words that padding does not enter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.positions import lookup
from transformer_jax.regions import region_embedding

pytestmark = pytest.mark.usefixtures("strict")

V, B, T, D = 11, 2, 7, 5


def normal(seed, *shape):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


@jax.jit
def value_and_gradient(table, tokens, is_token, cotangent):
    def loss(table):
        x = region_embedding(table, tokens, is_token)
        return jnp.sum(x * cotangent), x

    gradient, x = jax.grad(loss, has_aux=True)(table)
    return x, gradient


def loops(table, tokens, is_token, cotangent):
    width, _, features = table.shape
    x, gradient = np.zeros((*tokens.shape, features)), np.zeros(table.shape)
    for b, t in np.ndindex(*tokens.shape):
        for r in range(width):
            place = t + r - width // 2
            if 0 <= place < tokens.shape[1] and is_token[b, place]:
                x[b, t] += table[r, tokens[b, place]]
                gradient[r, tokens[b, place]] += cotangent[b, t]
    return x, gradient


@pytest.mark.parametrize("width", [1, 3, 5])
def test_value_and_gradient_equal_the_loops(width):
    random = np.random.default_rng(width)
    for seed in range(3):
        table, cotangent = normal(seed, width, V, D), normal(seed, B, T, D)
        tokens, is_token = random.integers(0, V, (B, T)), random.random((B, T)) < 0.7
        ours = value_and_gradient(
            jnp.asarray(table, jnp.float32), tokens, is_token, jnp.asarray(cotangent, jnp.float32)
        )
        for one, other in zip(ours, loops(table, tokens, is_token, cotangent), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def embed():
    table = jnp.asarray(normal(1, 3, V, D), jnp.float32)
    run = jax.jit(region_embedding)
    return lambda tokens, is_token: np.asarray(run(table, jnp.array(tokens), jnp.array(is_token)))


def test_a_region_of_one_is_a_lookup():
    table, tokens = jnp.asarray(normal(1, 1, V, D), jnp.float32), jnp.arange(T)[None]
    regions, _ = value_and_gradient(table, tokens, jnp.ones((1, T), bool), jnp.zeros((1, T, D)))
    np.testing.assert_array_equal(regions, lookup(table[0], tokens))


def test_the_order_of_two_words_shows(embed):
    # "not good" and "good not": the same words, no vector in common.
    not_, good, other = 1, 2, 3
    tokens = [[not_, good, other, other, other, other, other]]
    turned = [[good, not_, other, other, other, other, other]]
    first, second = embed(tokens, np.ones((1, T), bool)), embed(turned, np.ones((1, T), bool))
    assert np.abs(first[0, :2, None] - second[0, None, :2]).max(-1).min() > 0.1
    assert np.abs(first.sum(1) - second.sum(1)).max() > 0.1


def test_what_stands_in_the_padding_reaches_no_token(embed):
    is_token = np.array([[0, 0, 1, 1, 1, 0, 0]], bool)
    tokens = np.array([[5, 6, 1, 2, 3, 7, 8]])
    clean = embed(np.where(is_token, tokens, 0), is_token)
    np.testing.assert_array_equal(embed(tokens, is_token), clean)
    outside = np.where(is_token, tokens, V + 5)  # NaN rows, if they were read
    np.testing.assert_array_equal(embed(outside, is_token), clean)


def test_padding_on_either_side_changes_nothing(embed):
    expected = embed([[0, 0, 1, 2, 3, 0, 0]], np.array([[0, 0, 1, 1, 1, 0, 0]], bool))[:, 2:5]
    for left in range(T - 2):
        tokens, is_token = np.full((1, T), 9), np.zeros((1, T), bool)
        tokens[0, left : left + 3], is_token[0, left : left + 3] = [1, 2, 3], True
        np.testing.assert_allclose(embed(tokens, is_token)[is_token], expected[0], atol=1e-6)
