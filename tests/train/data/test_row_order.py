"""A validation part shares few subjects with training where the rows are ordered by subject."""

from dataclasses import replace

import numpy as np
import pytest

from train.data.dataset import Split
from train.data.row_order import rare_words, subject_order
from train.data.splits import split_validation

SUBJECTS, TEXTS = 100, 12  # of each subject


def corpus(seed=0):
    """Return texts that have two of the three names of their subject, labels and subjects."""
    random = np.random.default_rng(seed)
    subjects = np.repeat(np.arange(SUBJECTS), TEXTS)
    common = [f"word{i}" for i in range(50)]
    texts = []
    for subject in subjects:
        names = random.choice([f"Name{subject}{end}" for end in "abc"], 2, replace=False)
        texts.append(" ".join([*random.choice(common, 8), " and ".join(names)]))
    return np.array(texts), random.integers(0, 2, len(texts)), subjects


def by_class(labels):
    return np.argsort(labels, kind="stable")


def split(rows, groups=None):
    texts, labels, _ = corpus()
    return Split(texts[rows].tolist(), labels[rows].astype(np.int32), groups)


def shared_subjects(data, fraction=0.1, seed=0):
    """Return the share of held-out texts whose subject is in training, and the rule."""
    texts, _, subjects = corpus()
    of_text = dict(zip(texts, subjects, strict=True))
    train, held, rule = split_validation(data, fraction, seed)
    known = {of_text[text] for text in train.texts}
    return np.mean([of_text[text] in known for text in held.texts]), rule


def test_a_product_of_rows_is_the_weight_of_their_rare_words():
    texts = ["a b Jane Eyre", "a b Jane Eyre", "a c", *["a"] * 20]
    words = rare_words(texts)
    assert words.shape == (23, 2)  # "b" and "Jane Eyre": "a" is common, "c" has one text
    np.testing.assert_allclose(
        (words @ words.T).toarray()[:2, :3], [[2 * np.log(23 / 2)] * 2 + [0]] * 2
    )


@pytest.mark.parametrize("order", ["listed", "by class"])
def test_few_held_out_texts_share_their_subject_with_training(order):
    labels = corpus()[1]
    rows = np.arange(len(labels)) if order == "listed" else by_class(labels)
    data = split(rows)
    for seed in range(5):
        share, rule = shared_subjects(data, seed=seed)
        assert share < 0.1 and rule.startswith(
            "in stretches of rows, since the rows are ordered by subject ("
        )
        held = split_validation(data, 0.1, seed)[1]
        assert 80 <= len(held) <= 160 and 0.3 < held.labels.mean() < 0.7
        assert held.texts == split_validation(data, 0.1, seed)[1].texts


def test_shuffled_rows_are_held_out_at_random():
    rows = np.random.default_rng(0).permutation(SUBJECTS * TEXTS)
    share, rule = shared_subjects(split(rows))
    assert share > 0.9 and rule.startswith("by distinct text (")


def test_classes_whose_orders_are_unlike_are_two_lines():
    texts, labels, _ = corpus()
    rows = by_class(labels)
    rows[labels[rows] == 1] = rows[labels[rows] == 1][::-1]
    order = subject_order(texts[rows].tolist(), labels[rows])
    assert sorted(map(len, order.lines)) == sorted(np.bincount(labels))
    of_a_class = [set(labels[rows][line]) for line in order.lines]
    assert of_a_class in ([{0}, {1}], [{1}, {0}])
    held = order.draw(0.1, seed=0)
    assert 0.3 < labels[rows][held].mean() < 0.7


def test_known_groups_are_used_and_not_the_order():
    groups = [str(i // TEXTS) for i in range(SUBJECTS * TEXTS)]
    share, rule = shared_subjects(split(np.arange(len(groups)), groups))
    assert share == 0 and rule.startswith("by movie (")


def test_copies_stay_together():
    data = split(np.arange(SUBJECTS * TEXTS))
    copied = data.take(np.concatenate([np.arange(len(data)), np.arange(0, len(data), 5)]))
    train, held, _ = split_validation(copied, 0.1, seed=0)
    assert len(train) + len(held) == len(copied) and 100 <= len(held) <= 200
    assert not set(train.texts) & set(held.texts)


def test_a_text_with_many_copies_stays_in_training():
    data = split(np.arange(SUBJECTS * TEXTS))
    copied = replace(data, texts=[*data.texts[:-300], *["N/A"] * 300])
    for seed in range(5):
        held = split_validation(copied, 0.1, seed)[1]
        assert "N/A" not in held.texts and 60 <= len(held) <= 150


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("classes", [1, 2, 10])
def test_no_part_is_empty(fraction, classes):
    texts, _, _ = corpus()
    labels = np.sort(np.arange(len(texts)) % classes)
    labels[-5:] = classes  # a small class
    data = Split(texts.tolist(), labels.astype(np.int32), None)
    train, held, rule = split_validation(data, fraction, seed=0)
    assert len(train) and len(held) and len(train) + len(held) == len(texts)
    assert rule.startswith("in stretches of rows")


def test_a_class_is_never_held_out_whole():
    texts, _, subjects = corpus()
    labels = subjects.astype(np.int32)  # a class is a subject, and one row is misplaced
    labels[[0, -1]] = labels[[-1, 0]]
    for seed in range(5):
        train, _, rule = split_validation(Split(texts.tolist(), labels, None), 0.1, seed)
        assert set(train.labels) == set(labels) and rule.startswith("by distinct text")


def test_few_texts_have_no_order():
    texts, labels, _ = corpus()
    assert subject_order(texts[:199].tolist(), labels[:199]) is None
