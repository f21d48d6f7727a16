"""Pseudo-labels of texts without a label: what n-grams and vectors of the texts say of them."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

from train.classifier.calibration import weights_of
from train.classifier.document_vectors import VectorConfig, text_vectors, vector_logits
from transformer_jax.runtime.files import write_text


class PseudoLabels(NamedTuple):
    """What n-grams and vectors say of texts."""

    labels: Int[np.ndarray, " unlabelled"]  # by both
    # By vectors: of the texts to train on and those without labels
    logits: Float[np.ndarray, "n C"]
    # The same, and of those to validate, whose labels they have learned too
    validated: Float[np.ndarray, "m C"]
    facts: dict  # for the report


def make_pseudo_labels(
    texts: Sequence[Sequence[np.ndarray]],
    labels: Sequence[Int[np.ndarray, " n"]],
    ngram_logits: Sequence[Float[np.ndarray, "n C"]],
    config: VectorConfig,
    *,
    unknown: Sequence[int] = (),
    seed: int = 0,
    keep_in: Path | None = None,
    checkpoint_minutes: float = 5.0,
) -> PseudoLabels:
    """Return the likeliest labels by n-grams and vectors, and what the vectors say of every text.

    `texts` are those to train on, those without labels and those to validate; `labels` are of the
    first and last, `ngram_logits` of the second and last. Vectors are learned from the first two;
    the weight of each is fitted to the last (`calibration.weights_of`). Stopped, it goes on as
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
    by_vectors = logits[len(train) : learned], logits[learned:]
    logs = [
        [log_softmax(part, axis=1) for part in parts]
        for parts in zip(ngram_logits, by_vectors, strict=True)
    ]
    weights = weights_of(logs[1], labels[1])
    pseudo_labels, checked = (
        np.tensordot(weights, np.stack(parts), 1).argmax(axis=1).astype(np.int32) for parts in logs
    )

    def accuracy(found: np.ndarray) -> float:
        return float((found == labels[1]).mean())

    facts = {
        "guess_seconds": round(seconds + time.perf_counter() - begun, 1),
        "guess_weights": dict(zip(("ngrams", "vectors"), weights, strict=True)),
        "guess_validation_accuracy": {
            "ngrams": accuracy(ngram_logits[1].argmax(axis=1)),
            "vectors": accuracy(by_vectors[1].argmax(axis=1)),
            "both": accuracy(checked),
        },
    }
    return PseudoLabels(pseudo_labels, logits[:learned], validated, facts)


def kept_pseudo_labels(path: Path, make: Callable[[], PseudoLabels]) -> PseudoLabels:
    """Return those of the file, or make them and the file, so that a resumed run has them."""
    arrays = {"labels": np.int32, "logits": np.float32, "validated": np.float32}
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        found = {name: np.array(kept[name], dtype) for name, dtype in arrays.items()}
        return PseudoLabels(**found, facts=kept["facts"])
    found = make()
    values = {name: getattr(found, name).tolist() for name in arrays}
    write_text(path, json.dumps({"facts": found.facts, **values}) + "\n")
    return found
