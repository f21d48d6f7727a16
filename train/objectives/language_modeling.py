"""What a language model minimises, and its batches: windows over one long row of tokens.

targets[b, t] is the token behind tokens[b, t]. Where several texts stand in the row, each begins
with [CLS]: a token then sees its own text alone, and the [CLS] of the next is no target of the one
before, so that no text moves another's loss.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int32, Integer

from train.objectives.batches import LazyBatches, make_sums
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


def epoch_batches(
    row: Integer[np.ndarray, " n"],
    length: int,
    rows: int,
    cls_id: int | None,
    *,
    seed: int,
    epoch: int,
) -> LazyBatches:
    """Return windows side by side from a random first token on, in a random order.

    Every token is in one of them, but for the ends.
    """
    rng = np.random.default_rng([seed, epoch])
    last = len(row) - length - 1
    starts = np.arange(rng.integers(min(length, last + 1)), last + 1, length)
    rows = min(rows, len(starts))
    starts = rng.permutation(starts)[: len(starts) // rows * rows].reshape(-1, rows)
    return LazyBatches(starts, lambda own: make_windows(row, own.tolist(), length, cls_id))


def every_window(
    row: Integer[np.ndarray, " n"], length: int, rows: int, cls_id: int | None
) -> LazyBatches:
    """Return windows that do not overlap, in which every token but the first is a target once."""
    starts = np.arange(0, len(row) - 1, length)
    rows = min(rows, len(starts))
    beyond = np.full(-len(starts) % rows, len(row))  # empty windows fill the last batch
    starts = np.concatenate([starts, beyond]).reshape(-1, rows)
    return LazyBatches(starts, lambda own: make_windows(row, own.tolist(), length, cls_id))


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
    graph: nnx.GraphDef, batches: LazyBatches
) -> Callable[[nnx.State], tuple[float, int]]:
    """Return a function of the weights: nats and number of all targets."""
    total = make_sums(graph, lambda model, batch: (token_losses(model, batch).sum(),), batches)
    targets = sum(int(batch.is_target.sum()) for batch in batches)
    return lambda params: (*total(params), targets)
