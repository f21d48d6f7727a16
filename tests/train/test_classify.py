"""`python -m train.classify`: the program of `train.imdb`, in words of the user's own texts."""

import json

import pandas as pd
import pytest

from train.classify import main
from train.data.load import load


def test_data_must_be_given(capsys):
    assert main([]) == 2
    assert "error: --data is required" in capsys.readouterr().err


@pytest.mark.parametrize("data", ["imdb", "auto"])
def test_the_names_of_imdb_are_of_train_imdb(data, capsys):
    assert main(["--data", data]) == 2
    assert f"--data {data} is for train.imdb; pass " in capsys.readouterr().err


def test_labels_0_and_1_keep_their_names_unless_they_are_of_reviews(tmp_path):
    rows = "".join(f"text {i},{i % 2}\n" for i in range(20))
    (tmp_path / "a.csv").write_text(f"text,label\n{rows}")
    assert load(str(tmp_path / "a.csv"), reviews=False).classes == ("0", "1")
    assert load(str(tmp_path / "a.csv")).classes == ("negative", "positive")


def test_messages_speak_of_texts(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("text,label\nsame,1\nSame,0\n")
    for data in (tmp_path / "a.csv", tmp_path / "nowhere.csv"):
        assert main(["--data", str(data), "--out", str(tmp_path / "run")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "text" in line or "file" in line
        assert not {"review", "reviews", "movie", "film", "imdb,"} & set(line.split())


def test_help_speaks_of_texts(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert "movie" not in printed and "film" not in printed and "IMDb" not in printed


def test_weights_and_vectors_do_not_go_together(capsys):
    options = "--data a.csv --unlabelled --vectors --class-weights balanced"
    assert main(options.split()) == 2
    assert "--class-weights cannot be combined with --vectors" in capsys.readouterr().err


@pytest.mark.usefixtures("small_recipes")
def test_a_run_says_what_its_classes_are_and_learns_from_texts_without_a_label(tmp_path, capsys):
    labels = ["sea"] * 61 + ["land"] * 36 + ["air"] * 3 + [None] * 20
    texts = [f"{label or 'sea'} number {i} of these texts" for i, label in enumerate(labels)]
    data, run = tmp_path / "a.tsv", tmp_path / "run"
    pd.DataFrame({"body": texts, "topic": labels}).to_csv(data, sep="\t", index=False)
    options = (
        f"--data {data} --out {run} --text-column body --label-column topic --unlabelled "
        "--class-weights balanced --max-steps 1 --batch-tokens 512 --max-length 16 "
        "--tokenizer word:40 --dtype float32"
    )
    assert main(options.split()) == 0
    printed = capsys.readouterr().out
    assert "3 classes: air, land, sea" in printed and "20 unlabelled, which get" in printed
    report = json.loads((run / "report.json").read_text())
    assert report["class_weights"] == "balanced" and report["data"]["unlabelled"] == 20
    assert "fewer than 5% of the training texts are of air" in (run / "report.md").read_text()
