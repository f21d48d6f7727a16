"""Notes on classes that the training part, the validation part or the test split lacks."""

from collections.abc import Sequence

import numpy as np

from train.data.dataset import Split
from transformer_jax.runtime.counted import counted

RARE = 0.05  # share of the training texts below which a class is noted


def class_notes(
    train: Split, validation: Split, test: Split, classes: Sequence[str], *, balanced: bool = False
) -> tuple[str, ...]:
    """Return a note for each part that has a single class, or not the classes of the training part.
    A class of fewer than `RARE` of the training texts is noted too, with an option that helps
    unless the classes are `balanced` already.

    >>> one, both = (Split(["a", "b"], np.array(labels), None) for labels in ([1, 1], [0, 1]))
    >>> class_notes(both, both, one, ("bad", "good"))
    ('the test split has texts of one class only, good: its accuracy says nothing about others',)
    """
    learned = set(train.labels.tolist())
    notes = []
    if len(learned) < 2:
        name = _names(learned, classes)
        notes.append(f"the training part has texts of one class only, {name}: no other is learned")
    shares = np.bincount(train.labels, minlength=len(classes)) / max(1, len(train))
    if rare := {label for label in learned if shares[label] < RARE}:
        notes.append(
            f"fewer than {RARE:.0%} of the training texts are of {_names(rare, classes)}: see the "
            "recall of each class in the report"
            + ("" if balanced else "; --class-weights balanced gives all the same weight")
        )
    for part, split in (("validation part", validation), ("test split", test)):
        found = set(split.labels.tolist())
        if len(found) < 2:
            notes.append(
                f"the {part} has texts of one class only, {_names(found, classes)}: "
                "its accuracy says nothing about others"
            )
        elif lacking := learned - found:
            notes.append(f"the {part} has no text of {_names(lacking, classes)}")
        if unknown := found - learned:
            number = int(np.isin(split.labels, list(unknown)).sum())
            notes.append(
                f"in the {part}, {number:,} of {counted(len(split), 'text')} cannot be classified "
                f"correctly: no training text is of {_names(unknown, classes)}"
            )
    return tuple(notes)


def listed(names: Sequence[str]) -> str:
    """Return names in one line, at most five of them.

    >>> listed(["bad", "good"])
    'bad, good'
    """
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _names(found: set[int], classes: Sequence[str]) -> str:
    return listed([classes[label] for label in sorted(found)])
