"""A region embedding is a convolution over one-hot words that padding does not enter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import normal, rounded
from transformer_jax.functional.positions import lookup
from transformer_jax.functional.regions import max_patches, region_embedding, to_front

pytestmark = pytest.mark.usefixtures("strict")

V, B, T, D = 11, 2, 7, 5


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
        narrow = rounded(table, cotangent)
        ours = value_and_gradient(narrow[0], tokens, is_token, narrow[1])
        for one, other in zip(ours, loops(table, tokens, is_token, cotangent), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def embed():
    (table,), run = rounded(normal(1, 3, V, D)), jax.jit(region_embedding)
    return lambda tokens, is_token: np.asarray(run(table, np.asarray(tokens), is_token))


def test_an_unknown_token_gives_nan_in_every_place(embed):
    for unknown in (-1, V, V + T):
        tokens = np.where(np.arange(T) == 3, unknown, np.arange(T))[None]
        is_nan = np.isnan(embed(tokens, np.ones((1, T), bool))).all(axis=-1)[0]
        np.testing.assert_array_equal(np.flatnonzero(is_nan), [2, 3, 4])


@pytest.mark.parametrize("size", [100, 128, 300])  # an int8 counts to 127
def test_ids_may_be_int8(size):
    run, is_token = jax.jit(region_embedding), np.ones((1, T), bool)
    (table,) = rounded(normal(1, 3, size, D))
    tokens = np.arange(T)[None]
    known = run(table, tokens, is_token)
    assert np.isfinite(known).all()
    np.testing.assert_array_equal(run(table, tokens.astype(np.int8), is_token), known)


def test_the_gradient_of_a_bfloat16_table_is_one_float32_array():
    table, tokens = jnp.ones((3, 500, 64), jnp.bfloat16), jnp.zeros((1, T), jnp.int32)
    in_float32 = 4 * table.size

    def loss(table):
        x = region_embedding(table, tokens, jnp.ones((1, T), bool))
        return (x.astype(jnp.float32) ** 2).sum()

    compiled = jax.jit(jax.grad(loss)).lower(table).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5 * in_float32


def test_a_region_of_one_is_a_lookup():
    table, cotangent = rounded(normal(1, 1, V, D), np.zeros((1, T, D)))
    tokens = np.arange(T)[None]
    regions, _ = value_and_gradient(table, tokens, np.ones((1, T), bool), cotangent)
    np.testing.assert_array_equal(regions, jax.jit(lookup)(table[0], tokens))


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


def test_real_tokens_come_to_the_front_in_their_order():
    tokens = np.array([[9, 1, 9, 2, 3], [1, 2, 3, 4, 5], [9, 9, 9, 9, 9]])
    is_token = np.array([[0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
    moved, real = jax.device_get(jax.jit(to_front)(tokens, is_token))
    np.testing.assert_array_equal(real.sum(-1), is_token.sum(-1))
    for before, mask, after, now in zip(tokens, is_token, moved, real, strict=True):
        np.testing.assert_array_equal(before[mask], after[now])
        np.testing.assert_array_equal(now, np.sort(mask)[::-1])


@pytest.mark.parametrize("width", [1, 2, 3, 7, 9])
def test_a_patch_has_the_largest_of_its_real_neighbours(width):
    """Against loops, value and gradient; negative values and NaN in the padding included."""
    is_token = np.array([[1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 1, 1, 0]], bool)
    (x,) = rounded(np.where(is_token[..., None], normal(1, B, T, D) - 2, np.nan))
    P = -(-T // width)
    (cotangent,) = rounded(normal(2, B, P, D))

    @jax.jit
    def both(x):
        patches, pull, is_patch = jax.vjp(
            lambda x: max_patches(x, jnp.array(is_token), width), x, has_aux=True
        )
        return patches, is_patch, *pull(cotangent)

    patches, is_patch, gradient = jax.device_get(both(x))
    values, slope = np.asarray(x), np.zeros(x.shape, np.float32)
    expected = np.zeros((B, P, D), np.float32)
    for b, p in np.ndindex(B, P):
        real = [t for t in range(p * width, min(T, (p + 1) * width)) if is_token[b, t]]
        assert bool(is_patch[b, p]) == bool(real)
        for d in range(D) if real else ():
            best = max(real, key=lambda t: float(values[b, t, d]))
            expected[b, p, d] = values[b, best, d]
            slope[b, best, d] = cotangent[b, p, d]
    np.testing.assert_array_equal(patches, expected)
    np.testing.assert_array_equal(gradient, slope)
