"""Small training runs on meshes of simulated devices, and on one device.

Every run has its weights, batches and dropout bits from the same seeds, so that the losses of two
meshes differ by the rounding of sums in another order and by nothing else. Activations are smooth:
a ReLU whose input is close to zero would turn rounding into another gradient.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from flax import nnx

from train.objectives import classification, seq2seq
from train.objectives.language_modeling import epoch_batches, summed_loss
from train.objectives.seq2seq import PairBatch
from train.optim.config import OptimizerConfig
from train.optim.optimizers import make_optimizer
from train.trainer.config import FitConfig
from train.trainer.step import TrainState, make_train_step
from transformer_jax.models.config import (
    ClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.parallel.mesh import AXES, make_mesh, place, settled, split_rows
from transformer_jax.text.batching import Batch

DEVICES, ROWS, STEPS = 8, 16, 20
# Sizes of the axes `AXES`. The last mesh has four of the devices.
MESHES = ((8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4), (1, 1, 4))
COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


@dataclass(frozen=True)
class Case:
    """A training run without its mesh: a model, its sizes and the optimizer."""

    model: str  # one of `MODELS`
    optimizer: str = "AdamW"  # or "Muon"
    dtype: str = "float32"
    layers: int = 2
    length: int = 32
    vocab_size: int = 96
    kv_heads: int = 4  # of 4
    tied_head: bool = True  # of the language model
    implementation: str | None = None  # of attention
    dropout: float = 0.1
    steps: int = STEPS

    @property
    def stack(self) -> StackConfig:
        """The stack of layers."""
        return StackConfig(
            num_layers=self.layers,
            embed_dim=64,
            num_heads=4,
            num_kv_heads=self.kv_heads,
            hidden_dim=256,
            norm="pre",
            final_norm=True,
            activation="gelu",
            dropout_rate=self.dropout,
            attention_dropout_rate=self.dropout,
        )


def classifier(case: Case) -> tuple[Callable[[], nnx.Module], Callable, list[Batch]]:
    """Return what makes a classifier with regions and n-grams, its loss and its batches."""
    config = ClassifierConfig(
        case.vocab_size, case.length, encoder=case.stack, pooling=("mean",), region_width=3,
        region_features=16, ngrams=2, ngram_bits=10, embedding_dropout_rate=case.dropout,
        head_dropout_rate=case.dropout,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    ids = SimpleNamespace(cls_id=1, sep_id=2, mask_id=3)  # of a tokenizer, for token dropout
    loss = classification.make_loss(ids, token_dropout=case.dropout, smoothing=0.1)
    every = np.ones(ROWS, bool), np.arange(ROWS, dtype=np.int32)
    batches = [
        Batch(*_texts(rng, case), rng.integers(0, 2, ROWS, np.int32), *every)
        for _ in range(case.steps)
    ]
    return lambda: TextClassifier(config, rngs=nnx.Rngs(0)), loss, batches


def language_model(case: Case) -> tuple[Callable[[], nnx.Module], Callable, list[Any]]:
    """Return what makes a language model with rotary positions, its loss and its batches."""
    config = LanguageModelConfig(
        case.vocab_size, case.length, case.stack, positions="rotary", tied_head=case.tied_head,
        embedding_dropout_rate=case.dropout,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    tokens = 1 + np.cumsum(rng.integers(0, 3, (case.steps + 1) * ROWS * case.length + 1))
    row = (tokens % (case.vocab_size - 1) + 1).astype(np.int32)
    row[::17] = 0  # the first token of a text
    batches = epoch_batches(row, case.length, ROWS, 0, seed=0, epoch=0)
    return lambda: LanguageModel(config, rngs=nnx.Rngs(0)), summed_loss, list(batches[: case.steps])


def encoder_decoder(case: Case) -> tuple[Callable[[], nnx.Module], Callable, list[PairBatch]]:
    """Return what makes an encoder-decoder, its loss and its batches."""
    config = SequenceToSequenceConfig(
        case.vocab_size, case.length, case.stack, case.stack, embedding_dropout_rate=case.dropout
    )
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(case.steps):
        source, is_source = _texts(rng, case)
        target, is_target = _texts(rng, replace(case, length=case.length // 2))
        batches.append(PairBatch(source, is_source, target, np.roll(target, -1, 1), is_target))
    return lambda: SequenceToSequence(config, rngs=nnx.Rngs(0)), seq2seq.make_loss(0.1), batches


MODELS = {
    "classifier": classifier,
    "language model": language_model,
    "encoder-decoder": encoder_decoder,
}


def _texts(rng: np.random.Generator, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and where they are, with padding after texts of random lengths."""
    is_token = np.arange(case.length) < rng.integers(1, case.length + 1, ROWS)[:, None]
    tokens = rng.integers(4, case.vocab_size, is_token.shape, np.int32)
    return np.where(is_token, tokens, 0), is_token


@dataclass
class Run:
    """A case that is ready to be trained on the mesh that is set."""

    graph: Any
    step: Any
    state: TrainState
    batches: list[Any]

    @classmethod
    def of(cls, case: Case) -> "Run":
        """Return the run at its first step."""
        make, loss, batches = MODELS[case.model](case)
        muon = 0.02 if case.optimizer == "Muon" else 0.0
        optimizer = make_optimizer(OptimizerConfig(3e-3, muon_rate=muon), case.steps)
        graph, params = nnx.split(make(), nnx.Param)
        step = make_train_step(
            graph,
            lambda model, *rest: loss(partial(model, implementation=case.implementation), *rest),
            optimizer,
            FitConfig(dtype=case.dtype),
        )
        return cls(graph, step, TrainState.first(place(params), optimizer), batches)

    def collectives(self) -> dict[str, int]:
        """Return the number of collectives of each kind in the compiled step."""
        compiled = self.step.lower(self.state, split_rows(self.batches[0])).compile()
        return dict(sorted(Counter(COLLECTIVE.findall(compiled.as_text())).items()))

    def state_bytes(self) -> tuple[int, int]:
        """Return the bytes of the whole training state, and of its part on the first device."""
        arrays = jax.tree.leaves(self.state)
        parts = (x.addressable_shards[0].data for x in arrays)
        return sum(x.nbytes for x in arrays), sum(x.nbytes for x in parts)

    def losses(self) -> Iterator[float]:
        """Train, and yield the loss of each step."""
        for batch in self.batches:
            self.state, loss = settled(self.step(self.state, split_rows(batch)))
            yield float(loss)


def on_mesh(sizes: tuple[int, ...] | None) -> AbstractContextManager:
    """Return a context with a mesh of these sizes of the first devices; None is one device."""
    if sizes is None:
        return nullcontext()
    devices = jax.devices()[: math.prod(sizes)]
    return jax.set_mesh(make_mesh(dict(zip(AXES, sizes, strict=True)), devices))


def trained(case: Case, sizes: tuple[int, ...] | None = None) -> list[float]:
    """Return the losses of training on a mesh of these sizes; None is one device."""
    with on_mesh(sizes):
        return list(Run.of(case).losses())
