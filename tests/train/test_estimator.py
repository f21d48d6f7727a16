"""The classifier is a scikit-learn estimator that trains as `train.imdb` does."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import transformer_jax as tj
from train.estimator import TransformerClassifier
from train.imdb import main as imdb
from transformer_jax.__main__ import main as use

WORDS = {-1: ("dull", "poor", "awful", "weak"), 1: ("fine", "superb", "lovely", "great")}
SMALL = {"epochs": 1, "tokenizer": "word:40", "batch_tokens": 512, "dtype": "float32"}
QUICK = SMALL | {"epochs": 0}  # the n-grams learn, the network does not

pytestmark = pytest.mark.usefixtures("small_recipes")


def examples():
    """Texts whose label one word tells, and integers that are no indices."""
    rng = np.random.default_rng(0)
    labels = np.array([-1, 1] * 60)
    filler = ["the", "film", "plot", "was", "it", "and"]
    texts = [
        f"{' '.join(rng.choice(filler, rng.integers(3, 12)))} {rng.choice(WORDS[label])} {i}"
        for i, label in enumerate(labels)
    ]
    return pd.Series(texts, index=range(500, 620)), labels


@pytest.fixture(scope="module")
def fitted(small_recipes):
    return TransformerClassifier(**SMALL).fit(*examples())


def test_it_learns_and_predicts_labels_of_the_given_kind(fitted, capsys):
    texts, labels = examples()
    assert fitted.classes_.tolist() == [-1, 1]
    predicted = fitted.predict(texts)
    assert predicted.dtype == labels.dtype
    assert (predicted == labels).mean() > 0.9
    probabilities = fitted.predict_proba(texts.tolist())
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(fitted.classes_[probabilities.argmax(axis=1)], predicted)
    assert fitted.score(texts, labels) == (predicted == labels).mean()
    assert capsys.readouterr().out == ""


def test_it_works_in_a_pipeline_under_cross_validation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts, labels = examples()
    words = np.where(labels > 0, "good", "bad")
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    scores = cross_val_score(
        make_pipeline(lower, TransformerClassifier(**QUICK)), texts.str.upper(), words, cv=2,
        error_score="raise",
    )  # fmt: skip
    assert scores.shape == (2,) and scores.min() > 0.8
    assert list(tmp_path.iterdir()) == []  # no run folder is left


def test_a_clone_has_the_parameters_and_is_not_fitted(fitted):
    other = clone(fitted)
    assert other.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        other.predict(["a film"])


def test_a_pickled_classifier_predicts_the_same(fitted):
    texts, _ = examples()
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(texts), fitted.predict_proba(texts))


def test_a_saved_classifier_is_a_run_folder(fitted, tmp_path, capsys):
    fitted.save(tmp_path / "run")
    assert tj.load(tmp_path / "run", "classifier").classes == ("-1", "1")
    assert use(["predict", str(tmp_path / "run"), "the film was superb"]) == 0
    assert capsys.readouterr().out.startswith("1 ")
    with pytest.raises(FileExistsError, match="exists; pass the name of a new folder"):
        fitted.save(tmp_path / "run")


def test_a_saved_classifier_is_listed_as_finished_but_not_tested(fitted, tmp_path, capsys):
    fitted.save(tmp_path / "run")
    options = json.loads((tmp_path / "run" / "options.json").read_text())
    assert options["commands"] == []
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert "command" not in report and "test_accuracy" not in report
    assert use(["runs", str(tmp_path)]) == 0
    name, data, recipe, _, date = capsys.readouterr().out.splitlines()[1].split()
    assert (name, data, recipe, date) == ("run", "texts", "fast", report["date"])
    assert imdb(["--resume", str(tmp_path / "run")]) == 0
    assert "is finished: 1 epoch, not tested" in capsys.readouterr().out


def test_the_settings_of_a_report_are_those_of_the_model_and_its_tokenizer(tmp_path):
    texts, labels = examples()
    labels = np.where(np.arange(120) % 3 == 0, 0, labels)
    few = QUICK | {"tokenizer": "word:1000"}  # more words than there are
    TransformerClassifier(**few).fit(texts, labels).save(tmp_path / "run")
    config, report = (
        json.loads((tmp_path / "run" / name).read_text()) for name in ("config.json", "report.json")
    )
    assert report["settings"]["model"] == config["config"]
    assert config["config"]["num_classes"] == 3
    assert report["settings"]["tokenizer"] == f"word:{config['config']['vocab_size']}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": -1}, "^epochs must be at least 0; got -1"),
        ({"epochs": np.int64(-1)}, "^epochs must be at least 0; got -1"),
        ({"epochs": "3"}, "^epochs must be of type int; got '3'"),
        ({"recipe": "quick"}, "^recipe must be one of fast, tutorial, finetune; got 'quick'"),
        (
            {"batch_tokens": 4},
            "^batch_tokens 4 is less than one text of .* or a smaller max_length",
        ),
        ({"recipe": "finetune"}, "^recipe finetune needs pretrained MODEL"),
    ],
)
def test_an_option_that_cannot_be_is_one_line(options, says):
    texts, labels = examples()
    with pytest.raises(ValueError, match=says) as raised:
        TransformerClassifier(**SMALL | options).fit(texts, labels)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda texts, labels: ("a film", labels), TypeError, "got a single str; write fit"),
        (lambda texts, labels: (texts[:-1], labels), ValueError, "inconsistent numbers of samples"),
        (lambda texts, labels: (texts, labels * 0), ValueError, "two classes or more, got .0."),
        (lambda texts, labels: (texts, labels * 0.3), ValueError, "Unknown label type: continuous"),
        (lambda texts, labels: (texts.to_frame(), labels), TypeError, "DataFrame with 2 axes"),
    ],
)
def test_texts_and_labels_that_do_not_fit_are_one_line(change, error, says):
    with pytest.raises(error, match=says) as raised:
        TransformerClassifier(**SMALL).fit(*change(*examples()))
    assert "\n" not in str(raised.value)
