"""Training on unlabelled texts, with pseudo-labels from n-grams and document vectors."""

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
from transformer_jax.parallel.processes import are_several, is_first


def unlabelled_texts(data: Dataset, recipe: Recipe, splits: Sequence[Split]) -> list[str]:
    """Return the unlabelled texts that repeat no text of these splits, nor any test text.

    Raises OptionError if there are none, or if the recipe has no n-grams to label them.
    """
    if not data.unsupervised:
        raise OptionError(
            f"--unlabelled: {data.name} has no unlabelled texts; leave it out, or pass "
            "texts whose label is blank, a file named unlabelled in the folder, or train/unsup"
        )
    if not getattr(recipe.model, "ngrams", 0):
        raise OptionError(
            f"--unlabelled: pseudo-labels need n-grams, and the recipe has none for {data.name}; "
            "leave it out"
        )
    kept = drop_overlap(data.unsupervised, [text for split in splits for text in split.texts])
    if not len(kept):
        raise OptionError(
            "--unlabelled: every unlabelled text repeats a labelled one; leave it out"
        )
    print(f"            {len(kept):,} unlabelled, which get pseudo-labels")
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
    """Return the labels of the training texts and pseudo-labels of the others, and report entries.

    `texts` are the training, unlabelled and validation texts; `labels` those of training and
    validation. `solver` has the n-grams, fitted to the training texts, which predict the
    pseudo-labels. If the recipe has document vectors, these predict them together with the n-grams,
    and the n-grams are fitted again, to the logits of the vectors. The pseudo-labels are then saved
    in the run's `folder`.
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
            # Several processes would have to agree on the time of each checkpoint.
            keep_in=None if are_several() else checkpoints,
            checkpoint_minutes=recipe.fit.checkpoint_minutes,
        )

    found = kept_pseudo_labels(folder / "guesses.json", make)
    if is_first():
        shutil.rmtree(checkpoints, ignore_errors=True)  # large, and no longer needed
    accuracy = found.facts["guess_validation_accuracy"]
    print(
        f"labels      pseudo-label accuracy on validation {accuracy['both']:.1%} (n-grams alone "
        f"{accuracy['ngrams']:.1%}, vectors alone {accuracy['vectors']:.1%}); "
        f"{found.facts['guess_seconds']:.0f} s"
    )
    solver.distil(unlabelled, found.labels, found.logits, found.validated)
    return np.concatenate([labels[0], found.labels]), found.facts
