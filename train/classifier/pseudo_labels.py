"""Pseudo-labels of unlabelled texts, predicted from n-grams and document vectors."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

from train.classifier.calibration import smoothed_targets, weights_of
from train.classifier.document_vectors import VectorConfig, text_vectors, vector_logits
from train.trainer.exchange import from_first
from transformer_jax.runtime.files import write_text
from transformer_jax.runtime.texts import read_text


class PseudoLabels(NamedTuple):
    """The pseudo-labels, and the logits of the document vectors."""

    labels: Int[np.ndarray, " unlabelled"]  # predicted by n-grams and vectors together
    # Logits by vectors, for the training and unlabelled texts.
    logits: Float[np.ndarray, "n C"]
    # Logits by vectors fitted to the validation labels too, for these and the validation texts.
    validated: Float[np.ndarray, "m C"]
    facts: dict  # entries of the report


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
    """Predict labels of the unlabelled texts from n-grams and document vectors.

    `texts` are the training, unlabelled and validation texts; `labels` those of training and
    validation, `ngram_logits` those of the unlabelled and validation texts. Document vectors are
    learned from the training and unlabelled texts. The weights of n-grams and vectors are fitted to
    validation (`calibration.weights_of`). Nearly all of the time is spent in `text_vectors`, which
    resumes from the checkpoints in `keep_in`.
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
    weights = weights_of(logs[1], smoothed_targets(labels[1], classes))
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
    """Load the pseudo-labels from a file, or make them and write the file, for a resumed run."""
    arrays = {"labels": np.int32, "logits": np.float32, "validated": np.float32}
    # The first process may write the file while another looks for it.
    if from_first("kept" * path.exists()):
        kept = json.loads(read_text(path))
        found = {name: np.array(kept[name], dtype) for name, dtype in arrays.items()}
        return PseudoLabels(**found, facts=kept["facts"])
    found = make()
    values = {name: getattr(found, name).tolist() for name in arrays}
    write_text(path, json.dumps({"facts": found.facts, **values}) + "\n")
    return found
