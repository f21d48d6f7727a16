"""What a masked language model minimises, and its batches: rows of which some words are hidden
(Devlin et al., 2019).

A share of the words is chosen, whole ones: all pieces of a word or none. Of the chosen, 80% become
[MASK], 10% other tokens that are drawn, 10% stay as they are; the model is to say what stood there.
The logits of those places alone are computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int32

from train.data.packing import Passages, packed_rows
from transformer_jax.models.text_encoder import MaskedLanguageModel
from transformer_jax.pretrained import PretrainedTokenizer

MASKED, DRAWN = 0.8, 0.1  # of the chosen words; the rest is kept


class MaskedBatch(NamedTuple):
    """A batch; a tuple, so that JAX takes it as it is."""

    tokens: Int32[np.ndarray, "B T"]
    text_ids: Int32[np.ndarray, "B T"]  # which passage of the row; 0 in padding
    places: Int32[np.ndarray, "B M"]  # of the chosen tokens; M is the most that a row can have
    targets: Int32[np.ndarray, "B M"]  # what stood there
    is_target: Bool[np.ndarray, "B M"]


@dataclass(frozen=True)
class Masking:
    """How words are hidden."""

    rate: float  # of the tokens that are no special ones
    mask_id: int
    pad_id: int
    is_ordinary: Bool[np.ndarray, " V"]  # which ids are no special ones

    @classmethod
    def of(cls, tokenizer: PretrainedTokenizer, rate: float) -> "Masking":
        """With the special tokens of a tokenizer; what it did not know is one, and is nothing to
        learn.
        """
        names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
        special = [getattr(tokenizer, f"{name}_id") for name in names]
        is_ordinary = np.ones(tokenizer.vocab_size, bool)
        is_ordinary[[i for i in special if i is not None]] = False
        return cls(rate, tokenizer.mask_id, tokenizer.pad_id, is_ordinary)

    @cached_property
    def ordinary(self) -> Int[np.ndarray, " v"]:
        """The ids of those that are no special ones."""
        return np.flatnonzero(self.is_ordinary)

    def places(self, length: int) -> int:
        """The most tokens that are chosen of so many."""
        return max(1, int(np.ceil(self.rate * length)))

    def hide(
        self,
        tokens: Int[np.ndarray, " T"],
        is_first: Bool[np.ndarray, " T"],
        rng: np.random.Generator,
    ) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " M"]]:
        """The tokens with some words hidden, and the places of those words.

        Words are drawn until the next would be more than the rate allows.
        """
        words = np.where(self.is_ordinary[tokens], np.cumsum(is_first), -1)
        found, sizes = np.unique(words[words >= 0], return_counts=True)
        most = max(1, int(self.rate * sizes.sum() + 0.5))
        drawn = rng.permutation(len(found))
        chosen = np.sort(found[drawn[np.cumsum(sizes[drawn]) <= most]])
        fates = rng.random(len(chosen))
        places = np.flatnonzero(np.isin(words, chosen))
        fate = fates[np.searchsorted(chosen, words[places])]  # that of the word
        others = rng.choice(self.ordinary, len(places))
        hidden = np.array(tokens)
        hidden[places] = np.where(fate < MASKED + DRAWN, others, hidden[places])
        hidden[places[fate < MASKED]] = self.mask_id
        return hidden, places


@dataclass(frozen=True)
class MaskedBatches(Sequence[MaskedBatch]):
    """Batches that are made when they are asked for; a slice is again such a list.

    What is hidden in batch k comes from (seed, epoch, k).
    """

    passages: Passages
    rows: list[Int[np.ndarray, " _"]]  # the passages of each
    length: int
    batch_rows: int
    masking: Masking
    seed: int
    epoch: int
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, k: int | slice) -> "MaskedBatch | MaskedBatches":
        if isinstance(k, slice):
            return replace(self, numbers=self.numbers[k])
        number = self.numbers[k]
        rng = np.random.default_rng([self.seed, self.epoch, number])
        first = number * self.batch_rows
        return self._made(self.rows[first : first + self.batch_rows], rng)

    def _made(self, rows: list[Int[np.ndarray, " _"]], rng: np.random.Generator) -> MaskedBatch:
        """Rows that are wanting at the end of an epoch are empty."""
        shape, most = (self.batch_rows, self.length), self.masking.places(self.length)
        tokens = np.full(shape, self.masking.pad_id, np.int32)
        text_ids = np.zeros(shape, np.int32)
        places, targets = (np.zeros((self.batch_rows, most), np.int32) for _ in range(2))
        is_target = np.zeros((self.batch_rows, most), bool)
        starts = self.passages.starts
        for b, row in enumerate(rows):
            at = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in row])
            text, n = self.passages.tokens[at].astype(np.int32), len(at)
            tokens[b, :n], found = self.masking.hide(text, self.passages.is_first[at], rng)
            text_ids[b, :n] = np.repeat(np.arange(1, len(row) + 1), self.passages.lengths[row])
            places[b, : len(found)], targets[b, : len(found)] = found, text[found]
            is_target[b, : len(found)] = True
        return MaskedBatch(tokens, text_ids, places, targets, is_target)


def masked_batches(
    passages: Passages, length: int, batch_rows: int, masking: Masking, *, seed: int, epoch: int
) -> MaskedBatches:
    """An epoch: every passage once, packed into rows of `length` tokens."""
    rows = packed_rows(passages.lengths, length, seed=seed, epoch=epoch)
    numbers = range(-(-len(rows) // batch_rows))
    return MaskedBatches(passages, rows, length, batch_rows, masking, seed, epoch, numbers)


def hidden_logits(
    model: MaskedLanguageModel, batch: MaskedBatch, rngs: nnx.Rngs | None = None
) -> Float[Array, "B M V"]:
    """Of what stood in the chosen places."""
    x = model.text(batch.tokens, batch.text_ids > 0, text_ids=batch.text_ids, rngs=rngs)
    return model.logits(jnp.take_along_axis(x, batch.places[..., None], axis=1))


def mean_loss(model: MaskedLanguageModel, batch: MaskedBatch, rngs: nnx.Rngs) -> Float[Array, ""]:
    """What is minimised: -log p of a hidden token, in nats, the mean over all in the batch."""
    nats, _ = _summed(hidden_logits(model, batch, rngs), batch)
    return nats / jnp.maximum(batch.is_target.sum(), 1)


def make_evaluation(
    graph: nnx.GraphDef, batches: MaskedBatches
) -> Callable[[nnx.State], tuple[float, int, int]]:
    """A function of the weights: the nats of all hidden tokens together, how many are guessed, how
    many there are.
    """

    @jax.jit
    def total(params, batch):
        return _summed(hidden_logits(nnx.merge(graph, params), batch), batch)

    def evaluate(params) -> tuple[float, int, int]:
        nats, right, targets = 0.0, 0, 0
        for batch in batches:
            found = total(params, jax.tree.map(jnp.asarray, batch))
            nats, right = nats + float(found[0]), right + int(found[1])
            targets += int(batch.is_target.sum())
        return nats, right, targets

    return evaluate


def _summed(
    logits: Float[Array, "B M V"], batch: MaskedBatch
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    is_right = logits.argmax(-1) == batch.targets
    return jnp.where(batch.is_target, losses, 0).sum(), (is_right & batch.is_target).sum()


def unigram_loss(learn: Passages, held_out: Passages, masking: Masking) -> float:
    """Nats a token of the held-out passages for who knows how often each token comes, and nothing
    of its context.

    Counts of what is learned from, one added to each.
    """
    V = len(masking.is_ordinary)
    counts = np.bincount(learn.tokens, minlength=V)[masking.ordinary] + 1.0
    wanted = np.bincount(held_out.tokens, minlength=V)[masking.ordinary]
    return float(-(wanted * np.log(counts / counts.sum())).sum() / max(wanted.sum(), 1))
