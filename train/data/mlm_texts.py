"""Which texts masked words are learned from: all of a data set but those that testing and
validation read.

The labels are not looked at, so the texts without one serve as well; they are the larger part of
IMDb.
"""

from dataclasses import dataclass

import numpy as np

from train.data.dataset import Dataset
from train.data.splits import drop_overlap, split_validation
from train.recipes.imdb import FINETUNE

MEASURED = 1000  # of the texts held out, at most: as many as tell two models apart


@dataclass(frozen=True)
class PretrainingTexts:
    """Two parts that share no text, and in what has labels no movie, where movies are known."""

    learn: list[str]
    held_out: list[str]
    rule: str  # what is held out, as a sentence
    notes: tuple[str, ...]


def pretraining_texts(data: Dataset, seed: int) -> PretrainingTexts:
    """The texts of a data set that `train.data.load.load` gave, which has no test text among them.

    Held out are those that `train.imdb --pretrained` validates on with the same seed. What repeats
    one of them is dropped.
    """
    learn, validation, rule = split_validation(data.train, FINETUNE.validation_fraction, seed)
    kept = drop_overlap(data.unsupervised, validation.texts)
    texts = [*learn.texts, *(data.unsupervised[i] for i in kept)]
    notes = []
    if not data.unsupervised:
        notes.append(f"{data.name} has no texts without labels: those to train on are all there is")
    if dropped := len(data.unsupervised) - len(kept):
        notes.append(f"dropped {dropped:,} unlabelled reviews that repeat a validation text")
    order = np.random.default_rng(seed).permutation(len(validation))
    held_out = [validation.texts[i] for i in order[:MEASURED]]
    return PretrainingTexts(texts, held_out, rule, tuple(notes))
