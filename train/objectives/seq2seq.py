"""The loss and batches of an encoder-decoder: pairs of similar length, with teacher forcing."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int32

from train.objectives.batches import LazyBatches, make_sums
from train.objectives.classification import cross_entropy
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.text.batching import Plan, padded


class PairBatch(NamedTuple):
    """A batch of pairs; a tuple, which JAX accepts as a pytree. Surplus rows are all padding."""

    source: Int32[np.ndarray, "B S"]
    is_source: Bool[np.ndarray, "B S"]  # False in padding
    target: Int32[np.ndarray, "B T"]  # [CLS] y_1 ... y_n
    wanted: Int32[np.ndarray, "B T"]  # y_1 ... y_n [SEP]
    is_target: Bool[np.ndarray, "B T"]  # False in the padding of both


def make_pair_batch(
    plan: Plan,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    target_length: int,
    pad_id: int | None,
) -> PairBatch:
    """Return the arrays of a planned batch; each text is framed as [CLS] ... [SEP]."""
    own = [targets[i] for i in plan.index]
    source, is_source = padded([sources[i] for i in plan.index], plan.rows, plan.length, pad_id)
    target, is_target = padded([ids[:-1] for ids in own], plan.rows, target_length, pad_id)
    wanted, _ = padded([ids[1:] for ids in own], plan.rows, target_length, pad_id)
    return PairBatch(source, is_source, target, wanted, is_target)


def pair_batches(
    plans: Sequence[Plan],
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    target_lengths: dict[int, int],
    pad_id: int | None,
) -> LazyBatches:
    """Return the batches of these plans; `target_lengths` maps a plan's length to its targets'."""

    def make(plan: Plan) -> PairBatch:
        return make_pair_batch(plan, sources, targets, target_lengths[plan.length], pad_id)

    return LazyBatches(plans, make)


def pair_lengths(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> list[int]:
    """Return the batch length that each pair needs; targets are fed without their last token."""
    return [max(len(one), len(other) - 1) for one, other in zip(sources, targets, strict=True)]


def target_lengths(
    lengths: Sequence[int], targets: Sequence[np.ndarray], buckets: Sequence[int]
) -> dict[int, int]:
    """Return the target length of each bucket, which may be far less than its source length.

    It is a multiple of 8 unless that exceeds the bucket. A pair may move to a longer bucket, so
    each bucket also fits the targets of the shorter ones.
    """
    lengths, needed = np.asarray(lengths), np.array([len(ids) - 1 for ids in targets])
    return {
        bucket: min(bucket, -(-int(needed[lengths <= bucket].max(initial=1)) // 8) * 8)
        for bucket in buckets
    }


def summed_losses(
    model: SequenceToSequence,
    batch: PairBatch,
    smoothings: Sequence[float],
    rngs: nnx.Rngs | None = None,
) -> tuple[list[Float[Array, ""]], Int[Array, ""]]:
    """Return the summed cross-entropy of all target tokens, in nats, and the number of tokens.

    There is one sum for each of the label smoothings.
    """
    logits = model(batch.source, batch.is_source, batch.target, batch.is_target, rngs=rngs)
    is_target = batch.is_target.reshape(-1)
    logits, wanted = logits.reshape(-1, logits.shape[-1]), batch.wanted.reshape(-1)
    sums = [
        jnp.where(is_target, cross_entropy(logits, wanted, smoothing), 0).sum()
        for smoothing in smoothings
    ]
    return sums, is_target.sum()


def make_loss(smoothing: float) -> Callable:
    """Return the training loss: the label-smoothed cross-entropy in nats, and the number of tokens.

    Source: Szegedy et al., 2016, https://arxiv.org/abs/1512.00567, section 7.
    """

    def loss(
        model: SequenceToSequence, batch: PairBatch, rngs: nnx.Rngs
    ) -> tuple[Float[Array, ""], Int[Array, ""]]:
        (total,), number = summed_losses(model, batch, [smoothing], rngs)
        return total, number

    return loss


def make_evaluation(
    graph: nnx.GraphDef, batches: LazyBatches, smoothing: float
) -> Callable[[nnx.State], tuple[float, float]]:
    """Return a function of the weights: the loss in nats per token, plain and label-smoothed."""

    def sums(model: SequenceToSequence, batch: PairBatch) -> tuple[Array, ...]:
        losses, number = summed_losses(model, batch, (0.0, smoothing))
        return (*losses, number)

    total = make_sums(graph, sums, batches)

    def evaluate(params) -> tuple[float, float]:
        nats, smoothed, number = total(params)
        return nats / number, smoothed / number

    return evaluate
