"""The temperature: what it is on models whose error is known, and that the weights hold it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train.calibration import HOTTEST, cooled, temperature_of
from train.scores import score
from transformer_jax.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    StackConfig,
    TextEncoderConfig,
)
from transformer_jax.models import TextClassifier
from transformer_jax.text_encoder import EncoderClassifier

STACK = StackConfig(1, 12, 2, 24, norm="pre")


def drawn(classes, texts=20_000, times=1.0, seed=0):
    """Labels drawn from known probabilities, and those probabilities with their logits times a number."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(texts, classes)) * 2
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random((texts, 1)) < true.cumsum(axis=1)).argmax(axis=1)
    said = np.exp(times * logits)
    return said / said.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_the_temperature_undoes_what_logits_were_multiplied_by(classes, times):
    probabilities, labels = drawn(classes, times=times)
    temperature = temperature_of(probabilities, labels)
    assert temperature == pytest.approx(times, rel=0.05)
    cool = probabilities ** (1 / temperature)
    cool /= cool.sum(axis=1, keepdims=True)
    names = [str(i) for i in range(classes)]
    assert score(cool, labels, names)["calibration_error"] < 0.02
    assert (cool.argmax(axis=1) == probabilities.argmax(axis=1)).all()


def test_certainty_that_is_wrong_is_as_cool_as_may_be():
    sure = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert temperature_of(sure, np.array([1, 0])) == pytest.approx(HOTTEST, rel=1e-3)


@pytest.mark.parametrize("kind", ["anew", "pretrained"])
def test_cooled_weights_give_logits_divided(kind):
    if kind == "anew":
        model = TextClassifier(ClassifierConfig(11, 8, encoder=STACK), rngs=nnx.Rngs(0))
    else:
        config = EncoderClassifierConfig(TextEncoderConfig(11, 8, STACK))
        model = EncoderClassifier(config, rngs=nnx.Rngs(0))
    model.head.bias[...] = jnp.array([0.5, -0.25])
    graph, params = nnx.split(model, nnx.Param)
    tokens = jnp.arange(8).reshape(1, 8) % 11
    hot = model(tokens, tokens >= 0)
    cool = nnx.merge(graph, cooled(params, 2.5))(tokens, tokens >= 0)
    np.testing.assert_allclose(cool, hot / 2.5, rtol=1e-5)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), params, cooled(params, 2.5))
    assert sum(jax.tree.leaves(changed)) == 2
