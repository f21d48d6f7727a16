"""A text encoder with classes: long texts in passages, and n-grams beside it."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.compiled import compiled
from transformer_jax.models.config import EncoderClassifierConfig, TextEncoderConfig
from transformer_jax.models.ngram_evidence import NgramEvidence
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.serialization.specification import EncoderClassifierSpec

pytestmark = pytest.mark.usefixtures("strict")

V, MOST, T = 23, 5, 14
STACK = StackConfig(num_layers=1, embed_dim=12, num_heads=2, hidden_dim=5)


def config_of(positions="rotary", **options):
    text = TextEncoderConfig(V, MOST, STACK, positions=positions)
    return EncoderClassifierConfig(text, 3, "mean", None, **options)


@cache
def model_of(positions):
    return EncoderClassifier(config_of(positions), rngs=nnx.Rngs(0))


@cache
def logits_of(positions):
    return compiled(model_of(positions))


def drawn(*lengths, seed=0):
    is_token = np.arange(T) < np.array(lengths)[:, None]
    tokens = np.random.default_rng(seed).integers(0, V, is_token.shape)
    return tokens.astype(np.int32), is_token


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_long_text_is_the_mean_over_its_passages(positions):
    """Each read by itself, as a text of its own."""
    model = model_of(positions)
    head = {name: np.asarray(getattr(model.head, name)[...]) for name in ("kernel", "bias")}
    tokens, is_token = drawn(14, 11, 5, 1)
    found, vector_of = logits_of(positions)(tokens, is_token), compiled(model.text)
    for row, mask, logits in zip(tokens, is_token, found, strict=True):
        text = row[: int(mask.sum())]
        parts = [text[None, k : k + MOST] for k in range(0, len(text), MOST)]
        vectors = [vector_of(part, np.ones(part.shape, bool))[0] for part in parts]
        expected = np.concatenate(vectors).mean(axis=0) @ head["kernel"] + head["bias"]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_where_padding_stands_changes_nothing():
    lengths = (11, 7, 12, 14)
    tokens, is_token = drawn(*lengths)
    moved = [
        np.stack([np.roll(row, 14 - n) for row, n in zip(x, lengths, strict=True)])
        for x in (tokens, is_token)
    ]
    logits = logits_of("rotary")
    np.testing.assert_allclose(logits(*moved), logits(tokens, is_token), rtol=1e-4, atol=1e-6)


def test_a_text_that_fits_is_read_as_ever():
    """The same holds in a row for long texts."""
    tokens, is_token = drawn(5, 3, 4, 1)
    short = logits_of("rotary")(tokens[:, :MOST], is_token[:, :MOST])
    np.testing.assert_allclose(logits_of("rotary")(tokens, is_token), short, rtol=1e-4, atol=1e-6)


def test_passages_have_no_first_token_to_stand_for_the_text():
    text = TextEncoderConfig(V, MOST, STACK)
    model = EncoderClassifier(EncoderClassifierConfig(text, 3), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="14 tokens are more than max_length=5"):
        model(*map(jnp.asarray, drawn(14)))
    classes = ("a", "b", "c")
    assert EncoderClassifierSpec(config_of(), classes, "head", "x", max_length=T).max_length == T
    with pytest.raises(ValueError, match="max_length must be less than 2147483648; got 1099"):
        EncoderClassifierSpec(config_of(), classes, "head", "x", max_length=2**40)
    with pytest.raises(ValueError, match="at most the 5 of the encoder; got 14"):
        EncoderClassifierSpec(model.config, classes, "head", "x", max_length=T)


def test_the_logits_of_n_grams_are_added():
    with_ngrams = EncoderClassifier(config_of(ngrams=2, ngram_bits=4), rngs=nnx.Rngs(0))
    evidence = NgramEvidence(3, longest=2, bits=4)
    random = np.random.default_rng(0)
    for name in ("weight", "square", "bias"):
        values = jnp.asarray(random.uniform(size=getattr(evidence, name).shape), jnp.float32)
        getattr(evidence, name)[...] = values
        getattr(with_ngrams.evidence, name)[...] = values
    tokens, is_token = drawn(14, 11, 5, 1)
    added = compiled(evidence)(tokens, is_token)
    apart = np.asarray(logits_of("rotary")(tokens, is_token)) + np.asarray(added)
    together = compiled(with_ngrams)(tokens, is_token)
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-5)
    assert np.abs(added).min() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ngrams": -1}, "ngrams must be 0 or more; got -1"),
        ({"ngram_bits": 29}, "ngram_bits must be from 1 to 28; got 29"),
    ],
)
def test_what_cannot_be_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        config_of(**options)
