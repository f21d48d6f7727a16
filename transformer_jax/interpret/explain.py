"""Explanations of a classifier's decision on one text: an attribution for every word."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.interpret.attribution import (
    Attribution,
    integrated_gradients,
    log_odds,
    values_and_gradients,
)
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.progress import ProgressBar
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import padded, round_lengths
from transformer_jax.text.words import Piece, pieces_of


@dataclass(frozen=True)
class Explanation:
    """The attributions of the words of a text to the log odds of a class.

    Every token belongs to a piece or to the frame, so that their values sum to `attribution.total`.
    """

    label: str  # the predicted class
    name: str  # the explained class
    probabilities: dict[str, float]
    pieces: list[Piece]  # the words of the text and what is between them
    frame: list[tuple[str, float]]  # special tokens around the text, such as [CLS] and [SEP]
    attribution: Attribution  # of the log odds of `name`: a value for every token that was read
    tokens_cut: int  # number of tokens that were not read

    @property
    def largest(self) -> float:
        """The largest absolute value of a piece, for a colour scale; 0 if no piece has a value."""
        return max(
            (abs(piece.value) for piece in self.pieces if piece.value is not None), default=0.0
        )

    @property
    def is_mostly_unknown(self) -> bool:
        """Whether half of the words or more are out of the vocabulary."""
        words = [piece for piece in self.pieces if piece.value is not None]
        return len(words) > 0 and 2 * sum(piece.is_unknown for piece in words) >= len(words)

    def strongest(self, top: int) -> tuple[list[Piece], list[Piece]]:
        """Return the `top` pieces with positive and with negative values, the strongest first."""
        valued = [(piece.value, piece) for piece in self.pieces if piece.value is not None]
        ordered = sorted(valued, key=lambda pair: -abs(pair[0]))
        return (
            [piece for value, piece in ordered if value > 0][:top],
            [piece for value, piece in ordered if value < 0][:top],
        )


def explain(
    classifier: Trained,
    text: str,
    *,
    name: str | None = None,
    limit: int = 512,
    length: int | None = None,
) -> Explanation:
    """Compute the attribution of every word to the log odds of a class by integrated gradients.

    The class is `name`, by default the predicted one. The integral has at most `limit` nodes. The
    baseline is a text of the same length in which every token has a presence of 0: it has positions
    and segments, but no words and no special tokens. The text is padded to `length` tokens, by
    default to the next of a few fixed lengths; texts of one length share what is compiled. Raises
    InputError if `name` is not a class, and ValueError if `length` is below the text's or above the
    model's max_length.
    """
    spec, tokenizer = classifier.spec, classifier.tokenizer
    if name is not None and name not in spec.classes:
        known = ", ".join(f"{known:.40}" for known in spec.classes[:10])
        raise InputError(f"there is no class {name!r:.60}; the classes are {known}")
    located = tokenizer.locate(text, spec.max_length, spec.truncate)
    if length is None:
        length = int(round_lengths([len(located.ids)], spec.max_length)[0])
    elif not len(located.ids) <= length <= spec.max_length:
        raise ValueError(
            f"length must be {len(located.ids)} (the tokens of the text) to {spec.max_length} (the "
            f"model's max_length); got {length}"
        )
    tokens, is_token = padded([located.ids], 1, length, tokenizer.pad_id)
    whole = np.ones(length, np.float32)

    logits = np.asarray(_logits(classifier.model, tokens, is_token), np.float64)
    probabilities = np.exp(logits - np.logaddexp.reduce(logits))
    best = int(logits.argmax())
    index = best if name is None else spec.classes.index(name)
    with ProgressBar(desc="explaining", unit="pass", leave=False) as bar:

        def evaluate(presence: Float[Array, "A T"]) -> tuple[Array, Array]:
            bar.update(len(presence))
            return _evaluate(classifier.model, tokens, is_token, index, presence)

        found = integrated_gradients(evaluate, whole, limit=limit)

    values = found.values[: len(located.ids)]
    pieces, rest = pieces_of(located, values, tokenizer.unk_id)
    return Explanation(
        spec.classes[best],
        spec.classes[index],
        dict(zip(spec.classes, probabilities.tolist(), strict=True)),
        pieces,
        [(tokenizer.token(int(located.ids[t])), float(values[t])) for t in rest],
        found,
        located.cut,
    )


@jax.jit
def _logits(
    model: TextClassifier | EncoderClassifier,
    tokens: Int[Array, "1 T"],
    is_token: Bool[Array, "1 T"],
) -> Float[Array, " C"]:
    return model(tokens, is_token)[0]


@jax.jit
def _evaluate(
    model: TextClassifier | EncoderClassifier,
    tokens: Int[Array, "1 T"],
    is_token: Bool[Array, "1 T"],
    index: Int[Array, ""],
    presence: Float[Array, "A T"],
) -> tuple[Float[Array, " A"], Float[Array, "A T"]]:
    """Compute the log odds of a class and their gradient at every row of `presence`."""
    rows = presence.shape[0]
    tokens, is_token = jnp.repeat(tokens, rows, axis=0), jnp.repeat(is_token, rows, axis=0)

    def f(presence: Float[Array, "A T"]) -> Float[Array, " A"]:
        return log_odds(model(tokens, is_token, presence=presence), index)

    return values_and_gradients(f, presence)
