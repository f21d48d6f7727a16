"""The labels that texts without one are trained on: what n-grams say of them, with vectors of the
texts.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

from train.classifier.calibration import weights_of
from train.classifier.document_vectors import VectorConfig, text_vectors, vector_logits
from train.classifier.ngram_solver import EvidenceSolver
from train.recipes.imdb import Recipe
from transformer_jax.runtime.files import write_text


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


def guess_the_rest(
    texts: Sequence[Sequence[np.ndarray]],
    labels: Sequence[Int[np.ndarray, " n"]],
    solver: EvidenceSolver,
    recipe: Recipe,
    *,
    unknown: Sequence[int],
    seed: int,
    folder: Path,
) -> tuple[Int[np.ndarray, " n"], Guesses | None]:
    """The labels of the texts to train on, then those guessed of the texts without one; and the
    guesses, where vectors made them.

    `texts` and `labels` as of `guessed_labels`; `solver` has the n-grams that were fitted to the
    true labels. Where the recipe has vectors, it fits them anew to what these say, and the guesses
    are kept in the run's `folder`.
    """
    train, unlabelled, validation = texts
    if recipe.vectors is None:
        guessed = solver.logits(unlabelled).argmax(axis=1).astype(np.int32)
        return np.concatenate([labels[0], guessed]), None
    progress = folder / "vectors"

    def make() -> Guesses:
        told = [solver.logits(part) for part in (unlabelled, validation)]
        return guessed_labels(
            texts,
            labels,
            told,
            recipe.vectors,
            unknown=unknown,
            seed=seed,
            keep_in=progress,
            checkpoint_minutes=recipe.fit.checkpoint_minutes,
        )

    guesses = kept_guesses(folder / "guesses.json", make)
    shutil.rmtree(progress, ignore_errors=True)  # large, and done with
    right = guesses.facts["guess_validation_accuracy"]
    print(
        f"guesses     right for {right['both']:.1%} of validation, by n-grams alone {right['ngrams']:.1%}, "
        f"by vectors alone {right['vectors']:.1%}; {guesses.facts['guess_seconds']:.0f} s"
    )
    every = np.concatenate([labels[0], guesses.labels])
    solver.distil([*train, *unlabelled], every, guesses.logits)
    return every, guesses


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
    """The likeliest label of each text without one, by n-grams and vectors; and what the vectors
    say of every text.

    `texts` are those to train on, those without labels and those to validate; `labels` are of the
    first and last, `ngram_logits` of the second and last. Vectors are learned from the first two;
    how much each is heard is fitted to the last (`calibration.weights_of`). Stopped, it goes on as
    `text_vectors` says, which takes nearly all of the time.
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
