"""`python -m train.best`: both programs in turn, stopped anywhere, called again."""

import json
import os
import subprocess
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from tests import kills
from train import imdb, mlm_options, precision
from train.best import main

ROOT = Path(__file__).parent.parent
OUT = Path("runs/imdb-best")
ENCODER, CLASSIFIER = OUT / "encoder", OUT / "classifier"
SMALL = mlm_options.Sizes(length=32, layers=1, embed_dim=16, heads=1, epochs=2, batch_tokens=512)

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def make_small(patch):
    """An encoder of one layer, and no dtype that the machine's speed chooses."""
    patch.setattr(mlm_options, "SIZES", SMALL)
    patch.setattr(precision, "operands_dtype", lambda _: "float32")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Reviews with columns of other names, so that both programs have to be told of them."""
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    rng = np.random.default_rng(0)
    words = (("dull", "poor"), ("fine", "superb"))
    rows = [(f"the film was {rng.choice(words[i % 2])} {i}", i % 2) for i in range(120)]
    pd.DataFrame(rows, columns=["review", "stars"]).to_csv(path, index=False)
    return path


def arguments(data, *more):
    return ["--data", str(data), "--text-column", "review", "--label-column", "stars", *more]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Where nobody stopped it."""
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        make_small(patch)
        assert main(arguments(data, "--seed", "3")) == 0
    return place


def report(run):
    return json.loads((run / "report.json").read_text())


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_encoder_becomes_a_classifier_of_the_same_texts(whole):
    encoder, classifier = report(whole / ENCODER), report(whole / CLASSIFIER)
    assert encoder["task"] == "Masked language model" and encoder["seed"] == 3
    assert (classifier["pretrained"], classifier["seed"]) == (str(ENCODER), 3)
    assert classifier["data"]["source"] == encoder["data"]["source"]
    assert "baseline" in classifier


def test_what_is_finished_stays_as_it_is(whole, data, monkeypatch, capsys):
    monkeypatch.chdir(whole)
    before = contents(whole)
    for again in (arguments(data, "--seed", "3"), []):
        assert main(again) == 0
        said = capsys.readouterr().out
        assert f"{ENCODER} is finished: 2 epochs" in said
        assert f"{CLASSIFIER} is finished: 3 epochs, test accuracy" in said
    assert contents(whole) == before


def test_stopped_anywhere_it_goes_on_bit_for_bit(
    whole, data, tmp_path, monkeypatch, ctrl_c_behind, capsys
):
    """In either of the two; neither the data nor the seed has to be said again."""
    monkeypatch.chdir(tmp_path)
    with ctrl_c_behind(1):
        assert main(arguments(data, "--seed", "3")) == 130
    said = capsys.readouterr().err
    assert said.endswith(" --seed 3\n") and "python -m train.best --data" in said
    assert not CLASSIFIER.exists() and not (ENCODER / "report.json").exists()
    with ctrl_c_behind(2):  # the second of the encoder, then one
        assert main([]) == 130
    assert (ENCODER / "report.json").exists() and not (CLASSIFIER / "report.json").exists()
    encoder = contents(ENCODER)
    assert main([]) == 0
    assert contents(ENCODER) == encoder
    monkeypatch.setattr(kills, "TIMES", kills.TIMES | {"baseline"})  # which tells its seconds
    for run in (ENCODER, CLASSIFIER):
        assert kills.differences(run, whole / run) == []


def test_stopped_between_the_two_it_goes_on(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def stop(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(imdb, "main", stop)
        assert main(arguments(data)) == 130
    assert main([]) == 0
    assert (CLASSIFIER / "report.json").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--data", "sample"], "train.best: error: runs/imdb-best began with --data "),
        (["--seed", "4"], "train.mlm: error: --seed cannot change within a run"),
        (["--text-column", "text"], "train.mlm: error: --text-column cannot change within a run"),
    ],
)
def test_a_run_of_something_else_is_neither_gone_on_with_nor_shown(
    whole, more, message, monkeypatch, capsys
):
    monkeypatch.chdir(whole)
    before = contents(whole)
    assert main(more) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(message) and printed.out == ""
    assert contents(whole) == before


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "none"], "no file or folder none"),
        (["--data", "sample", "--out", "file"], "cannot write to file/encoder"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ENCODER.mkdir(parents=True)
    (ENCODER / "options.json").write_text("[")
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a run to go on with: it has no readable options.json" in line


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["DATA=my reviews"], 'python -m train.best --data "my reviews"'),
        (["ARGS=--seed 3"], "python -m train.best --seed 3"),
    ],
)
def test_make_passes_on_where_the_data_are(words, call):
    alone = {
        name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"
    }
    done = subprocess.run(  # not as a part of the `make test` that runs the tests
        ["make", "--dry-run", "imdb-best", *words],
        cwd=ROOT,
        env=alone,
        capture_output=True,
        text=True,
    )
    assert " ".join(done.stdout.splitlines()[-1].split()).endswith(call)


@pytest.mark.slow
def test_the_sample_is_told_by_an_encoder_that_was_pretrained_on_it(tmp_path, monkeypatch):
    """As the programs come, six minutes on one core."""
    monkeypatch.undo()  # their own sizes
    jax.config.update("jax_disable_most_optimizations", False)
    assert main(["--data", "sample", "--out", str(tmp_path)]) == 0
    assert report(tmp_path / "encoder")["held_out_loss"] < 1.0
    found = report(tmp_path / "classifier")
    assert found["test_accuracy"] > 0.95
    assert found["baseline"]["test_accuracy"] < 0.6
