"""Accumulation over microbatches and rematerialised layers change memory and time, not results."""

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.kills import ROOT
from train.objectives import classification, language_modeling, masked_lm, seq2seq
from train.optim.optimizers import OptimizerConfig, make_optimizer
from train.trainer.config import FitConfig
from train.trainer.step import TrainState, make_gradient, make_train_step
from transformer_jax.costs.jaxpr import count
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.layers import Linear
from transformer_jax.nn.lora import Lora
from transformer_jax.parallel.mesh import place, split_rows, use_mesh
from transformer_jax.text.batching import Batch

B, T, V = 5, 6, 24
STEP = jnp.int32(3)
STEPS = 5


def tokens_of():
    """Tokens, and which of them are no padding; every row has another number of them."""
    tokens = np.random.default_rng(0).integers(4, V, (B, T)).astype(np.int32)
    return tokens, np.arange(T) < np.array([6, 2, 5, 3, 1])[:, None]


def classifying(rate):
    """The classifier's loss with all of its weights, and a batch of which one row is none."""
    tokenizer = SimpleNamespace(cls_id=1, sep_id=2, mask_id=3, spec="")
    loss = classification.make_loss(
        tokenizer,
        token_dropout=rate,
        smoothing=0.1,
        labelled=2,
        unlabelled_weight=0.3,
        class_weights=np.array([0.5, 1.0, 2.0]),
    )
    number = np.arange(B, dtype=np.int32)
    return loss, Batch(*tokens_of(), number % 3, number < B - 1, number)


def task_of(kind, rate=0.0):
    """A model, its loss and a batch."""
    rates = {"dropout_rate": rate, "attention_dropout_rate": rate}
    stack = StackConfig(1, 12, 2, 16, norm="pre", final_norm=True, activation="gelu", **rates)
    embedded = {"embedding_dropout_rate": rate}
    text, rngs = TextEncoderConfig(V, T, encoder=stack, **embedded), nnx.Rngs(0)
    tokens, is_token = tokens_of()
    others = np.roll(tokens, 1, axis=1)
    if kind == "classifier":
        config = ClassifierConfig(
            V,
            T,
            encoder=stack,
            num_classes=3,
            region_width=3,
            region_features=4,
            patch_width=2,
            head_dropout_rate=rate,
            **embedded,
        )
        return TextClassifier(config, rngs=rngs), *classifying(rate)
    if kind in ("fine-tuning", "LoRA"):
        model = EncoderClassifier(
            EncoderClassifierConfig(text, num_classes=3, head_dropout_rate=rate), rngs=rngs
        )
        return Lora(model, 2, rngs=rngs) if kind == "LoRA" else model, *classifying(rate)
    if kind == "language model":
        model = LanguageModel(
            LanguageModelConfig(V, T, decoder=stack, positions="rotary", **embedded), rngs=rngs
        )
        segments = np.cumsum(tokens < 8, axis=1, dtype=np.int32)
        batch = language_modeling.Windows(tokens, others, is_token, segments)
        return model, language_modeling.summed_loss, batch
    if kind == "masked language model":
        places = np.tile(np.arange(3, dtype=np.int32), (B, 1))
        batch = masked_lm.MaskedBatch(
            tokens, is_token.astype(np.int32), places, others[:, :3], is_token[:, :3]
        )
        return MaskedLanguageModel(text, rngs=rngs), masked_lm.summed_loss, batch
    model = SequenceToSequence(SequenceToSequenceConfig(V, T, stack, stack, **embedded), rngs=rngs)
    batch = seq2seq.PairBatch(tokens, is_token, others, tokens, is_token)
    return model, seq2seq.make_loss(0.1), batch


OBJECTIVES = "classifier", "language model", "masked language model", "encoder-decoder"
KINDS = *OBJECTIVES, "fine-tuning", "LoRA"


def gradient_of(task, **options):
    """The gradient of a training step with these options: a function, and its arguments."""
    model, loss, batch = task
    graph, params = nnx.split(model, nnx.Param)
    batch = jax.device_put(split_rows(batch, options.get("accumulate", 1)))
    return make_gradient(graph, loss, FitConfig(**options)), params, batch, STEP


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_loss_is_the_sum_over_parts_of_a_batch(kind):
    """Rows of zeros fill the parts, which have different weights."""
    model, loss, batch = task_of(kind)
    graph, params = nnx.split(model, nnx.Param)
    sums = jax.jit(lambda params, batch: loss(nnx.merge(graph, params), batch, None))

    def of_rows(rows):
        filled = split_rows(jax.tree.map(lambda x: x[rows], batch), B)
        return np.array(sums(params, jax.device_put(filled)))

    whole, one, other = (of_rows(slice(*cut)) for cut in ((0, B), (0, B, 2), (1, B, 2)))
    np.testing.assert_allclose(one + other, whole, rtol=1e-6)
    assert one[1] != other[1]


def test_the_gradient_is_that_of_the_whole_batch():
    """Seven rows are no multiple of three, and the parts have different weights."""
    x, y, weights = np.random.default_rng(0).normal(size=(3, 7, 2)).astype(np.float32)

    def loss(model, batch, rngs):
        x, y, weights = batch
        return (weights * (model(x) - y) ** 2).sum(), weights.sum()

    task = Linear(2, 2, rngs=nnx.Rngs(0)), loss, (x, y, weights**2 + 1)
    expected, found = (
        jax.jit(f)(*args) for f, *args in (gradient_of(task), gradient_of(task, accumulate=3))
    )
    assert_equal(found, expected)


def test_gradients_are_added_in_float32():
    """The sum 256 + 1 is 256 in bfloat16."""

    def loss(model, batch, rngs):
        return (model.kernel[0, 0] * batch).sum(), jnp.float32(1)

    task = Linear(1, 1, rngs=nnx.Rngs(0)), loss, np.array([256, 1, 1, 1], jnp.bfloat16)
    gradient, *arguments = gradient_of(task, accumulate=4, dtype="bfloat16")
    _, found = jax.jit(gradient)(*arguments)
    assert found["kernel"][...] == 259 / 4


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_computed_again(kind):
    """The jaxpr tells: a compiler for a CPU may compute them once."""
    task = task_of(kind, 0.3)
    plain, again = (count(*gradient_of(task, remat=remat)) for remat in (False, True))
    # A third more, but for the last product of each layer, and what is outside of the layers.
    assert 1.2 < again.flops / plain.flops < 4 / 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder-decoder", "LoRA"])
def test_a_layer_that_is_computed_again_has_the_same_dropout(kind):
    # In float32 a compiler may round a layer and its copy differently, by more than the bound.
    with jax.enable_x64(True):
        expected, found = (
            jax.jit(f)(*args)
            for f, *args in (
                gradient_of(task_of(kind, 0.3), remat=remat, dtype="float64")
                for remat in (False, True)
            )
        )
    assert_equal(found, expected)


def check_on_eight_devices():
    """Train an encoder-decoder on one device, and in microbatches on a mesh of eight."""
    model, loss, batch = task_of("encoder-decoder")
    graph, begin = nnx.split(model, nnx.Param)
    # Of the losses in bfloat16, those of a mesh and of one device differ by 2e-7 at this rate, and
    # by 4e-4 at 0.01: AdamW's steps amplify roundings.
    optimizer = make_optimizer(OptimizerConfig(0.003, warmup_fraction=0), STEPS)

    def trained(mesh, **options):
        """The losses, and the numbers of collectives in the compiled step."""
        config = FitConfig(**options)
        with use_mesh(mesh) if mesh else nullcontext():
            state = TrainState.first(place(jax.tree.map(jnp.copy, begin)), optimizer)
            rows = jax.device_put(split_rows(batch, config.accumulate))
            step = make_train_step(graph, loss, optimizer, config).lower(state, rows).compile()
            losses = []
            for _ in range(STEPS):  # one program: it refuses a state that lies elsewhere
                state, value = jax.block_until_ready(step(state, rows))
                losses.append(float(value))
        made = re.findall(r" (all-gather|all-to-all)(?:-start)?\(", step.as_text())
        return losses, Counter(made)

    sizes = "data=2,fsdp=2,tensor=2"
    expected, _ = trained(None)
    losses, again = trained(sizes, accumulate=2, remat=True)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    losses, once = trained(sizes, dtype="bfloat16", accumulate=2)
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    # Only in the same microbatches does bfloat16 round nearly alike.
    expected, _ = trained(None, dtype="bfloat16", accumulate=2)
    np.testing.assert_allclose(losses, expected, rtol=5e-4)
    assert not again["all-to-all"] and not once["all-to-all"]
    # Each of the 16 matrices of the layers is gathered again for the backward pass.
    assert again["all-gather"] >= once["all-gather"] + 16


@pytest.mark.slow
def test_a_mesh_with_microbatches_and_rematerialised_layers_gives_the_losses_of_one_device():
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as t; t.check_on_eight_devices()"],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_step_needs_one_microbatch():
    with pytest.raises(ValueError, match="accumulate must be at least 1; got 0"):
        FitConfig(accumulate=0)


def assert_equal(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
