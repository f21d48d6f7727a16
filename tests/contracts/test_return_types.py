# pyright: basic, reportUnnecessaryTypeIgnoreComment=true
"""A type checker knows what the `return_*` flags add: `make types` reads this file too."""

from typing import Any, assert_type

import jax
import numpy as np
import pytest
from flax import nnx
from jax import Array

import transformer_jax as tj
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.models.seq2seq import AttentionMaps, SequenceToSequence
from transformer_jax.models.text_classifier import ClassifierStates, TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.kv_cache import Cache

T, N, H, D = 5, 6, 4, 11
STACK = StackConfig(1, 4, 2, 8)
TEXT = TextEncoderConfig(11, T, STACK)


def dot_product(x: Array, flag: bool) -> list[tuple[Array, ...]]:
    attend = tj.dot_product_attention
    assert_type(attend(x, x, x), Array)
    assert_type(attend(x, x, x, mask=None, return_weights=False), Array)
    weights = attend(x, x, x, scale=1.0, return_weights=True)
    assert_type(weights, tuple[Array, Array])
    logsumexp = attend(x, x, x, return_logsumexp=True, implementation="reference")
    assert_type(logsumexp, tuple[Array, Array])
    both = attend(x, x, x, return_weights=True, return_logsumexp=True)
    assert_type(both, tuple[Array, Array, Array])
    assert_type(attend(x, x, x, return_weights=flag), Array | tuple[Array, ...])
    return [weights, logsumexp, both]


def multi_head(x: Array, kernel: Array, flag: bool) -> list[tuple[Array, ...]]:
    def attend(flag: bool):
        return tj.multi_head_attention(x, x, kernel, kernel, kernel, out, return_weights=flag)

    out = kernel.transpose(1, 2, 0)
    assert_type(tj.multi_head_attention(x, x, kernel, kernel, kernel, out, scale=1.0), Array)
    both = tj.multi_head_attention(
        x, x, kernel, kernel, kernel, out, norm_epsilon=1e-6, return_weights=True
    )
    assert_type(both, tuple[Array, Array])
    assert_type(attend(flag), Array | tuple[Array, Array])
    return [both]


def additive(x: Array, kernel: Array, flag: bool) -> list[tuple[Array, ...]]:
    score = kernel[0]
    assert_type(tj.additive_attention(x, x, x, kernel, kernel, score), Array)
    both = tj.additive_attention(x, x, x, kernel, kernel, score, return_weights=True)
    assert_type(both, tuple[Array, Array])
    either = tj.additive_attention(x, x, x, kernel, kernel, score, return_weights=flag)
    assert_type(either, Array | tuple[Array, Array])
    return [both]


@pytest.mark.parametrize(
    ("function", "shapes", "numbers"),
    [
        (dot_product, [(T, N, H)], [2, 2, 3]),
        (multi_head, [(T, D), (D, N, H)], [2]),
        (additive, [(T, D), (D, H)], [2]),
    ],
)
def test_as_many_arrays_are_returned_as_the_type_says(function, shapes, numbers):
    arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    returned = jax.eval_shape(lambda *arrays: function(*arrays, True), *arrays)
    assert [len(each) for each in returned] == numbers


def text_classifier(tokens: Array, real: Array, flag: bool) -> list[tuple[Any, ...]]:
    model = TextClassifier(ClassifierConfig(11, T, encoder=STACK), rngs=nnx.Rngs(0))
    assert_type(model(tokens, real, presence=None), Array)
    weights = model(tokens, real, return_weights=True)
    assert_type(weights, tuple[Array, list[Array]])
    states = model(tokens, real, return_states=True)
    assert_type(states, tuple[Array, ClassifierStates])
    both = model(tokens, real, return_weights=True, return_states=True)
    assert_type(both, tuple[Array, list[Array], ClassifierStates])
    assert_type(model(tokens, real, return_weights=flag), Array | tuple[Any, ...])
    return [weights, states, both]


def text_encoder(tokens: Array, real: Array, flag: bool) -> list[tuple[Any, ...]]:
    model = TextEncoder(TEXT, rngs=nnx.Rngs(0))
    assert_type(model(tokens, real), Array)
    weights = model(tokens, real, return_weights=True, segments=None)
    assert_type(weights, tuple[Array, list[Array]])
    both = model(tokens, real, return_weights=True, return_states=True)
    assert_type(both, tuple[Array, list[Array], list[Array]])
    assert_type(model(tokens, real, return_states=flag), Array | tuple[Any, ...])
    return [weights, both]


def encoder_classifier(tokens: Array, real: Array, flag: bool) -> list[tuple[Any, ...]]:
    model = EncoderClassifier(EncoderClassifierConfig(TEXT), rngs=nnx.Rngs(0))
    assert_type(model(tokens, real), Array)
    weights = model(tokens, real, return_weights=True)
    assert_type(weights, tuple[Array, list[Array]])
    either = model(tokens, real, return_weights=flag)
    assert_type(either, Array | tuple[Array, list[Array]])
    return [weights]


def masked_language_model(tokens: Array, real: Array, flag: bool) -> list[tuple[Any, ...]]:
    model = MaskedLanguageModel(TEXT, rngs=nnx.Rngs(0))
    assert_type(model(tokens, real), Array)
    states = model(tokens, real, return_states=True)
    assert_type(states, tuple[Array, list[Array]])
    assert_type(model(tokens, real, return_states=flag), Array | tuple[Any, ...])
    return [states]


def language_model(tokens: Array, real: Array, flag: bool) -> list[tuple[Any, ...]]:
    model = LanguageModel(LanguageModelConfig(11, T, STACK), rngs=nnx.Rngs(0))
    assert_type(model(tokens, last=True), Array)
    weights = model(tokens, real, return_weights=True)
    assert_type(weights, tuple[Array, list[Array]])
    both = model(tokens, real, return_weights=True, return_states=True)
    assert_type(both, tuple[Array, list[Array], list[Array]])
    cached = model(tokens, real, cache=model.start(2, T))
    assert_type(cached, tuple[Array, Cache])
    assert_type(model(tokens, real, return_weights=flag), Array | tuple[Any, ...])
    return [weights, both, cached]


def sequence_to_sequence(tokens: Array, real: Array, flag: bool) -> list[tuple[Any, ...]]:
    model = SequenceToSequence(SequenceToSequenceConfig(11, T, STACK, STACK), rngs=nnx.Rngs(0))
    assert_type(model(tokens, real, tokens, real), Array)
    weights = model(tokens, real, tokens, real, return_weights=True)
    assert_type(weights, tuple[Array, AttentionMaps])
    encoded = model.encode(tokens, real, return_weights=True)
    assert_type(encoded, tuple[Array, list[Array]])
    either = model(tokens, real, tokens, real, return_weights=flag)
    assert_type(either, Array | tuple[Array, AttentionMaps])
    return [weights, encoded]


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        (text_classifier, [2, 2, 3]),
        (text_encoder, [2, 3]),
        (encoder_classifier, [2]),
        (masked_language_model, [2]),
        (language_model, [2, 3, 2]),
        (sequence_to_sequence, [2, 2]),
    ],
)
def test_a_model_returns_as_many_parts_as_the_type_says(model, numbers):
    tokens, real = jax.ShapeDtypeStruct((2, T), np.int32), jax.ShapeDtypeStruct((2, T), bool)
    returned = jax.eval_shape(lambda *arrays: model(*arrays, True), tokens, real)
    assert [len(each) for each in returned] == numbers


@pytest.mark.usefixtures("as_users_run_it")
def test_mistakes_are_refused_by_the_type_checker_too():
    with pytest.raises(TypeError, match="a rule has no length"):
        tj.causal(5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="missing a required argument"):
        tj.sliding_window(4)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="a rule, such as"):
        _ = tj.causal() & None  # pyright: ignore[reportOperatorIssue]
