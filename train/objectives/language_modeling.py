"""The loss and batches of a language model: windows over one long row of tokens.

targets[b, t] is the token after tokens[b, t]. If the row has several texts, each begins with
[CLS]. A token then attends to its own text only, and the [CLS] of the next text is not a target,
so that no text affects the loss of another.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from train.objectives.batches import LazyBatches, make_sums
from transformer_jax.models.language_model import LanguageModel


class Windows(NamedTuple):
    """A batch of windows; a tuple, which JAX accepts as a pytree."""

    tokens: Int32[np.ndarray, "B T"]
    targets: Int32[np.ndarray, "B T"]
    is_target: Bool[np.ndarray, "B T"]
    segment_ids: Int32[np.ndarray, "B T"] | None  # None: a single text


def make_windows(
    row: Integer[np.ndarray, " n"], starts: Sequence[int], length: int, cls_id: int | None
) -> Windows:
    """Return the windows that begin at `starts`; positions beyond the end of the row do not count.

    With `cls_id`, the row has several texts, which are told apart by `segment_ids`.
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
    """Return the batches of an epoch: adjacent windows from a random first token, in random order.

    Every token is in one window, except for some at the ends of the row and in an incomplete last
    batch, which is dropped.
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
    """Return windows in which every token except the first is a target exactly once."""
    starts = np.arange(0, len(row) - 1, length)
    rows = min(rows, len(starts))
    beyond = np.full(-len(starts) % rows, len(row))  # empty windows fill the last batch
    starts = np.concatenate([starts, beyond]).reshape(-1, rows)
    return LazyBatches(starts, lambda own: make_windows(row, own.tolist(), length, cls_id))


def token_losses(
    model: LanguageModel, batch: Windows, rngs: nnx.Rngs | None = None
) -> Float[Array, "B T"]:
    """Return -log p(target) of each token in nats, 0 where there is no target."""
    logits = model(batch.tokens, segment_ids=batch.segment_ids, rngs=rngs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    return jnp.where(batch.is_target, losses, 0)


def summed_loss(
    model: LanguageModel, batch: Windows, rngs: nnx.Rngs
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Return the training loss: the sum over targets, in nats, and their number."""
    return token_losses(model, batch, rngs).sum(), batch.is_target.sum()


def make_evaluation(
    graph: nnx.GraphDef, batches: LazyBatches
) -> Callable[[nnx.State], tuple[float, int]]:
    """Return a function of the weights that gives the summed loss in nats and the target count."""
    total = make_sums(graph, lambda model, batch: (token_losses(model, batch).sum(),), batches)
    targets = sum(int(batch.is_target.sum()) for batch in batches)
    return lambda params: (*total(params), targets)
