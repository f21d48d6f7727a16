"""`train.imdb --unlabelled`: texts without labels, learned from by what the n-grams say of them."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from tests.helpers.kills import differences
from train.classifier.ngram_solver import distil_evidence, ngrams_held
from train.classifier.unlabelled import unlabelled_texts
from train.data.load import load
from train.data.splits import same_text, split_validation
from train.imdb import main
from train.recipes.imdb import FAST
from transformer_jax.models.ngram_evidence import NgramEvidence
from transformer_jax.serialization.run_folder import load_classifier

# Of a class: a word that the labelled texts have, and one that only texts without a label have
# beside it.
KNOWN, NEW = {0: "dull", 1: "fine"}, {0: "awful", 1: "superb"}
SHORT = [
    "--epochs", "4", "--max-length", "16", "--tokenizer", "word:30", "--batch-tokens", "512",
    "--no-baseline", "--dtype", "float32",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("small_recipes")


def text(rng, words, name):
    return " ".join(rng.permutation([*rng.choice(list("abcdefgh"), 6), *words])) + f" {name}"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The test texts have the new words alone. One text of each split, and three of training's,
    come again unlabelled.
    """
    folder = tmp_path_factory.mktemp("data") / "reviews"
    folder.mkdir()
    rng = np.random.default_rng(0)
    tables = {}
    for name, rows, words in (
        ("train", 200, (KNOWN,)),
        ("test", 60, (NEW,)),
        ("unsupervised", 400, (KNOWN, NEW)),
    ):
        labels = [i % 2 for i in range(rows)]
        texts = [
            text(rng, [of[label] for of in words], f"{name[:2]}{i}")
            for i, label in enumerate(labels)
        ]
        tables[name] = {"text": texts, "label": labels}
    seen = [*tables["train"]["text"][:3], tables["test"]["text"][0].upper()]
    tables["unsupervised"] = {"text": [*tables["unsupervised"]["text"], *seen]}
    for name, table in tables.items():
        pd.DataFrame(table).to_parquet(folder / f"{name}.parquet")
    return folder


def report(run):
    return json.loads((run / "report.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def runs(data, small_recipes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    options = {"without": [], "with": ["--unlabelled"], "vectors": ["--unlabelled", "--vectors"]}
    for name, more in options.items():
        assert main(["--data", str(data), "--out", str(folder / name), *SHORT, *more]) == 0
    return folder


def test_words_that_no_labelled_text_has_are_learned(runs):
    without, found = (report(runs / name) for name in ("without", "with"))
    assert without["test_accuracy"] < 0.7 and found["test_accuracy"] > 0.75
    assert found["data"]["unlabelled"] == 400 and "unlabelled" not in without["data"]
    assert found["data"]["train"] == without["data"]["train"]
    assert found["steps"] > 3 * without["steps"]


def test_vectors_of_texts_help_to_label_them(runs):
    found = report(runs / "vectors")
    right = found["guess_validation_accuracy"]
    assert right.keys() == found["guess_weights"].keys() | {"both"} == {"ngrams", "vectors", "both"}
    assert "guess_seconds" in found and "guess_seconds" not in report(runs / "with")
    kept = json.loads((runs / "vectors" / "guesses.json").read_text(encoding="utf-8"))
    labels = kept["labels"]
    assert len(labels) == 400 and kept["facts"]["guess_validation_accuracy"] == right
    assert np.mean(np.array(labels) == np.arange(400) % 2) > 0.9
    assert found["test_accuracy"] > 0.75


def test_n_grams_say_what_vectors_say_of_every_text_but_those_of_test(runs, data):
    trained = load_classifier(runs / "vectors")
    kept = json.loads((runs / "vectors" / "guesses.json").read_text(encoding="utf-8"))
    every = load(str(data))
    train, validation, _ = split_validation(every.train, 0.1, 0)
    unlabelled = unlabelled_texts(every, FAST, (train, validation))
    encoded = trained.tokenizer.encode(
        [*train.texts, *unlabelled, *validation.texts], 16, trained.spec.truncate
    )
    labels = np.concatenate([train.labels, kept["labels"], validation.labels])
    config = trained.spec.config
    expected = NgramEvidence(2, longest=config.ngrams, bits=config.ngram_bits)
    holds = ngrams_held(encoded, trained.tokenizer.pad_id, config.ngrams, config.ngram_bits)
    distil_evidence(expected, holds, labels, np.array(kept["validated"], np.float32))
    times = report(runs / "vectors")["weights"]["evidence"]
    for name, by in (("weight", times), ("square", 1), ("bias", times)):
        found = np.asarray(getattr(trained.model.evidence, name)[...])
        ours = by * np.asarray(getattr(expected, name)[...])
        np.testing.assert_allclose(found, ours, rtol=1e-4, atol=1e-6)


def test_what_repeats_a_labelled_text_is_not_learned_from(data):
    found = load(str(data))
    splits = split_validation(found.train, 0.1, 0)[:2]
    texts = {same_text(text) for text in unlabelled_texts(found, FAST, splits)}
    assert len(texts) == 400
    for split in (*splits, found.test):
        assert not texts & {same_text(text) for text in split.texts}


@pytest.mark.parametrize(
    ("name", "more", "saves", "minutes"),
    [
        ("with", [], 3, "0"),
        ("vectors", ["--vectors"], 3, "0"),  # while vectors are learned
        ("vectors", ["--vectors"], 2, "5"),  # the first is of vectors, the second of the network
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(
    name, more, saves, minutes, runs, data, tmp_path, monkeypatch, ctrl_c_behind, capsys
):
    run = tmp_path / "stopped"
    options = ["--data", str(data), "--out", str(run), *SHORT, "--unlabelled", *more]
    with ctrl_c_behind(saves):
        assert main([*options, "--checkpoint-minutes", minutes]) == 130
    in_vectors = name == "vectors" and minutes == "0"
    assert (run / "vectors").exists() == in_vectors
    assert (run / "guesses.json").exists() == (name == "vectors" and not in_vectors)
    if not in_vectors:
        monkeypatch.setattr(
            "train.classifier.pseudo_labels.text_vectors", None
        )  # which is not asked again
    capsys.readouterr()
    assert main(["--resume", str(run), "--checkpoint-minutes", "5"]) == 0
    assert differences(run, runs / name) == []
    assert not (run / "vectors").exists()
    assert "training the tokenizer again" not in capsys.readouterr().out


def test_more_epochs_go_on_with_the_guesses(runs, tmp_path, monkeypatch):
    run = tmp_path / "copy"
    shutil.copytree(runs / "vectors", run)
    monkeypatch.setattr("train.classifier.pseudo_labels.text_vectors", None)
    assert main(["--resume", str(run), "--epochs", "5"]) == 0
    assert report(run)["epochs"] == 5
    assert report(run)["earlier_test_accuracies"] == [report(runs / "vectors")["test_accuracy"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--recipe", "tutorial"],
            "--unlabelled: pseudo-labels need n-grams, and the recipe has none",
        ),
        (["--pretrained", "somewhere"], "--unlabelled cannot be combined with --pretrained"),
        (["--data", "FILE"], "--unlabelled: texts.csv has no unlabelled texts"),
        (["--data", "COPIES"], "--unlabelled: every unlabelled text repeats a labelled one"),
    ],
)
def test_a_mistake_is_one_line(words, message, data, tmp_path, capsys):
    file = tmp_path / "texts.csv"
    file.write_text("text,label\n" + "\n".join(f"word {i},{i % 2}" for i in range(20)) + "\n")
    copies = tmp_path / "copies"
    shutil.copytree(data, copies)
    shutil.copy(copies / "train.parquet", copies / "unsupervised.parquet")
    paths = {"FILE": str(file), "COPIES": str(copies)}
    words = [paths.get(word, word) for word in words]
    run = tmp_path / "run"
    assert main(["--data", str(data), "--out", str(run), *SHORT, "--unlabelled", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"train.imdb: error: {message}") and "\n" not in said
    assert not run.exists()
