"""Notes on the classes of the parts: a score of one class is not taken for one of all."""

import numpy as np
import pytest

from train.data.class_notes import class_notes
from train.data.dataset import Split

CLASSES = ("bad", "fair", "good")


def split(*labels: int) -> Split:
    return Split([f"text {i}" for i in range(len(labels))], np.array(labels, np.int32), None)


@pytest.mark.parametrize(
    ("train", "validation", "test", "notes"),
    [
        ([0, 1, 2], [2, 1, 0], [0, 1, 2], []),
        ([0, 2], [2, 0], [0, 2], []),
        ([0] * 19 + [2], [2, 0], [0, 2], []),
        (
            [0] * 20 + [2],
            [2, 0],
            [0, 2],
            ["fewer than 5% of the training texts are of good: see the recall of each class"],
        ),
        (
            [0, 1, 2],
            [0, 1, 2],
            [2, 2],
            ["the test split has texts of one class only, good: its accuracy says nothing"],
        ),
        ([0, 1], [0], [0, 1], ["the validation part has texts of one class only, bad"]),
        ([0, 1, 2], [0, 1, 2], [0, 1], ["the test split has no text of good"]),
        ([0, 1, 2], [2, 0], [0, 1, 2], ["the validation part has no text of fair"]),
        (
            [0, 1],
            [0, 1],
            [0, 1, 2, 2],
            ["in the test split, 2 of 4 texts cannot be classified correctly"],
        ),
        (
            [1, 1],
            [0, 1],
            [0],
            [
                "the training part has texts of one class only, fair: no other is learned",
                "in the validation part, 1 of 2 texts cannot be classified",
                "the test split has texts of one class only, bad",
                "in the test split, 1 of 1 text cannot be classified correctly: no training text",
            ],
        ),
    ],
)
def test_each_part_that_lacks_a_class_has_a_note_of_one_line(train, validation, test, notes):
    found = class_notes(split(*train), split(*validation), split(*test), CLASSES)
    assert len(found) == len(notes) and "\n" not in "".join(found)
    assert all(note in line for note, line in zip(notes, found, strict=True))


@pytest.mark.parametrize("balanced", [False, True])
def test_class_weights_are_advised_unless_they_are_given(balanced):
    train, rest = split(*[0] * 20, 2), split(0, 2)
    (note,) = class_notes(train, rest, rest, CLASSES, balanced=balanced)
    assert ("--class-weights" in note) == (not balanced)
