"""Why a trained classifier decided as it did on one text: the share of every word, by integrated
gradients.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from tqdm import tqdm

from transformer_jax.interpret.attribution import (
    Attribution,
    integrated_gradients,
    log_odds,
    values_and_gradients,
)
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import bucket_lengths
from transformer_jax.text.words import Piece, pieces_of


@dataclass(frozen=True)
class Explanation:
    """The pieces and the frame together hold every token: their values add up to
    `attribution.total`.
    """

    label: str  # what was predicted
    name: str  # the class that is explained
    probabilities: dict[str, float]
    pieces: list[Piece]  # of the text
    frame: list[tuple[str, float]]  # tokens that are no part of it, [CLS] and [SEP]
    attribution: Attribution  # of the log odds of `name`, a value for every token that was read
    tokens_cut: int  # that were not read

    @property
    def largest(self) -> float:
        """The largest size of a piece's value, for a scale of colours; 0 where there is none."""
        return max(
            (abs(piece.value) for piece in self.pieces if piece.value is not None), default=0.0
        )

    def strongest(self, top: int) -> tuple[list[Piece], list[Piece]]:
        """The `top` pieces for the class and against it, the strongest first."""
        valued = [(piece.value, piece) for piece in self.pieces if piece.value is not None]
        ordered = sorted(valued, key=lambda pair: -abs(pair[0]))
        return (
            [piece for value, piece in ordered if value > 0][:top],
            [piece for value, piece in ordered if value < 0][:top],
        )


def explain(
    classifier: Trained, text: str, *, name: str | None = None, limit: int = 512
) -> Explanation:
    """What moved the log odds of a class, that which is predicted or `name`, with at most `limit`
    nodes.

    Nothing, where the way begins, is a text of as many places with a presence of 0: positions and
    segments, but no words and no frame. Raises InputError where `name` is no class.
    """
    spec, tokenizer = classifier.spec, classifier.tokenizer
    if name is not None and name not in spec.classes:
        known = ", ".join(f"{known:.40}" for known in spec.classes[:10])
        raise InputError(f"there is no class {name!r:.60}; the classes are {known}")
    located = tokenizer.locate(text, spec.max_length, spec.truncate)
    length = bucket_lengths([len(located.ids)], spec.max_length, 1)[0]
    tokens = np.full((1, length), tokenizer.pad_id, np.int32)
    tokens[0, : len(located.ids)] = located.ids
    # By the padding's id, as `predict` tells it: it is that decision that is explained.
    is_token = tokens != tokenizer.pad_id
    whole = np.ones(length, np.float32)

    logits = np.asarray(_logits(classifier.model, tokens, is_token), np.float64)
    probabilities = np.exp(logits - np.logaddexp.reduce(logits))
    best = int(logits.argmax())
    index = best if name is None else spec.classes.index(name)
    with tqdm(desc="explaining", unit="pass", leave=False, disable=None) as bar:

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
    """The log odds of a class and their gradient at every presence."""
    rows = presence.shape[0]
    tokens, is_token = jnp.repeat(tokens, rows, axis=0), jnp.repeat(is_token, rows, axis=0)

    def f(presence: Float[Array, "A T"]) -> Float[Array, " A"]:
        return log_odds(model(tokens, is_token, presence=presence), index)

    return values_and_gradients(f, presence)
