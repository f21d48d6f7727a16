"""The texts for masked language modelling: a data set without its test and validation texts.

Labels are ignored, so unlabelled texts are used as well; they are the larger part of IMDb.
"""

from dataclasses import dataclass

import numpy as np

from train.data.dataset import Dataset
from train.data.splits import drop_overlap, validation_part
from transformer_jax.runtime.counted import counted

MEASURED = 1000  # at most so many texts are held out: enough to tell two models apart


@dataclass(frozen=True)
class PretrainingTexts:
    """A training and a held-out part that share no text.

    Where movies are known, the labelled texts of both parts share no movie either.
    """

    train: list[str]
    held_out: list[str]
    rule: str  # how the held-out texts were drawn, as a phrase
    notes: tuple[str, ...]


def pretraining_texts(data: Dataset, validation_fraction: float, seed: int) -> PretrainingTexts:
    """Return the texts of a data set from `load`, without those of its test split.

    The held-out texts are at most MEASURED of the validation texts of a classifier with the same
    fraction and seed. Unlabelled texts that repeat a validation text are dropped.
    """
    train, validation, rule = validation_part(data, validation_fraction, seed)
    kept = drop_overlap(data.unsupervised, validation.texts)
    texts = [*train.texts, *(data.unsupervised[i] for i in kept)]
    notes = []
    if not data.unsupervised:
        notes.append(f"{data.name} has no unlabelled texts: only its training texts are used")
    if dropped := len(data.unsupervised) - len(kept):
        notes.append(f"dropped {counted(dropped, 'unlabelled text')} repeating a validation text")
    order = np.random.default_rng(seed).permutation(len(validation))
    held_out = [validation.texts[i] for i in order[:MEASURED]]
    if empty := sum(not text.strip() for text in (*texts, *held_out)):
        notes.append(f"no passage comes from {counted(empty, 'empty text')}")
    return PretrainingTexts(texts, held_out, rule, tuple(notes))
