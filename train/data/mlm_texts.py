"""Which texts masked words are learned from: all of a data set but those that testing and
validation read.

Labels are ignored, so the texts without one serve as well; they are the larger part of IMDb.
"""

from dataclasses import dataclass

import numpy as np

from train.data.dataset import Dataset
from train.data.splits import drop_overlap, split_validation

MEASURED = 1000  # of the texts held out, at most: as many as tell two models apart


@dataclass(frozen=True)
class PretrainingTexts:
    """Two parts that share no text, and in what has labels no movie, where movies are known."""

    train: list[str]
    held_out: list[str]
    rule: str  # what is held out, as a sentence
    notes: tuple[str, ...]


def pretraining_texts(data: Dataset, validation_fraction: float, seed: int) -> PretrainingTexts:
    """Return the texts of a data set, as `load` gives it, without those of its test split.

    Held out are those that a classifier validates on with the same fraction and seed; what repeats
    one of them is dropped.
    """
    train, validation, rule = split_validation(data.train, validation_fraction, seed)
    kept = drop_overlap(data.unsupervised, validation.texts)
    texts = [*train.texts, *(data.unsupervised[i] for i in kept)]
    notes = []
    if not data.unsupervised:
        notes.append(f"{data.name} has no texts without labels: those to train on are all there is")
    if dropped := len(data.unsupervised) - len(kept):
        notes.append(f"dropped {dropped:,} unlabelled reviews that repeat a validation text")
    order = np.random.default_rng(seed).permutation(len(validation))
    held_out = [validation.texts[i] for i in order[:MEASURED]]
    return PretrainingTexts(texts, held_out, rule, tuple(notes))
