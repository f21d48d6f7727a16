"""The weight of each part: what it is on models whose error is known, and that the parameters hold
it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train.classifier.calibration import (
    LEAST,
    calibrated,
    smoothed_targets,
    weighted,
    weights_of,
)
from train.evaluation.metrics import score
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    TextEncoderConfig,
)
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.config import StackConfig

STACK = StackConfig(0, 12, 2, 24, norm="pre")


def drawn(classes, texts=20_000, times=1.0, seed=0):
    """Labels drawn from known probabilities, and those probabilities with their logits times a
    number.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(texts, classes)) * 2
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random((texts, 1)) < true.cumsum(axis=1)).argmax(axis=1)
    said = np.exp(times * logits)
    return said / said.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_the_weight_undoes_what_logits_were_multiplied_by(classes, times):
    probabilities, labels = drawn(classes, times=times)
    (weight,) = weights_of([np.log(probabilities)], np.eye(classes)[labels])
    assert weight == pytest.approx(1 / times, rel=0.05)
    cool = probabilities**weight
    cool /= cool.sum(axis=1, keepdims=True)
    names = [str(i) for i in range(classes)]
    assert score(cool, labels, names)["calibration_error"] < 0.02
    assert (cool.argmax(axis=1) == probabilities.argmax(axis=1)).all()


@pytest.mark.parametrize("classes", [2, 5])
def test_the_weights_of_parts_are_those_that_made_the_labels(classes):
    random = np.random.default_rng(1)
    parts = random.normal(size=(3, 20_000, classes))
    true = np.exp(np.tensordot([0.5, 2.0, 0.0], parts, 1))
    true /= true.sum(axis=1, keepdims=True)
    labels = (random.random((len(true), 1)) < true.cumsum(axis=1)).argmax(axis=1)
    half, two, none = weights_of(parts, np.eye(classes)[labels])
    assert half == pytest.approx(0.5, abs=0.05) and two == pytest.approx(2, abs=0.1)
    assert none == pytest.approx(LEAST, abs=0.03)
    shifted = parts + random.normal(size=(3, 20_000, 1))  # no matter to a softmax
    np.testing.assert_allclose(
        weights_of(shifted, np.eye(classes)[labels]), [half, two, none], rtol=1e-3
    )


def test_certainty_that_is_wrong_is_heard_as_little_as_may_be():
    sure = np.log([[0.99, 0.01], [0.01, 0.99]])
    assert weights_of([sure], np.eye(2)[::-1]) == pytest.approx([LEAST])


@pytest.mark.parametrize("classes", [2, 5])
def test_separable_texts_get_the_log_odds_that_their_number_allows(classes):
    """With one-hot targets the weight grows until the optimizer stops."""
    labels = np.arange(classes).repeat(30)
    logits = 10.0 * np.eye(classes)[labels]
    targets = smoothed_targets(labels, classes)
    (weight,) = weights_of([logits], targets)
    assert 10 * weight == pytest.approx(np.log((classes - 1) * 31), rel=1e-3)
    assert weights_of([logits], np.eye(classes)[labels])[0] > 2 * weight
    both = weights_of([logits, 3 * logits], targets)
    assert 10 * both[0] + 30 * both[1] == pytest.approx(10 * weight, rel=1e-3)


def test_smoothed_targets_are_platts():
    targets = smoothed_targets(np.array([1, 0, 1, 1]), 2)
    np.testing.assert_allclose(targets, [[1 / 5, 4 / 5], [2 / 3, 1 / 3], *[[1 / 5, 4 / 5]] * 2])
    np.testing.assert_allclose(smoothed_targets(np.array([2, 2, 0]), 4).sum(axis=1), 1)


TOKENS = jax.device_put(np.arange(8, dtype=np.int32).reshape(1, 8))


def made(kind):
    """The graph of a model whose parts all say something, and its parameters."""
    if kind == "pretrained":
        config = EncoderClassifierConfig(TextEncoderConfig(11, 8, STACK))
        model = EncoderClassifier(config, rngs=nnx.Rngs(0))
    else:
        ngrams = 2 * (kind == "n-grams")
        config = ClassifierConfig(11, 8, encoder=STACK, ngrams=ngrams, ngram_bits=4)
        model = TextClassifier(config, rngs=nnx.Rngs(0))
        if ngrams:
            random = np.random.default_rng(0)
            for parameter in (model.evidence.weight, model.evidence.bias):
                drawn = random.normal(size=parameter.shape).astype(np.float32)
                parameter[...] = jax.device_put(drawn)
            ones = np.ones(model.evidence.square.shape, np.float32)
            model.evidence.square[...] = jax.device_put(ones)
    model.head.bias[...] = jax.device_put(np.array([0.5, -0.25], np.float32))
    return nnx.split(model, nnx.Param)


@pytest.mark.parametrize("kind", ["anew", "pretrained"])
def test_weighted_parameters_give_logits_times_the_weight(kind):
    graph, params = made(kind)
    logits = jax.jit(lambda params: nnx.merge(graph, params)(TOKENS, TOKENS >= 0))
    hot, cool = logits(params), logits(weighted(params, {"head": 0.4}))
    np.testing.assert_allclose(cool, hot * 0.4, rtol=1e-5)
    changed = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), params, weighted(params, {"head": 0.4})
    )
    assert sum(jax.tree.leaves(changed)) == 2


def test_each_part_has_its_own_weight():
    graph, params = made("n-grams")

    run = jax.jit(lambda params: nnx.merge(graph, params)(TOKENS, TOKENS >= 0))

    def logits(**weights):
        return np.asarray(run(weighted(params, weights)))

    head, evidence = logits(evidence=0.0), logits(head=0.0)
    assert np.abs(head).min() > 0.01 and np.abs(evidence).min() > 0.01
    np.testing.assert_allclose(logits(), head + evidence, rtol=1e-4)
    np.testing.assert_allclose(logits(head=0.5, evidence=3.0), 0.5 * head + 3 * evidence, rtol=1e-4)


def test_calibrated_parameters_are_the_best_weights_of_their_parts():
    """Labels are drawn from the model with other weights, which it finds again."""
    random = np.random.default_rng(0)
    graph, params = made("n-grams")
    tokens = jnp.asarray(random.integers(0, 11, (20_000, 8)))

    @jax.jit
    def score_of(params):
        return jax.nn.softmax(nnx.merge(graph, params)(tokens, tokens >= 0))

    true = np.asarray(score_of(weighted(params, {"head": 2.0, "evidence": 0.5})), np.float64)
    labels = (random.random((len(true), 1)) > true[:, :1]).astype(int)[:, 0]
    found, weights = calibrated(params, score_of, labels, ("head", "evidence"))
    assert weights["head"] == pytest.approx(2.0, rel=0.25)
    assert weights["evidence"] == pytest.approx(0.5, rel=0.25)
    np.testing.assert_allclose(score_of(found), score_of(weighted(params, weights)), rtol=1e-6)
