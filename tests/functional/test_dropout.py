"""Dropout: the rate, the expectation, and a generator that is Threefry, checked bit by bit and by
its statistics.

Every bound is four standard errors of a test that draws the same numbers each time it runs.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from tests.helpers.arrays import jax_normal
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.masks import causal
from transformer_jax.functional.dropout import (
    dropout,
    dropout_weights,
    keep,
    keep_weights,
    random_words,
)

pytestmark = pytest.mark.usefixtures("strict")

# By the import system: `transformer_jax.functional.dropout`, the attribute, is the function.
FILE = sys.modules["transformer_jax.functional.dropout"]
SHAPE = (997, 1009)
SIZE = SHAPE[0] * SHAPE[1]


@pytest.fixture(scope="module")
def words():
    return jax.jit(random_words, static_argnums=1)


def uniform(words):
    """The words as numbers with mean 0 and variance 1."""
    return (np.asarray(words, np.float64).ravel() / 2**32 - 0.5) * np.sqrt(12)


def assert_uncorrelated(x, y):
    assert abs(np.mean(x * y)) < 4 / np.sqrt(len(x))


# The rate and the expectation
# -------------------------------------------------------------------------------


def test_the_share_of_dropped_elements_is_the_rate():
    rates = (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
    run = jax.jit(lambda key: [keep(key, rate, SHAPE).mean(dtype=jnp.float32) for rate in rates])
    for seed in range(3):
        for rate, kept in zip(rates, run(jax.random.key(seed)), strict=True):
            assert abs(kept - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / SIZE), rate


def test_kept_elements_are_scaled_up_and_the_mean_is_kept():
    x = jax_normal(0, 31)
    keys = jax.random.split(jax.random.key(0), 4001)
    rate = 0.3
    y = np.asarray(jax.jit(jax.vmap(lambda key: dropout(x, rate, key)))(keys))
    kept = y != 0
    np.testing.assert_allclose(y[kept], np.broadcast_to(x / 0.7, y.shape)[kept], rtol=1e-6)
    error = np.abs(x) * np.sqrt(rate / (1 - rate) / len(keys))
    assert (np.abs(y.mean(0) - x) < 4.5 * error).all()


def test_dropout_scale(monkeypatch):
    kept = jnp.array([True, False, True, False])
    monkeypatch.setattr(FILE, "keep", lambda rng, rate, shape: kept)
    y = dropout(jnp.array([0.25, 0.26, 0.25, 0.24]), 0.5, jax.random.key(0))
    np.testing.assert_array_equal(y, [0.5, 0, 0.5, 0])


def test_the_gradient_is_dropped_with_the_value():
    x = jax_normal(1, SHAPE[0])

    @jax.jit
    def run(x, key):
        y, pull = jax.vjp(lambda x: dropout(x, 0.25, key), x)
        return y, pull(jnp.ones_like(x))[0]

    y, gradient = run(x, jax.random.key(2))
    np.testing.assert_allclose(gradient, np.where(y != 0, 1 / 0.75, 0), rtol=1e-6)


def test_nan_in_a_dropped_element_is_dropped():
    x = jax.device_put(np.full(SHAPE[:1], np.nan, np.float32))
    y = np.asarray(jax.jit(lambda key: dropout(x, 0.5, key))(jax.random.key(0)))
    assert (y == 0).any()


def test_without_a_key_nothing_happens():
    x = jnp.arange(7.0)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, None) is x


@pytest.mark.usefixtures("as_users_run_it")
def test_a_key_without_a_rate_is_a_mistake():
    with pytest.raises(ValueError, match="the dropout rate is 0: pass a rate, or None for the key"):
        dropout(jnp.ones(3), 0.0, jax.random.key(0))


def test_a_key_gives_one_mask_jitted_or_not():
    x = jax.device_put(np.ones(SHAPE[:1], np.float32))
    run = jax.jit(lambda key: dropout(x, 0.5, key))
    one, again, other = (np.asarray(run(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one, dropout(x, 0.5, jax.random.key(0)))
    assert (one != other).any()


def test_old_and_new_style_keys_give_the_same_mask(words):
    np.testing.assert_array_equal(
        words(jax.random.PRNGKey(5), (11,)), words(jax.random.key(5), (11,))
    )


def test_the_dtype_is_that_of_the_input():
    x = jax.device_put(np.ones(31, jnp.bfloat16))
    y = jax.jit(lambda key: dropout(x, 0.5, key))(jax.random.key(0))
    assert y.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(y, np.float32))) == {0.0, 2.0}


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("rate", [-0.01, 1.0, 2.0, float("nan"), float("inf")])
@pytest.mark.parametrize("key", [None, 0], ids=["evaluation", "training"])
def test_a_rate_outside_zero_to_one_is_rejected(rate, key):
    key = None if key is None else jax.random.key(key)
    with pytest.raises(ValueError, match=r"dropout rate must be in \[0, 1\); got"):
        dropout(jnp.ones(3), rate, key)


def test_a_rate_next_to_one_drops_nearly_everything(words):
    """The largest threshold fits into 32 bits."""
    run = jax.jit(lambda key: keep(key, 1 - 2**-40, (SHAPE[0],)))
    assert not run(jax.random.key(0)).any()


def test_a_causal_zero_is_never_unmasked():
    query = jax_normal(0, 2, 13, 3, 5)

    @jax.jit
    def run(key):
        return dot_product_attention(
            *[query] * 3, mask=causal(), dropout_rate=0.4, dropout_rng=key, return_weights=True
        )[1]

    hidden = ~np.tri(13, dtype=bool)
    for seed in range(20):
        assert not np.asarray(run(jax.random.key(seed)))[..., hidden].any()


# The generator
# ----------------------------------------------------------------------------------------------


def test_twenty_rounds_are_the_threefry_of_jax(monkeypatch):
    key = jax.random.bits(jax.random.key(7), (2,))
    counter = jnp.asarray([0, 1, 2, 97, 2**31, 2**32 - 1], jnp.uint32)
    theirs = threefry_2x32(key, jnp.concatenate([counter, jnp.zeros_like(counter)]))  # both words
    monkeypatch.setattr(FILE, "ROUNDS", 20)
    ours = FILE._threefry(key[0], key[1], counter, jnp.zeros_like(counter))
    np.testing.assert_array_equal(jnp.concatenate(ours), theirs)


@pytest.mark.parametrize(("rounds", "word"), [(13, 0x9D1C5EC6), (20, 0x6B200159)])
def test_the_known_answers_of_random123_for_zeros(monkeypatch, rounds, word):
    """The published vectors of Salmon et al. (kat_vectors in Random123): counter 0 under key 0."""
    monkeypatch.setattr(FILE, "ROUNDS", rounds)
    zero = jnp.uint32(0)
    assert int(FILE._threefry(zero, zero, jnp.zeros(1, jnp.uint32), zero)[0][0]) == word


def test_thirteen_rounds_are_run():
    assert FILE.ROUNDS == 13  # the fewest that pass BigCrush (Salmon et al., table 2)


def test_words_are_numbered_along_all_axes(words):
    key = jax.random.key(3)
    flat = words(key, (2 * 3 * 5 * 7,))
    np.testing.assert_array_equal(words(key, (2, 3, 5, 7)), flat.reshape(2, 3, 5, 7))
    assert len(np.unique(flat)) == flat.size


def test_words_are_uniform(words):
    drawn = np.asarray(words(jax.random.key(11), SHAPE)).ravel()
    for bit in range(32):
        share = np.mean(drawn >> bit & 1)
        assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(SIZE), bit
    counts = np.bincount(drawn >> 24, minlength=256)
    chi_square = np.sum((counts - SIZE / 256) ** 2) / (SIZE / 256)
    assert abs(chi_square - 255) < 4 * np.sqrt(2 * 255)


def test_neighbours_do_not_correlate(words):
    drawn = uniform(words(jax.random.key(0), SHAPE))
    for distance in (1, 2, 7, SHAPE[1]):
        assert_uncorrelated(drawn[:-distance], drawn[distance:])


def test_keys_do_not_correlate(words):
    """Split, folded in, and the keys of consecutive steps and seeds."""
    root = jax.random.key(0)
    keys = [
        root,
        *jax.random.split(root),
        *(
            jax.random.fold_in(root, step) for step in (2, 3, 4)
        ),  # 0 and 1 are the keys of the split
        jax.random.key(1),
        jax.random.key(2),
    ]
    drawn = [uniform(words(key, SHAPE)) for key in keys]
    # An element with itself and with its neighbour under the other key.
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert_uncorrelated(one, other)
            assert_uncorrelated(one[1:], other[:-1])


def test_the_first_words_of_consecutive_keys_are_uniform():
    """One element over many steps: what a single weight sees during training."""
    root = jax.random.key(0)
    steps = jnp.arange(20_011)
    one = jax.vmap(lambda step: random_words(jax.random.fold_in(root, step), (2,)))
    drawn = np.asarray(jax.jit(one)(steps))
    first, second = uniform(drawn[:, 0]), uniform(drawn[:, 1])
    assert abs(first.mean()) < 4 / np.sqrt(len(steps))
    assert_uncorrelated(first, second)
    assert_uncorrelated(first[:-1], first[1:])


# The weights of attention
# -----------------------------------------------------------------------------------

WEIGHTS = (3, 5, 29, 31)


@pytest.fixture(scope="module")
def kept():
    """Return which weights of [B, N, T, S] are kept, by their indices."""
    run = jax.jit(keep_weights, static_argnums=1)
    return lambda key, rate, *indices: np.asarray(run(key, rate, *indices))


def indices(shape):
    return [np.arange(size) for size in shape]


def test_a_weight_is_dropped_by_its_own_indices_alone(kept):
    """Any part of the weights, asked for in any order, is that part of the whole."""
    key = jax.random.key(3)
    whole = kept(key, 0.4, *indices(WEIGHTS))
    rng = np.random.default_rng(0)
    for _ in range(5):
        part = [rng.permutation(size)[:3] for size in WEIGHTS]
        np.testing.assert_array_equal(kept(key, 0.4, *part), whole[np.ix_(*part)])


def test_a_longer_text_and_a_larger_batch_drop_the_same_weights_of_the_part_they_share():
    key, query = jax.random.key(1), np.asarray(jax_normal(0, 2, 7, 2, 3))

    def dropped(query):
        return dot_product_attention(
            query, query, query, dropout_rate=0.5, dropout_rng=key, return_weights=True
        )[1]

    whole = np.asarray(jax.jit(dropped)(query)) == 0
    part = np.asarray(jax.jit(dropped)(query[:1, :4])) == 0
    np.testing.assert_array_equal(part, whole[:1, :, :4, :4])


def test_the_share_of_dropped_weights_is_the_rate(kept):
    """At many rates, over all weights and for every example, head, query and key."""
    for seed, rate in enumerate((0.01, 0.1, 0.3, 0.5, 0.9)):
        drawn = kept(jax.random.key(seed), rate, *indices((4, 6, 101, 103)))
        for axes in ((0, 1, 2, 3), (1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)):
            n = np.prod([drawn.shape[axis] for axis in axes])
            worst = np.abs(drawn.mean(axis=axes) - (1 - rate)).max()
            # 4 sigma for one number, 5 for the worst of hundreds.
            assert worst < (4 if len(axes) == 4 else 5) * np.sqrt(rate * (1 - rate) / n), (
                rate,
                axes,
            )


def test_examples_heads_queries_and_keys_do_not_correlate(kept):
    drawn = kept(jax.random.key(0), 0.5, *indices((4, 6, 101, 103))) * 2.0 - 1.0
    for axis in range(4):
        for step in (1, 2, 3):
            lower = np.take(drawn, np.arange(drawn.shape[axis] - step), axis)
            upper = np.take(drawn, np.arange(step, drawn.shape[axis]), axis)
            assert_uncorrelated(lower.ravel(), upper.ravel())
    # (query, key) against (key, query), (example, head) against (head, example); the diagonal is
    # itself.
    i, j = np.triu_indices(101, 1)
    assert_uncorrelated(drawn[..., i, j].ravel(), drawn[..., j, i].ravel())
    i, j = np.triu_indices(4, 1)
    assert_uncorrelated(drawn[i, j].ravel(), drawn[j, i].ravel())


def test_layers_steps_and_seeds_do_not_correlate(kept):
    """Keys as a training step draws them: folded by step, split by layer, neighbouring seeds."""
    keys = [jax.random.key(0), jax.random.key(1), *jax.random.split(jax.random.key(0), 3)]
    keys += [jax.random.fold_in(jax.random.key(0), step) for step in (5, 6)]
    drawn = [kept(key, 0.5, *indices((2, 3, 101, 103))).ravel() * 2.0 - 1.0 for key in keys]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert_uncorrelated(one, other)


def test_the_mask_of_weights_is_not_stored():
    """It is fused into what uses it: no array of words outlives the loop that makes them."""
    x = jnp.ones((1, 2, 256, 256))
    run = jax.jit(lambda x, key: dropout_weights(x, 0.1, key))
    memory = run.lower(x, jax.random.key(0)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < x.size  # a mask of bytes would be as large
