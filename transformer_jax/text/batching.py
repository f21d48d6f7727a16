"""Batches of few shapes: examples of similar length share a batch, and all batches have about the
same number of tokens.

A step is compiled once for every shape. Lengths are therefore rounded up to a few buckets, and
every batch of a bucket has the same shape [B, T]. The batches of an epoch and their order depend on
(seed, epoch) only and take milliseconds to compute, so a resumed run recomputes them and starts at
batch k. Examples that do not fill a batch of their bucket move to the next longer bucket. So only
the last batch of an epoch can have empty rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, Shaped


class Batch(NamedTuple):
    """The arrays of a batch. An empty row is all padding, with label 0 and index -1.

    Padding is what the batch adds to a text. `is_token` tells it from the text, and the ids do not,
    because a text may contain the token that fills the batch. A batch is a tuple, and therefore a
    JAX pytree.
    """

    tokens: Int32[np.ndarray, "B T"]
    is_token: Bool[np.ndarray, "B T"]  # False in padding
    labels: Int32[np.ndarray, " B"]
    is_example: Bool[np.ndarray, " B"]
    index: Int32[np.ndarray, " B"]  # the example's index in the data set


@dataclass(frozen=True)
class Plan:
    """A plan of a batch: its shape and the indices of its examples."""

    rows: int
    length: int
    index: Int32[np.ndarray, " E"]  # of the examples; E <= rows


def bucket_lengths(
    lengths: Sequence[int] | Int[np.ndarray, " n"],
    max_length: int,
    num_buckets: int,
    multiple: int = 16,
) -> tuple[int, ...]:
    """Choose up to `num_buckets` bucket lengths with the least padding for the given lengths.

    Returns them in ascending order. The last one is long enough for the longest example. All are
    multiples of `multiple`, except that a length above `max_length` is replaced by `max_length`,
    because a model has no positions beyond it. Raises ValueError if there are no lengths, one is
    above `max_length`, or `num_buckets` is below 1.
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
    # A text may have no token at all if the tokenizer adds no special tokens.
    needed = np.minimum(-(-np.maximum(lengths, 1) // multiple) * multiple, max_length)
    sizes, counts = np.unique(needed, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])  # examples shorter than sizes[j]

    # Dynamic programming. tokens[j] is the smallest number of tokens, padding included, of all
    # examples up to sizes[j] if sizes[j] is a bucket. One more bucket at sizes[i], i < j, separates
    # the examples up to sizes[i], for which the best choice with one bucket fewer is known.
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


def round_lengths(
    lengths: Sequence[int] | Int[np.ndarray, " n"], max_length: int
) -> Int[np.ndarray, " n"]:
    """Return lengths rounded up to a few fixed ones, so that later texts have the same shapes.

    They are the multiples of 16 up to 128, of 32 up to 256, of 64 up to 512 and so on, but at most
    `max_length`. Padding adds less than a quarter to a text of more than 64 tokens.

    >>> round_lengths([0, 16, 17, 129, 300, 500], 480)
    array([ 16,  16,  32, 160, 320, 480])
    """
    lengths = np.maximum(np.asarray(lengths, np.int64), 1)
    bits = np.frexp(lengths - 1)[1]  # the bit length, which is exact below 2**53
    steps = np.maximum(1 << np.maximum(bits - 3, 0), 16)
    return np.minimum(-(-lengths // steps) * steps, max_length)


def epoch_plans(
    lengths: Sequence[int] | Int[np.ndarray, " n"],
    buckets: Sequence[int],
    batch_tokens: int,
    *,
    seed: int,
    epoch: int,
) -> list[Plan]:
    """Plan the batches of a training epoch: every example once, in a random order.

    The order depends on (seed, epoch) only. Batches of all buckets are mixed. Raises ValueError if
    an example is longer than the longest bucket, or that is longer than `batch_tokens`.
    """
    lengths = np.asarray(lengths)
    rng = np.random.default_rng([seed, epoch])
    # Examples are shuffled before batches are formed, so that batches differ between epochs.
    plans = _fill(lengths, rng.permutation(len(lengths)), buckets, batch_tokens)
    return [plans[i] for i in rng.permutation(len(plans))]


def evaluation_plans(
    lengths: Sequence[int] | Int[np.ndarray, " n"], buckets: Sequence[int], batch_tokens: int
) -> list[Plan]:
    """Plan the batches of an evaluation: every example once, the shortest first.

    `in_order` restores the order of the results. Raises ValueError as `epoch_plans` does.
    """
    lengths = np.asarray(lengths)
    return _fill(lengths, np.argsort(lengths, kind="stable"), buckets, batch_tokens)


def _fill(
    lengths: np.ndarray,
    order: np.ndarray,
    buckets: Sequence[int],
    batch_tokens: int,
) -> list[Plan]:
    """Divide the examples, in the given order, into batches."""
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
        # At most the next power of two above the number of examples: a single text makes a single
        # row, and different numbers of texts compile few shapes.
        rows = min(batch_tokens // length, 1 << (len(lengths) - 1).bit_length())
        waiting = np.concatenate([waiting, order[bucket_of == b]])
        full = len(waiting) if length == buckets[-1] else len(waiting) // rows * rows
        for start in range(0, full, rows):
            plans.append(
                Plan(rows, int(length), waiting[start : min(start + rows, full)].astype(np.int32))
            )
        waiting = waiting[full:]
    return plans


def padded(
    examples: Sequence[Int[np.ndarray, " _"]], rows: int, length: int, pad_id: int | None
) -> tuple[Int32[np.ndarray, "B T"], Bool[np.ndarray, "B T"]]:
    """Return the examples as rows of `length` tokens, and which of these are not padding.

    Padding has the id `pad_id`, or 0 if that is None, as in a vocabulary without a padding token.
    Rows beyond the examples are all padding.
    """
    tokens = np.full((rows, length), pad_id or 0, np.int32)
    is_token = np.zeros((rows, length), bool)
    for row, ids in enumerate(examples):
        tokens[row, : len(ids)] = ids
        is_token[row, : len(ids)] = True
    return tokens, is_token


def make_batch(
    plan: Plan,
    examples: Sequence[Int32[np.ndarray, " _"]],
    labels: Int[np.ndarray, " n"] | None,
    pad_id: int | None,
) -> Batch:
    """Make the arrays of a planned batch. Without `labels`, as in prediction, all labels are 0."""
    used, rows = len(plan.index), plan.rows
    tokens, is_token = padded([examples[i] for i in plan.index], rows, plan.length, pad_id)
    row_labels = np.zeros(rows, np.int32)
    if labels is not None:
        row_labels[:used] = labels[plan.index]
    index = np.full(rows, -1, np.int32)
    index[:used] = plan.index
    return Batch(tokens, is_token, row_labels, np.arange(rows) < used, index)


@dataclass(frozen=True)
class Batches(Sequence[Batch]):
    """A sequence of batches that are made on access. A slice is a sequence of the same kind."""

    plans: list[Plan]
    examples: Sequence[Int32[np.ndarray, " _"]]
    labels: Int[np.ndarray, " n"] | None
    pad_id: int | None

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, k: int | slice) -> "Batch | Batches":
        if isinstance(k, slice):
            return replace(self, plans=self.plans[k])
        return make_batch(self.plans[k], self.examples, self.labels, self.pad_id)


def in_order(
    results: Iterable[tuple[Batch, Shaped[np.ndarray, "_ ..."]]], num_examples: int
) -> Shaped[np.ndarray, "n ..."]:
    """Sort the rows of (batch, output) pairs into the order of the data set, without empty rows.

    An output may have more rows than its batch, at the end, as those of `mesh.split_rows` do.
    Raises ValueError unless each of the `num_examples` examples occurs exactly once, because any
    score of other rows would be wrong.
    """
    pairs = [
        (b.index[b.is_example], np.asarray(x)[np.flatnonzero(b.is_example)]) for b, x in results
    ]
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
