"""Claims about the linear model beside ours."""

import numpy as np
import pytest

from train.evaluation.baseline import FEW, linear_baseline


def test_words_are_learned():
    texts = ["a fine film", "fine and fine", "a poor film", "poor and poor"]
    result = linear_baseline(texts, [1, 1, 0, 0], ["fine", "poor"])
    assert result.probabilities.argmax(axis=1).tolist() == [1, 0]
    assert result.seconds > 0


def test_rows_are_probabilities_of_each_of_three_classes():
    texts = ["red", "green", "blue", "red red", "green green", "blue blue"]
    result = linear_baseline(texts, np.array([0, 1, 2, 0, 1, 2]), ["blue", "green", "", "pink"])
    assert result.probabilities.shape == (4, 3)
    np.testing.assert_allclose(result.probabilities.sum(axis=1), 1)
    assert result.probabilities[:2].argmax(axis=1).tolist() == [2, 1]


def test_neighbouring_words_are_features():
    # the same words in both classes: only "not good" and "not bad" tell them apart
    texts = ["not good but bad", "not bad but good"] * 4
    result = linear_baseline(texts, [0, 1] * 4, ["not good but bad", "not bad but good"])
    assert result.probabilities.argmax(axis=1).tolist() == [0, 1]


def test_features_are_words_marks_and_bigrams_without_the_line_break_tag():
    # i, ?, no | "i ?", "? no"
    result = linear_baseline(["I<br />? no", "i ? NO"], [0, 1], ["no"])
    assert result.features == 5


def test_term_of_a_single_text_is_kept_in_small_data_and_dropped_in_large():
    small = ["common", "rare", "common"]
    assert linear_baseline(small, [0, 1, 1], [""]).features == 2
    large = ["common"] * (FEW - 1) + ["rare"]
    assert linear_baseline(large, [0, 1] * (FEW // 2), [""]).features == 1


@pytest.mark.parametrize("texts", [["", "", ""], ["  ", "\n", "<br />"]])
def test_empty_texts_leave_the_class_counts(texts):
    result = linear_baseline(texts, [0, 1, 1], ["", "something"])
    np.testing.assert_allclose(result.probabilities, [[1 / 3, 2 / 3]] * 2)
    assert result.features == 0


def test_large_data_without_a_shared_term_leaves_the_class_counts():
    texts = [f"w{i}" for i in range(FEW)]
    result = linear_baseline(texts, [0, 1] * (FEW // 2), ["w1"])
    np.testing.assert_allclose(result.probabilities, [[0.5, 0.5]])


def test_single_class_in_training_is_certain():
    assert linear_baseline(["a", "b"], [1, 1], ["a"], classes=3).probabilities.tolist() == [
        [0, 1, 0]
    ]


def test_class_without_training_texts_has_a_column_of_zeros():
    result = linear_baseline(["a", "b"], [0, 2], ["a", "b"], classes=4)
    assert result.probabilities.shape == (2, 4)
    assert (result.probabilities[:, [1, 3]] == 0).all()


def test_same_data_gives_the_same_numbers_for_any_seed():
    data = ["a b", "b c", "c d", "d a"], [0, 1, 0, 1], ["a c"]
    one, other = linear_baseline(*data, seed=0), linear_baseline(*data, seed=1)
    assert (one.probabilities == other.probabilities).all()


def test_a_balanced_baseline_finds_a_rare_class_more_often():
    texts = [f"common word{i % 7}" for i in range(40)] + ["common rare"] * 2
    labels = [0] * 40 + [1] * 2
    plain, balanced = (
        linear_baseline(texts, labels, ["common rare"], balanced=each).probabilities[0, 1]
        for each in (False, True)
    )
    assert plain < balanced and balanced > 0.5
