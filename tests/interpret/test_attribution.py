"""Integrated gradients add up and are those of slow sums; a presence of 1 changes nothing."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.functional.normalization import layer_norm
from transformer_jax.functional.regions import region_embedding, to_front, weaken
from transformer_jax.interpret.attribution import (
    NODES,
    integrated_gradients,
    log_odds,
    nodes_and_weights,
    values_and_gradients,
)
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    TextEncoderConfig,
)
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.embeddings import BertEmbedding
from transformer_jax.nn.parameters import AbstractRngs

pytestmark = pytest.mark.usefixtures("strict")

V, T, C = 11, 7, 3
STACK = StackConfig(num_layers=1, embed_dim=12, num_heads=2, hidden_dim=5, activation="gelu")
TEXT = TextEncoderConfig(V, 8, STACK)
REGIONS = {"region_width": 3, "region_features": 5}
MODELS = {
    "tokens": (TextClassifier, ClassifierConfig(V, 8, C, STACK, pooling=("mean",))),
    "regions": (TextClassifier, ClassifierConfig(V, 8, C, STACK, pooling=("mean",), **REGIONS)),
    "patches": (TextClassifier, ClassifierConfig(V, 8, C, STACK, **REGIONS, patch_width=2)),
    "n-grams": (TextClassifier, ClassifierConfig(V, 8, C, STACK, ngrams=3, ngram_bits=6)),
    "encoder": (EncoderClassifier, EncoderClassifierConfig(TEXT, C)),
    "passages": (
        EncoderClassifier,
        EncoderClassifierConfig(replace(TEXT, max_length=3), C, "mean", None),
    ),
}
# Rows that are looked up: a table of one, regions of three for the encoder and three beside it; of
# n-grams both tables, and squares.
PRODUCTS = {"tokens": 1, "regions": 6, "patches": 3, "n-grams": 4, "encoder": 1, "passages": 1}
TOKENS = np.array([[0, 3, 5, 3, 9, 1, 0]], np.int32)
IS_TOKEN = np.array([[False, True, True, True, True, True, False]])


@cache
def parts(name):
    """The graph of a model and the shapes of its parameters."""
    kind, config = MODELS[name]
    return nnx.split(nnx.eval_shape(lambda: kind(config, rngs=AbstractRngs())), nnx.Param)


def drawn(name, seed, dtype=np.float32):
    random, shapes = np.random.default_rng(seed), parts(name)[1]
    return jax.tree.map(lambda leaf: (random.standard_normal(leaf.shape) / 2).astype(dtype), shapes)


@cache
def compiled(name):
    graph = parts(name)[0]

    @jax.jit
    def logits(params, tokens, is_token, presence=None):
        return nnx.merge(graph, params)(tokens, is_token, presence=presence)

    @jax.jit
    def evaluate(params, tokens, is_token, index, points):
        rows = [jnp.repeat(x, len(points), axis=0) for x in (tokens, is_token)]
        return values_and_gradients(
            lambda x: log_odds(logits(params, *rows, presence=x), index), points
        )

    return logits, evaluate


def attributed(name, params, index=1, dtype=np.float32, **options):
    evaluate = partial(compiled(name)[1], params, TOKENS, IS_TOKEN, index)
    return integrated_gradients(evaluate, np.ones(T, dtype), **options)


# The integral.


def test_the_shares_of_a_linear_function_are_its_terms():
    weights, x = np.array([3.0, -1.0, 0.5], np.float32), np.array([2.0, 4.0, -6.0], np.float32)
    evaluate = partial(values_and_gradients, lambda points: points @ weights + 7)
    found = integrated_gradients(evaluate, x)
    np.testing.assert_allclose(found.values, weights * x, rtol=1e-6)
    assert (found.f_of_all, found.f_of_nothing, found.nodes) == (6.0, 7.0, NODES)
    assert found.gap == pytest.approx(0, abs=1e-6) and found.is_complete


def test_the_shares_of_a_sigmoid_are_its_rise_by_the_terms_of_its_sum():
    """Along the way df/dx_t = w_t s'(alpha w x), so a_t = (w_t x_t / w x) (s(w x) - s(0))."""
    terms = np.array([3.0, -1.0, 0.5], np.float32)
    evaluate = partial(values_and_gradients, lambda points: jax.nn.sigmoid(points @ terms))
    found = integrated_gradients(evaluate, np.ones(3, np.float32))
    rise = 1 / (1 + np.exp(-terms.sum())) - 0.5
    np.testing.assert_allclose(found.values, terms / terms.sum() * rise, rtol=1e-5)


def test_nodes_are_doubled_until_the_gap_is_closed_and_not_beyond():
    """A step is what no polynomial follows: f rises by 1 within a hundredth of the way."""
    step = lambda x: jax.nn.sigmoid(500 * (x.sum(axis=1) - 0.612))  # noqa: E731
    evaluate = jax.jit(partial(values_and_gradients, step))
    x = np.ones(1, np.float32)
    found = integrated_gradients(evaluate, x, limit=4096)
    assert found.is_complete and found.nodes > NODES and abs(found.gap) <= 0.01
    before = integrated_gradients(evaluate, x, limit=found.nodes - 1)
    assert not before.is_complete and before.nodes == found.nodes // 2
    assert before.gap == pytest.approx(before.values.sum() - 1, abs=1e-6)
    assert abs(before.gap) > 0.01


def test_a_gap_counts_against_the_difference_or_a_tenth():
    def of(difference, gap):
        def evaluate(points):
            return difference * points[:, 0], jnp.full_like(points, difference + gap)

        return integrated_gradients(evaluate, np.ones(1, np.float32), limit=8)

    assert of(5.0, 0.04).is_complete and not of(5.0, 0.06).is_complete
    assert of(-5.0, 0.04).is_complete and not of(-5.0, -0.06).is_complete
    assert of(0.0, 0.0009).is_complete and not of(0.0, 0.0011).is_complete
    assert not of(float("nan"), 0.0).is_complete


@pytest.mark.parametrize("count", [1, 4, 8])
def test_nodes_integrate_the_powers_that_they_should(count):
    nodes, weights = nodes_and_weights(count)
    for power in range(2 * count):
        assert weights @ nodes**power == pytest.approx(1 / (power + 1), rel=1e-10)
    assert weights @ nodes ** (2 * count) != pytest.approx(1 / (2 * count + 1), rel=1e-10)


def test_log_odds_are_those_of_the_softmax():
    logits = np.random.default_rng(0).normal(0, 3, (4, C)).astype(np.float32)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    compiled_log_odds = jax.jit(log_odds)
    for index in range(C):
        found = compiled_log_odds(logits, index)
        np.testing.assert_allclose(found, np.log(p / (1 - p))[:, index], rtol=1e-5)
    two = compiled_log_odds(logits[:, :2], 0)
    np.testing.assert_allclose(two, logits[:, 0] - logits[:, 1], rtol=1e-6)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: log_odds(jnp.ones((2, 1)), 0), ValueError, "two classes or more; got the shape"),
        (lambda: log_odds(jnp.ones((2, 2), int), 0), TypeError, "logits must be floating point"),
        (lambda: integrated_gradients(None, np.ones(3), limit=7), ValueError, "8 or more; got 7"),
        (lambda: integrated_gradients(None, np.ones(3), tolerance=0.0), ValueError, "above 0"),
        (lambda: integrated_gradients(None, np.ones((1, 3))), ValueError, "the axes [T]"),
    ],
)
def test_a_mistake_says_what_was_expected(call, kind, message):
    with pytest.raises(kind) as told:
        call()
    assert message in str(told.value) and "\n" not in str(told.value)


# A presence in the models.


def test_in_a_region_each_neighbour_has_its_own_presence():
    random = np.random.default_rng(0)
    table = random.standard_normal((3, V, 5)).astype(np.float32)
    presence = random.random((1, T)).astype(np.float32)
    found = jax.jit(region_embedding)(table, TOKENS, IS_TOKEN, presence)
    expected = np.zeros((T, 5))
    for t, r in np.ndindex(T, 3):
        place = t + r - 1
        if 0 <= place < T and IS_TOKEN[0, place]:
            expected[t] += presence[0, place] * table[r, TOKENS[0, place]]
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_the_presence_of_padding_is_not_read_even_where_its_row_is_nan():
    is_token = IS_TOKEN[..., None]
    rows = np.where(is_token, 2.0, np.nan).astype(np.float32) * np.ones(3, np.float32)
    presence = np.where(IS_TOKEN, 0.25, np.nan).astype(np.float32)
    weakened = jax.jit(weaken)
    found, ones = (np.asarray(weakened(x, IS_TOKEN, presence)) for x in (rows, np.ones_like(rows)))
    np.testing.assert_array_equal(found[IS_TOKEN], 0.5)
    np.testing.assert_array_equal(ones[~IS_TOKEN], 1)

    @jax.jit
    @jax.grad
    def gradient(presence):
        return jnp.where(is_token, weaken(*map(jnp.asarray, (rows, IS_TOKEN)), presence), 0).sum()

    np.testing.assert_array_equal(gradient(presence), np.where(IS_TOKEN, 6.0, 0.0))


def test_a_presence_moves_to_the_front_with_its_token():
    moved = jax.jit(to_front)(TOKENS, IS_TOKEN, TOKENS.astype(np.float32))
    np.testing.assert_array_equal(moved[2], moved[0])
    np.testing.assert_array_equal(moved[0][0, :5], TOKENS[0, 1:6])


@pytest.mark.parametrize("region_width", [1, 3])
def test_of_a_text_without_words_its_places_are_left(region_width):
    shapes = nnx.eval_shape(
        lambda: BertEmbedding(V, 8, 5, region_width=region_width, rngs=nnx.Rngs(0))
    )
    graph, state = nnx.split(shapes)
    random = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), state)

    @jax.jit
    def expected_and_found(state, presence):
        embed = nnx.merge(graph, state)
        x = embed.position.embedding[...][:5] + embed.segment.embedding[...][0]
        expected = layer_norm(x, embed.norm.scale[...], embed.norm.bias[...])
        return expected, embed(jnp.asarray(TOKENS), jnp.asarray(IS_TOKEN), presence=presence)

    expected, found = expected_and_found(state, np.zeros((1, T), np.float32))
    np.testing.assert_allclose(found[0, 1:6], expected, rtol=1e-5)


def products_in(name, **presence):
    logits = compiled(name)[0].__wrapped__
    jaxpr = jax.make_jaxpr(logits)(parts(name)[1], TOKENS, IS_TOKEN, **presence)
    return str(jaxpr).count(" = mul ")


@pytest.mark.parametrize("name", MODELS)
def test_without_a_presence_nothing_is_multiplied_and_with_one_each_row_that_is_looked_up(name):
    more = products_in(name, presence=jnp.ones((1, T))) - products_in(name)
    assert more == PRODUCTS[name]


@pytest.mark.parametrize("name", MODELS)
def test_a_presence_of_one_is_the_model_and_of_nothing_knows_no_word(name):
    logits, params = compiled(name)[0], drawn(name, 1)
    presence = np.ones((1, T), np.float32)
    np.testing.assert_allclose(
        logits(params, TOKENS, IS_TOKEN, presence), logits(params, TOKENS, IS_TOKEN), rtol=1e-6
    )
    other = np.where(IS_TOKEN, (TOKENS + 1) % V, 0)
    nothing, nothing_else = (logits(params, x, IS_TOKEN, 0 * presence) for x in (TOKENS, other))
    np.testing.assert_array_equal(nothing, nothing_else)
    assert np.abs(logits(params, other, IS_TOKEN) - logits(params, TOKENS, IS_TOKEN)).max() > 0.01
    # Each word for itself: its presence alone is missing, and it alone does not matter.
    for t in (1, 3, 5):
        without, tokens = presence.copy(), TOKENS.copy()
        without[0, t], tokens[0, t] = 0, 7
        same = logits(params, tokens, IS_TOKEN, without)
        if (
            t == 5 or name != "n-grams"
        ):  # how often the others stand there is read of absent ones too
            np.testing.assert_array_equal(logits(params, TOKENS, IS_TOKEN, without), same)


# Both together.


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize(("name", "error"), [("patches", 2e-2), ("encoder", 1e-5)])
def test_attributions_are_the_riemann_sum_of_finite_differences(name, error):
    """Float64 is used; regions have corners, where neither sum is exact."""
    step, nodes = 1e-5, 200
    with jax.enable_x64(True):
        params = drawn(name, 2, np.float64)
        found = attributed(name, params, dtype=np.float64, limit=128, tolerance=1e-4)
        alphas = (np.arange(nodes) + 0.5) / nodes
        points = np.repeat(alphas[:, None] * np.ones(T), 2 * T, axis=0).reshape(nodes, 2, T, T)
        points[:, 0] += step * np.eye(T)
        points[:, 1] -= step * np.eye(T)
        rows = [np.repeat(x, points.size // T, axis=0) for x in (TOKENS, IS_TOKEN)]
        logits = np.asarray(compiled(name)[0](params, *rows, points.reshape(-1, T)))
    odds = logits[:, 1] - np.logaddexp(logits[:, 0], logits[:, 2])
    odds = odds.reshape(nodes, 2, T)
    slow = ((odds[:, 0] - odds[:, 1]) / (2 * step)).mean(axis=0)
    assert found.values.dtype == np.float64
    np.testing.assert_allclose(found.values, slow, rtol=0, atol=error * np.abs(slow).max())


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), index=st.integers(0, C - 1))
def test_attributions_add_up_to_the_difference_of_the_log_odds(name, seed, index):
    params = drawn(name, seed)
    found = attributed(name, params, index, limit=2048)
    p = []
    for presence in (0.0, 1.0):
        logits = compiled(name)[0](params, TOKENS, IS_TOKEN, np.full((1, T), presence, np.float32))
        logits = np.asarray(logits[0], np.float64)
        p.append(np.exp(logits - np.logaddexp.reduce(logits))[index])
    difference = np.log(p[1] / (1 - p[1])) - np.log(p[0] / (1 - p[0]))
    assert found.difference == pytest.approx(difference, rel=1e-4, abs=1e-4)
    assert found.is_complete
    assert found.values.sum() == pytest.approx(difference, rel=0.011, abs=0.0011)


@pytest.mark.parametrize("name", ["patches", "tokens"])
def test_padding_has_no_share_and_changes_none(name):
    """On both sides, against the same text alone in its array."""
    params = drawn(name, 3)
    padded = attributed(name, params, limit=64)
    assert (padded.values[~IS_TOKEN[0]] == 0).all()
    assert (padded.values[1:6] != 0).all()
    evaluate = partial(compiled(name)[1], params, TOKENS[:, 1:6], IS_TOKEN[:, 1:6], 1)
    alone = integrated_gradients(evaluate, np.ones(5, np.float32), limit=padded.nodes)
    np.testing.assert_allclose(padded.values[1:6], alone.values, rtol=1e-3, atol=1e-4)
