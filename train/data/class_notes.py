"""Notes on classes that the training part, the validation part or the test split lacks."""

from collections.abc import Sequence

import numpy as np

from train.data.dataset import Split


def class_notes(
    train: Split, validation: Split, test: Split, classes: Sequence[str]
) -> tuple[str, ...]:
    """Return a note for each part that has a single class, or not the classes of the training part.

    >>> one, both = (Split(["a", "b"], np.array(labels), None) for labels in ([1, 1], [0, 1]))
    >>> class_notes(both, both, one, ("bad", "good"))
    ('the test split has texts of one class only, good: its accuracy says nothing about others',)
    """
    learned = set(train.labels.tolist())
    notes = []
    if len(learned) < 2:
        name = _names(learned, classes)
        notes.append(f"the training part has texts of one class only, {name}: no other is learned")
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
                f"{number:,} of the {len(split):,} texts of the {part} are of a class without a "
                f"training text, {_names(unknown, classes)}: they cannot be classified correctly"
            )
    return tuple(notes)


def _names(found: set[int], classes: Sequence[str]) -> str:
    """Return the names of classes, at most five of them."""
    names = [classes[label] for label in sorted(found)]
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
