"""What a language model minimises, and its batches: windows over one long row of tokens.

targets[b, t] is the token behind tokens[b, t]. Where several texts stand in the row, each begins
with [CLS]: a token then sees its own text alone, and the [CLS] of the next is no target of the one
before, so that no text moves another's loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from transformer_jax.models.language_model import LanguageModel


class Windows(NamedTuple):
    """A batch; a tuple, so that JAX takes it as it is."""

    tokens: Int32[np.ndarray, "B T"]
    targets: Int32[np.ndarray, "B T"]
    is_target: Bool[np.ndarray, "B T"]
    segment_ids: Int32[np.ndarray, "B T"] | None  # None: all is one text


def make_windows(
    row: Integer[np.ndarray, " n"], starts: Sequence[int], length: int, cls_id: int | None
) -> Windows:
    """The windows that begin at `starts`; one that reaches beyond the row ends in nothing that
    counts.
    """
    tokens = np.zeros((len(starts), length + 1), np.int32)
    there = np.zeros((len(starts), length + 1), bool)
    for k, start in enumerate(starts):
        part = row[start : start + length + 1]
        tokens[k, : len(part)], there[k, : len(part)] = part, True
    inputs, targets, is_target = tokens[:, :-1], tokens[:, 1:], there[:, 1:]
    if cls_id is None:
        return Windows(inputs, targets, is_target, None)
    segment_ids = np.cumsum(inputs == cls_id, axis=1, dtype=np.int32)
    return Windows(inputs, targets, is_target & (targets != cls_id), segment_ids)


@dataclass(frozen=True)
class WindowBatches(Sequence[Windows]):
    """Batches that are made when they are asked for; a slice is again such a list."""

    row: Integer[np.ndarray, " n"]
    starts: Int[np.ndarray, "batches B"]
    length: int
    cls_id: int | None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, k: int | slice) -> "Windows | WindowBatches":
        if isinstance(k, slice):
            return replace(self, starts=self.starts[k])
        return make_windows(self.row, self.starts[k].tolist(), self.length, self.cls_id)


def epoch_batches(
    row: Integer[np.ndarray, " n"],
    length: int,
    rows: int,
    cls_id: int | None,
    *,
    seed: int,
    epoch: int,
) -> WindowBatches:
    """Windows side by side from a drawn first token on, in a drawn order: every token once, but for
    the ends.
    """
    rng = np.random.default_rng([seed, epoch])
    last = len(row) - length - 1
    starts = np.arange(rng.integers(min(length, last + 1)), last + 1, length)
    rows = min(rows, len(starts))
    starts = rng.permutation(starts)[: len(starts) // rows * rows]
    return WindowBatches(row, starts.reshape(-1, rows), length, cls_id)


def every_window(
    row: Integer[np.ndarray, " n"], length: int, rows: int, cls_id: int | None
) -> WindowBatches:
    """Windows that do not overlap, in which every token but the first is a target once."""
    starts = np.arange(0, len(row) - 1, length)
    rows = min(rows, len(starts))
    beyond = np.full(-len(starts) % rows, len(row))  # empty windows fill the last batch
    return WindowBatches(row, np.concatenate([starts, beyond]).reshape(-1, rows), length, cls_id)


def token_losses(
    model: LanguageModel, batch: Windows, rngs: nnx.Rngs | None = None
) -> Float[Array, "B T"]:
    """-log p(target) in nats, 0 where there is no target."""
    logits = model(batch.tokens, segment_ids=batch.segment_ids, rngs=rngs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    return jnp.where(batch.is_target, losses, 0)


def mean_loss(model: LanguageModel, batch: Windows, rngs: nnx.Rngs) -> Float[Array, ""]:
    """What is minimised: nats a target."""
    return token_losses(model, batch, rngs).sum() / jnp.maximum(batch.is_target.sum(), 1)


def make_evaluation(
    graph: nnx.GraphDef, batches: WindowBatches
) -> Callable[[nnx.State], tuple[float, int]]:
    """A function of the weights: the nats of all targets together, and how many there are."""

    @jax.jit
    def total(params, batch):
        return token_losses(nnx.merge(graph, params), batch).sum()

    def evaluate(params) -> tuple[float, int]:
        nats, targets = 0.0, 0
        for batch in batches:
            nats += float(total(params, jax.tree.map(jnp.asarray, batch)))
            targets += int(batch.is_target.sum())
        return nats, targets

    return evaluate
