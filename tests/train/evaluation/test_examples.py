"""The command suggested after training quotes held-out texts that the model has right."""

import numpy as np
import pytest

from train.data.sample_reviews import sample
from train.evaluation.examples import LONGEST, examples


def sure_of(labels):
    return np.eye(2)[labels]


def test_the_shortest_twins_of_the_sample_are_quoted_if_both_are_right():
    test = sample(train=2, test=60).test
    said = sure_of(test.labels)
    one, other = examples(test.texts, test.labels, said)
    assert test.groups[one] == test.groups[other] and test.labels[one] != test.labels[other]
    assert len(test.texts[one]) == min(map(len, test.texts))
    said[one] = said[one][::-1]
    third, fourth = examples(test.texts, test.labels, said)
    assert test.groups[third] == test.groups[fourth] != test.groups[one]


def test_without_such_a_pair_the_shortest_text_that_is_right_is_quoted():
    texts, labels = ["dull", "a fine film", "a fine play, seen twice"], np.array([0, 1, 1])
    assert examples(texts, labels, sure_of(np.array([1, 1, 1]))) == (1,)


@pytest.mark.parametrize("text", ["", " ", "-o", "a\nb", "x" * (LONGEST + 1), "notes/a.txt"])
def test_a_text_that_is_not_to_be_copied_is_not_quoted(text):
    labels = np.array([1])
    assert examples([text], labels, sure_of(labels)) == ()
