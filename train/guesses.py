"""The labels that texts without one are trained on: what n-grams say of them, with vectors of the texts."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

from train.calibration import weights_of
from train.document_vectors import VectorConfig, text_vectors, vector_logits
from transformer_jax.files import write_text


class Guesses(NamedTuple):
    """What is found of texts by vectors of them."""

    labels: Int[np.ndarray, " unlabelled"]  # by n-grams and vectors
    logits: Float[
        np.ndarray, "n C"
    ]  # of vectors, of the texts to train on and those without labels
    validated: Float[
        np.ndarray, "m C"
    ]  # the same, and of those to validate, whose labels they have learned too
    facts: dict


def guessed_labels(
    texts: Sequence[Sequence[np.ndarray]],
    labels: Sequence[Int[np.ndarray, " n"]],
    ngram_logits: Sequence[Float[np.ndarray, "n C"]],
    config: VectorConfig,
    *,
    unknown: Sequence[int] = (),
    seed: int = 0,
    keep_in: Path | None = None,
    checkpoint_minutes: float = 5.0,
) -> Guesses:
    """The likeliest label of each text without one, by n-grams and vectors; and what the vectors say of every text.

    `texts` are those to train on, those without labels and those to validate; `labels` are of the first and last,
    `ngram_logits` of the second and last. Vectors are learned from the first two; how much each is heard is fitted to the
    last (`calibration.weights_of`). Stopped, it goes on as `text_vectors` says, which takes nearly all of the time.
    """
    train, unlabelled, validation = texts
    learned = len(train) + len(unlabelled)
    every = [*train, *unlabelled, *validation]
    vectors, seconds = text_vectors(
        every,
        labels[0],
        learned,
        unknown=unknown,
        config=config,
        seed=seed,
        keep_in=keep_in,
        checkpoint_minutes=checkpoint_minutes,
    )
    begun = time.perf_counter()
    classes = ngram_logits[0].shape[1]
    logits = vector_logits(vectors, np.arange(len(train)), labels[0], classes)
    known = np.r_[: len(train), learned : len(every)]
    validated = vector_logits(vectors, known, np.concatenate(labels), classes)
    said = [
        [log_softmax(part, axis=1) for part in parts]
        for parts in zip(
            ngram_logits, (logits[len(train) : learned], logits[learned:]), strict=True
        )
    ]
    weights = weights_of(said[1], labels[1])
    guessed, checked = (
        np.tensordot(weights, np.stack(parts), 1).argmax(axis=1).astype(np.int32) for parts in said
    )

    def right(found: np.ndarray) -> float:
        return float((found == labels[1]).mean())

    facts = {
        "guess_seconds": round(seconds + time.perf_counter() - begun, 1),
        "guess_weights": dict(zip(("ngrams", "vectors"), weights, strict=True)),
        "guess_validation_accuracy": {
            "ngrams": right(ngram_logits[1].argmax(axis=1)),
            "vectors": right(logits[learned:].argmax(axis=1)),
            "both": right(checked),
        },
    }
    return Guesses(guessed, logits[:learned], validated, facts)


def kept_guesses(path: Path, make: Callable[[], Guesses]) -> Guesses:
    """Those of the file, or `make()` and the file: a run that goes on does not wait for them again."""
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Guesses(
            np.array(kept["labels"], np.int32),
            np.array(kept["logits"], np.float32),
            np.array(kept["validated"], np.float32),
            kept["facts"],
        )
    guesses = make()
    arrays = {name: getattr(guesses, name).tolist() for name in ("labels", "logits", "validated")}
    write_text(path, json.dumps({"facts": guesses.facts, **arrays}) + "\n")
    return guesses
