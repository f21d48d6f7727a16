"""Learning from texts without labels: n-grams, with vectors of texts, give them labels."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from train.classifier.ngram_solver import EvidenceSolver
from train.classifier.pseudo_labels import PseudoLabels, kept_pseudo_labels, make_pseudo_labels
from train.classifier.recipe import Recipe
from train.data.dataset import Dataset, Split
from train.data.splits import drop_overlap
from train.trainer.options import OptionError


def unlabelled_texts(data: Dataset, recipe: Recipe, splits: Sequence[Split]) -> list[str]:
    """Return the texts without labels that repeat none of these splits, nor any test text."""
    if not data.unsupervised:
        raise OptionError(
            f"--unlabelled: {data.name} has no texts without labels; leave it out, or pass a "
            "folder that has unsupervised.parquet or train/unsup"
        )
    if not getattr(recipe.model, "ngrams", 0):
        raise OptionError(
            f"--unlabelled: n-grams give the labels, and the recipe has none for {data.name}; "
            "leave it out"
        )
    kept = drop_overlap(data.unsupervised, [text for split in splits for text in split.texts])
    if not len(kept):
        raise OptionError(
            "--unlabelled: every text without a label repeats one that has a label; leave it out"
        )
    print(f"            {len(kept):,} without labels, which the n-grams label")
    return [data.unsupervised[i] for i in kept]


def learn_unlabelled(
    texts: Sequence[Sequence[np.ndarray]],
    labels: Sequence[Int[np.ndarray, " n"]],
    solver: EvidenceSolver,
    recipe: Recipe,
    *,
    unknown: Sequence[int],
    seed: int,
    folder: Path,
) -> tuple[Int[np.ndarray, " n"], dict[str, Any]]:
    """Return labels of the texts to train on and pseudo-labels of the others, and report entries.

    `texts` are those to train on, those without labels and those to validate, `labels` of the first
    and the last; `solver` has the n-grams, fitted to the first. They give the pseudo-labels. Where
    the recipe has vectors, these help, and the n-grams are fitted anew to what the vectors say; the
    pseudo-labels are kept in the run's `folder`.
    """
    unlabelled, validation = texts[1:]
    if recipe.vectors is None:
        pseudo_labels = solver.logits(unlabelled).argmax(axis=1).astype(np.int32)
        return np.concatenate([labels[0], pseudo_labels]), {}
    checkpoints = folder / "vectors"

    def make() -> PseudoLabels:
        return make_pseudo_labels(
            texts,
            labels,
            [solver.logits(part) for part in (unlabelled, validation)],
            recipe.vectors,
            unknown=unknown,
            seed=seed,
            keep_in=checkpoints,
            checkpoint_minutes=recipe.fit.checkpoint_minutes,
        )

    found = kept_pseudo_labels(folder / "guesses.json", make)
    shutil.rmtree(checkpoints, ignore_errors=True)  # large, and done with
    accuracy = found.facts["guess_validation_accuracy"]
    print(
        f"labels      right for {accuracy['both']:.1%} of validation, by n-grams alone "
        f"{accuracy['ngrams']:.1%}, by vectors alone {accuracy['vectors']:.1%}; "
        f"{found.facts['guess_seconds']:.0f} s"
    )
    solver.distil(unlabelled, found.labels, found.logits, found.validated)
    return np.concatenate([labels[0], found.labels]), found.facts
