"""Batches of few shapes: examples of similar length together, about the same number of tokens in
each.

A compiled step is compiled once for every shape, so lengths are rounded up to a few buckets and
every batch of a bucket has the same [B, T]. What an epoch holds and in which order is decided by
(seed, epoch) alone and costs milliseconds, so a resumed run takes the list and starts at batch k.
What does not fill a batch of its bucket moves on to the next longer one: at most the last batch of
an epoch has empty rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, Shaped


class Batch(NamedTuple):
    """A tuple, so that JAX takes it as it is. An empty row is all padding, with label 0 and index
    -1.
    """

    tokens: Int32[np.ndarray, "B T"]
    labels: Int32[np.ndarray, " B"]
    is_example: Bool[np.ndarray, " B"]
    index: Int32[np.ndarray, " B"]  # which example of the data set


@dataclass(frozen=True)
class Plan:
    """A batch before it is filled in: its shape and the examples it takes."""

    rows: int
    length: int
    index: Int32[np.ndarray, " E"]  # E <= rows


def bucket_lengths(
    lengths: Sequence[int] | Int[np.ndarray, " n"],
    max_length: int,
    num_buckets: int,
    multiple: int = 16,
) -> tuple[int, ...]:
    """At most `num_buckets` ascending lengths with the least padding for examples of these lengths.

    All are multiples of `multiple`, and the last is what the longest example needs; `max_length`
    itself stands for the multiple above it, since a model has no positions beyond.
    """
    lengths = np.asarray(lengths)
    if lengths.size == 0:
        raise ValueError("lengths is empty: there is no example to choose buckets for")
    if lengths.max() > max_length:
        raise ValueError(
            f"an example has {lengths.max()} tokens, more than max_length={max_length}"
        )
    if num_buckets < 1:
        raise ValueError(f"num_buckets must be at least 1, got {num_buckets}")
    # A text may have no token at all, where a tokenizer has no frame.
    needed = np.minimum(-(-np.maximum(lengths, 1) // multiple) * multiple, max_length)
    sizes, counts = np.unique(needed, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])  # examples shorter than sizes[j]

    # tokens[j]: the fewest padded tokens of all examples up to sizes[j], with sizes[j] a bucket.
    # One more bucket splits off those up to some sizes[i], i < j, which the fewer buckets before
    # served best.
    tokens = sizes * below[1:]
    splits: list[np.ndarray] = []
    for _ in range(min(num_buckets, len(sizes)) - 1):
        with_split = tokens[:, None] + sizes[None] * (below[None, 1:] - below[1:, None])
        with_split[np.tril_indices(len(sizes))] = np.iinfo(with_split.dtype).max
        splits.append(with_split.argmin(0))
        tokens = np.minimum(tokens, with_split.min(0))

    chosen = [len(sizes) - 1]
    for split in reversed(splits):
        chosen.append(split[chosen[-1]])
    return tuple(int(sizes[j]) for j in reversed(chosen))


def epoch_plans(
    lengths: Sequence[int] | Int[np.ndarray, " n"],
    buckets: Sequence[int],
    batch_tokens: int,
    *,
    seed: int,
    epoch: int,
) -> list[Plan]:
    """An epoch of training: every example once, batches of all buckets in a random order."""
    lengths = np.asarray(lengths)
    rng = np.random.default_rng([seed, epoch])
    # The examples first: which of a bucket move on to the next, and who sits beside whom, changes
    # by epoch.
    plans = _fill(lengths, rng.permutation(len(lengths)), buckets, batch_tokens)
    return [plans[i] for i in rng.permutation(len(plans))]


def evaluation_plans(
    lengths: Sequence[int] | Int[np.ndarray, " n"], buckets: Sequence[int], batch_tokens: int
) -> list[Plan]:
    """Every example once, shortest first; `in_order` brings the results back."""
    lengths = np.asarray(lengths)
    return _fill(lengths, np.argsort(lengths, kind="stable"), buckets, batch_tokens)


def _fill(
    lengths: np.ndarray,
    order: np.ndarray,
    buckets: Sequence[int],
    batch_tokens: int,
) -> list[Plan]:
    """Cuts the examples, taken in this order, into batches."""
    buckets = sorted(set(buckets))
    if len(lengths) == 0:
        return []
    if lengths.max() > buckets[-1]:
        raise ValueError(f"an example has {lengths.max()} tokens, the longest bucket {buckets[-1]}")
    if batch_tokens < buckets[-1]:
        raise ValueError(
            f"batch_tokens={batch_tokens} is less than one example of {buckets[-1]} tokens; pass "
            f"batch_tokens >= {buckets[-1]}, or a smaller max_length"
        )
    bucket_of = np.searchsorted(buckets, lengths[order])
    plans = []
    waiting = order[:0]
    for b, length in enumerate(buckets):
        # Not many more rows than examples: one text to predict is one row. Powers of two: any
        # number of them compiles few.
        rows = min(batch_tokens // length, 1 << (len(lengths) - 1).bit_length())
        waiting = np.concatenate([waiting, order[bucket_of == b]])
        full = len(waiting) if length == buckets[-1] else len(waiting) // rows * rows
        for start in range(0, full, rows):
            plans.append(
                Plan(rows, int(length), waiting[start : min(start + rows, full)].astype(np.int32))
            )
        waiting = waiting[full:]
    return plans


def make_batch(
    plan: Plan,
    examples: Sequence[Int32[np.ndarray, " _"]],
    labels: Int[np.ndarray, " n"] | None,
    pad_id: int,
    rows_multiple: int = 1,
) -> Batch:
    """The arrays of a planned batch; without labels (prediction) they are 0."""
    used = len(plan.index)
    rows = -(-plan.rows // rows_multiple) * rows_multiple
    tokens = np.full((rows, plan.length), pad_id, np.int32)
    for row, i in enumerate(plan.index):
        tokens[row, : len(examples[i])] = examples[i]
    row_labels = np.zeros(rows, np.int32)
    if labels is not None:
        row_labels[:used] = labels[plan.index]
    index = np.full(rows, -1, np.int32)
    index[:used] = plan.index
    return Batch(tokens, row_labels, np.arange(rows) < used, index)


@dataclass(frozen=True)
class Batches(Sequence[Batch]):
    """The batches of `plans`, each made when it is asked for; a slice is again such a list.

    `rows_multiple` adds empty rows until the devices can share a batch evenly.
    """

    plans: list[Plan]
    examples: Sequence[Int32[np.ndarray, " _"]]
    labels: Int[np.ndarray, " n"] | None
    pad_id: int
    rows_multiple: int = 1

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, k: int | slice) -> "Batch | Batches":
        if isinstance(k, slice):
            return replace(self, plans=self.plans[k])
        return make_batch(
            self.plans[k], self.examples, self.labels, self.pad_id, self.rows_multiple
        )


def in_order(
    results: Iterable[tuple[Batch, Shaped[np.ndarray, "_ ..."]]], num_examples: int
) -> Shaped[np.ndarray, "n ..."]:
    """The rows of (batch, output) pairs as they stand in the data set; empty rows are left out.

    Raises ValueError unless every one of `num_examples` came exactly once: a score of anything else
    is wrong.
    """
    pairs = [(b.index[b.is_example], np.asarray(out)[b.is_example]) for b, out in results]
    index = np.concatenate([index for index, _ in pairs]) if pairs else np.zeros(0, np.int32)
    times = np.bincount(index, minlength=num_examples)
    if len(times) != num_examples or (times != 1).any():
        raise ValueError(
            f"expected each of {num_examples} examples once, got {len(index)} rows of "
            f"{len(np.unique(index))} examples"
        )
    if not pairs:
        return np.zeros(0)
    return np.concatenate([out for _, out in pairs])[np.argsort(index)]
