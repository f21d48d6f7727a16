"""The texts for masked words: none that is tested or validated on, whatever its spacing
and case.
"""

import numpy as np
import pandas as pd
import pytest

from train.data.dataset import Dataset, Split
from train.data.load import load
from train.data.mlm_texts import pretraining_texts
from train.data.splits import same_text, split_validation
from train.recipes.classify_options import ImdbOptions, recipe_of
from train.recipes.mlm import VALIDATION_FRACTION


def text_of(i):
    return f"review {i} of this film"


def as_copied(text):
    return text.upper().replace(" ", "\n ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """200 reviews of 40 movies to train on, 50 to test on, and without labels 300 others with
    copies of all of those.
    """
    folder = tmp_path_factory.mktemp("data") / "imdb"
    folder.mkdir()
    rows = [{"text": text_of(i), "label": i % 2, "movie": str(i % 40)} for i in range(200)]
    tested = [{"text": text_of(i), "label": i % 2} for i in range(1000, 1050)]
    texts = [text_of(i) for i in (*range(2000, 2300), *range(200), *range(1000, 1050))]
    copied = [*texts[:300], *map(as_copied, texts[300:])]
    for name, table in (
        ("train", [*rows, {"text": as_copied(text_of(1000)), "label": 0, "movie": "40"}]),
        ("test", tested),
        ("unsupervised", [{"text": text} for text in copied]),
    ):
        pd.DataFrame(table).to_parquet(folder / f"{name}.parquet")
    return folder


def test_empty_texts_are_counted():
    split = Split([text_of(0), " ", text_of(1)], np.array([0, 1, 1]), None)
    data = Dataset("x", "", split, split, ["", text_of(2)], ("a", "b"))
    notes = pretraining_texts(data, 0.4, 0).notes
    assert "no passage comes from 2 empty texts" in notes


@pytest.mark.parametrize("seed", [0, 1])
def test_no_text_of_test_or_validation_is_learned_from(folder, seed):
    """Validation as `train.imdb --pretrained` draws it: by its own recipe, from the same seed."""
    data = load(str(folder), seed=seed)
    texts = pretraining_texts(data, VALIDATION_FRACTION, seed)
    recipe = recipe_of(ImdbOptions(pretrained="run"), data.name)
    train, validation, _ = split_validation(data.train, recipe.validation_fraction, seed)
    found = {same_text(text) for text in texts.train}
    for part in (validation.texts, data.test.texts):
        assert not found & {same_text(text) for text in part}
    assert {same_text(text) for text in train.texts} < found
    assert len(validation) % 5 == 0  # whole movies
    assert {same_text(text_of(i)) for i in range(2000, 2300)} < found
    assert len(texts.train) == len(train) + 300 + 200 - len(validation)
    # What is measured on is a part of validation.
    assert set(texts.held_out) <= set(validation.texts) and texts.held_out
    assert f"dropped {len(validation)} unlabelled texts" in texts.notes[0]


def test_other_seeds_hold_out_other_texts(folder):
    data = load(str(folder))
    one, other = (set(pretraining_texts(data, 0.1, seed).held_out) for seed in (0, 1))
    assert one != other


def test_a_thousand_texts_are_measured_at_most():
    texts = [text_of(i) for i in range(20_000)]
    train = Split(texts, np.zeros(len(texts), np.int32), None)
    data = Dataset("many", "made here", train, train.take(np.arange(0)), [], ("a", "b"))
    found = pretraining_texts(data, 0.1, 0)
    assert len(found.held_out) == 1000 and len(found.train) == 18_000
    assert found.notes == ("many has no unlabelled texts: only its training texts are used",)
