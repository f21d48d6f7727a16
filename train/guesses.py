"""The labels that texts without one are trained on: what n-grams say of them, alone or with vectors of the texts."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

from train.calibration import weights_of
from train.document_vectors import VectorConfig, text_vectors, vector_logits
from transformer_jax.files import write_text


def guessed_labels(
    texts: Sequence[Sequence[np.ndarray]],
    labels: Sequence[Int[np.ndarray, " n"]],
    ngram_logits: Sequence[Float[np.ndarray, "n C"]],
    config: VectorConfig,
    *,
    unknown: Sequence[int] = (),
    seed: int = 0,
) -> tuple[Int[np.ndarray, " n"], dict]:
    """The likeliest label of each text without one, by n-grams and vectors; and what was found on the way.

    `texts` are those to train on, those without labels and those to validate; `labels` are of the first and last,
    `ngram_logits` of the second and last. Vectors are learned from the first two; how much each is heard is fitted to the
    last (`calibration.weights_of`).
    """
    begun = time.perf_counter()
    train, unlabelled, validation = texts
    learned = len(train) + len(unlabelled)
    every = [*train, *unlabelled, *validation]
    vectors = text_vectors(every, labels[0], learned, unknown=unknown, config=config, seed=seed)
    logits = vector_logits(vectors, labels[0], ngram_logits[0].shape[1])
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
        "guess_seconds": round(time.perf_counter() - begun, 1),
        "guess_weights": dict(zip(("ngrams", "vectors"), weights, strict=True)),
        "guess_validation_accuracy": {
            "ngrams": right(ngram_logits[1].argmax(axis=1)),
            "vectors": right(logits[learned:].argmax(axis=1)),
            "both": right(checked),
        },
    }
    return guessed, facts


def kept_guesses(
    path: Path, make: Callable[[], tuple[Int[np.ndarray, " n"], dict]]
) -> tuple[Int[np.ndarray, " n"], dict]:
    """Those of the file, or `make()` and the file: a run that goes on does not wait for them again."""
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        return np.array(kept["labels"], np.int32), kept["facts"]
    guessed, facts = make()
    write_text(path, json.dumps({"facts": facts, "labels": guessed.tolist()}) + "\n")
    return guessed, facts
