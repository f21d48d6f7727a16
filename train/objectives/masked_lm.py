"""The loss and batches of a masked language model: rows with masked words (Devlin et al., 2019).

A fraction of the words is chosen, by whole words: all pieces of a word or none. 80% of the chosen
words become [MASK], 10% random tokens, and 10% stay as they are. The model predicts the original
tokens; logits are computed at the chosen positions only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int32

from train.data.packing import Passages, packed_rows
from train.objectives.batches import LazyBatches, make_sums
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.pretrained import PretrainedTokenizer

MASKED, DRAWN = 0.8, 0.1  # fractions of the chosen words: masked, replaced; the rest is kept


class MaskedBatch(NamedTuple):
    """A batch of rows with masked tokens; a tuple, which JAX accepts as a pytree."""

    tokens: Int32[np.ndarray, "B T"]
    text_ids: Int32[np.ndarray, "B T"]  # number of the passage in the row; 0 in padding
    places: Int32[np.ndarray, "B M"]  # positions of chosen tokens; M: the most per row
    targets: Int32[np.ndarray, "B M"]  # the original tokens there
    is_target: Bool[np.ndarray, "B M"]


@dataclass(frozen=True)
class Masking:
    """The settings of masking: its rate, and the ids it needs."""

    rate: float  # of the tokens that are not special
    mask_id: int
    pad_id: int
    is_ordinary: Bool[np.ndarray, " V"]  # False for special ids

    @classmethod
    def of(cls, tokenizer: PretrainedTokenizer, rate: float) -> "Masking":
        """Return the masking for a tokenizer and a rate.

        The out-of-vocabulary token counts as special, because there is nothing to learn from it.
        """
        names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
        special = [getattr(tokenizer, f"{name}_id") for name in names]
        is_ordinary = np.ones(tokenizer.vocab_size, bool)
        is_ordinary[[i for i in special if i is not None]] = False
        return cls(rate, tokenizer.mask_id, tokenizer.pad_id, is_ordinary)

    @cached_property
    def ordinary(self) -> Int[np.ndarray, " v"]:
        """The ids that are not special, in order."""
        return np.flatnonzero(self.is_ordinary)

    def places(self, length: int) -> int:
        """Return the largest number of tokens that are chosen in a row of `length` tokens."""
        return max(1, int(np.ceil(self.rate * length)))

    def hide(
        self,
        tokens: Int[np.ndarray, " T"],
        is_first: Bool[np.ndarray, " T"],
        rng: np.random.Generator,
    ) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " M"]]:
        """Mask some words of `tokens`; return the new tokens and the positions of these words.

        Words are drawn until the next one would exceed the rate.
        """
        words = np.where(self.is_ordinary[tokens], np.cumsum(is_first), -1)
        found, sizes = np.unique(words[words >= 0], return_counts=True)
        most = max(1, int(self.rate * sizes.sum() + 0.5))
        drawn = rng.permutation(len(found))
        chosen = np.sort(found[drawn[np.cumsum(sizes[drawn]) <= most]])
        fates = rng.random(len(chosen))
        places = np.flatnonzero(np.isin(words, chosen))
        fate = fates[np.searchsorted(chosen, words[places])]  # the same for all pieces of a word
        others = rng.choice(self.ordinary, len(places))
        hidden = np.array(tokens)
        hidden[places] = np.where(fate < MASKED + DRAWN, others, hidden[places])
        hidden[places[fate < MASKED]] = self.mask_id
        return hidden, places


def masked_batches(
    passages: Passages, length: int, batch_rows: int, masking: Masking, *, seed: int, epoch: int
) -> LazyBatches:
    """Return the batches of an epoch: every passage once, packed into rows of `length` tokens.

    The masking of batch k depends on (seed, epoch, k) only.
    """
    rows = packed_rows(passages.lengths, length, seed=seed, epoch=epoch)

    def make(k: int) -> MaskedBatch:
        own = rows[k * batch_rows : (k + 1) * batch_rows]
        rng = np.random.default_rng([seed, epoch, k])
        return make_masked_batch(passages, own, (batch_rows, length), masking, rng)

    return LazyBatches(range(-(-len(rows) // batch_rows)), make)


def make_masked_batch(
    passages: Passages,
    rows: Sequence[Int[np.ndarray, " _"]],
    shape: tuple[int, int],
    masking: Masking,
    rng: np.random.Generator,
) -> MaskedBatch:
    """Return the batch of these rows, each a list of passages; missing rows stay empty."""
    most = masking.places(shape[1])
    tokens = np.full(shape, masking.pad_id, np.int32)
    text_ids = np.zeros(shape, np.int32)
    places, targets = (np.zeros((shape[0], most), np.int32) for _ in range(2))
    is_target = np.zeros((shape[0], most), bool)
    starts = passages.starts
    for b, row in enumerate(rows):
        at = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in row])
        text, n = passages.tokens[at].astype(np.int32), len(at)
        tokens[b, :n], found = masking.hide(text, passages.is_first[at], rng)
        text_ids[b, :n] = np.repeat(np.arange(1, len(row) + 1), passages.lengths[row])
        places[b, : len(found)], targets[b, : len(found)] = found, text[found]
        is_target[b, : len(found)] = True
    return MaskedBatch(tokens, text_ids, places, targets, is_target)


def hidden_logits(
    model: MaskedLanguageModel, batch: MaskedBatch, rngs: nnx.Rngs | None = None
) -> Float[Array, "B M V"]:
    """Return the logits at the chosen positions."""
    x = model.text(batch.tokens, batch.text_ids > 0, text_ids=batch.text_ids, rngs=rngs)
    return model.logits(jnp.take_along_axis(x, batch.places[..., None], axis=1))


def summed_loss(
    model: MaskedLanguageModel, batch: MaskedBatch, rngs: nnx.Rngs
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Return the training loss: the sum of -log p over the chosen tokens, and their number."""
    nats, _ = _summed(hidden_logits(model, batch, rngs), batch)
    return nats, batch.is_target.sum()


def make_evaluation(
    graph: nnx.GraphDef, batches: Sequence[MaskedBatch]
) -> Callable[[nnx.State], tuple[float, float, int]]:
    """Return a function of the weights that gives, over all chosen tokens, loss, hits and count.

    The loss is summed, in nats; hits are tokens predicted correctly.
    """
    total = make_sums(
        graph, lambda model, batch: _summed(hidden_logits(model, batch), batch), batches
    )
    targets = sum(int(batch.is_target.sum()) for batch in batches)
    return lambda params: (*total(params), targets)


def _summed(
    logits: Float[Array, "B M V"], batch: MaskedBatch
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    is_right = logits.argmax(-1) == batch.targets
    return jnp.where(batch.is_target, losses, 0).sum(), (is_right & batch.is_target).sum()


def unigram_loss(learn: Passages, held_out: Passages, masking: Masking) -> float:
    """Return the loss of a unigram model on the held-out passages, in nats per token.

    It predicts every token by its frequency in the training passages, with one added to each count,
    regardless of context.
    """
    V = len(masking.is_ordinary)
    counts = np.bincount(learn.tokens, minlength=V)[masking.ordinary] + 1.0
    wanted = np.bincount(held_out.tokens, minlength=V)[masking.ordinary]
    return float(-(wanted * np.log(counts / counts.sum())).sum() / max(wanted.sum(), 1))
