"""`predict` on tables: it reads what training reads, and writes every row with its label."""

import csv
import json
from pathlib import Path

import datasets
import pandas as pd
import pytest

from transformer_jax.__main__ import main
from transformer_jax.cli.predicted_tables import write_predictions
from transformer_jax.inference.classify import Prediction
from transformer_jax.runtime.errors import InputError
from transformer_jax.text.table_folders import read_whole
from transformer_jax.text.tables import read_table

RUN = str(Path(__file__).parents[1] / "data" / "run_folders" / "imdb")
FRAME = pd.DataFrame(
    {"id": [7, 8, 9], "body": ["a fine film", "", 'dull; "very"\npoor'], "label": ["x", "y", "z"]}
)


def said(texts):
    return [Prediction(t, "good" if "fine" in t else "bad", 0.75, {}, 1, 0) for t in texts]


def written(path, out, column="body"):
    table = read_table(path, [column])
    note = write_predictions(str(out), table, said(table.texts(column, "--text-column")))
    return note


@pytest.mark.parametrize("kind", ["csv", "semicolons.csv", "tsv", "jsonl", "json", "parquet"])
def test_every_row_is_written_as_it_was_with_label_and_probability(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        FRAME.to_parquet(path)
    elif "json" in kind:
        FRAME.to_json(path, orient="records", lines=kind == "jsonl")
    else:
        FRAME.to_csv(path, index=False, sep={"tsv": "\t", "csv": ","}.get(kind, ";"))
    added = {"predicted_label": ["good", "bad", "bad"], "predicted_probability": [0.75] * 3}
    for name in ("out.csv", "out.tsv", "out.jsonl"):
        note = written(path, tmp_path / name)
        assert note.endswith(f"{name}: 3 rows, with predicted_label and predicted_probability")
        if name == "out.jsonl":
            rows = map(json.loads, (tmp_path / name).read_text().splitlines())
            found = pd.DataFrame(rows).astype({"id": int})
        else:
            delimiter = "\t" if name == "out.tsv" else ";" if "semicolons" in kind else ","
            found = pd.read_csv(tmp_path / name, sep=delimiter, keep_default_na=False)
        pd.testing.assert_frame_equal(found, FRAME.assign(**added), check_dtype=False)


def test_names_that_are_free_are_not_changed(tmp_path):
    (tmp_path / "a.csv").write_text("text\na fine film\n")
    written(tmp_path / "a.csv", tmp_path / "b.csv", "text")
    with open(tmp_path / "b.csv", newline="") as file:
        assert list(csv.reader(file)) == [
            ["text", "label", "probability"],
            ["a fine film", "good", "0.750000"],
        ]


def test_a_table_is_read_with_its_column_and_written(tmp_path, capsys):
    FRAME.to_csv(tmp_path / "a.csv", index=False, sep=";", encoding="utf-16")
    out = tmp_path / "b.csv"
    words = ["predict", RUN, "--file", str(tmp_path / "a.csv"), "--text-column", "body"]
    assert main([*words, "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "the columns are separated by semicolons" in printed.err
    found = pd.read_csv(out, sep=";", keep_default_na=False)
    assert set(found["predicted_label"]) <= {"negative", "positive"} and len(found) == 3


def test_no_column_is_lost_behind_another_of_its_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label,predicted_label\nfine,1,good\n")
    with pytest.raises(InputError, match=r"a\.csv has columns for labels and for predicted ones"):
        written(path, tmp_path / "out.csv", "text")
    path.write_text("text,id,id\nfine,1,2\n")
    with pytest.raises(InputError, match=r"a\.csv has two columns of one name; write a \.csv or"):
        written(path, tmp_path / "out.jsonl", "text")
    written(path, tmp_path / "out.csv", "text")
    assert (tmp_path / "out.csv").read_text().splitlines()[1] == "fine,1,2,good,0.750000"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--file", "a.csv"], "no column 'text' among 'id', 'body', 'label'"),
        (["--file", "a.csv", "-o", "b.parquet"], "-o must end with .csv, .tsv or .jsonl"),
        (["--file", "a.csv", "-o", "./a.csv"], "is the file that is read; name another"),
        (["--file", "a.csv", "fine"], "pass texts or the table a.csv, not both"),
        (["fine", "--text-column", "body"], "--text-column is for --file with a .csv"),
        (["--file", "nowhere.csv"], "nowhere.csv cannot be read: No such file"),
        (["--file", "a.csv", "--text-column", "id", "--encoding", "utf-9"], "no such encoding"),
    ],
)
def test_a_mistake_is_one_line(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("a.csv", index=False)
    assert main(["predict", RUN, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]


def test_a_text_that_looks_like_a_path_is_noted(capsys):
    paths, texts = ["texts.csv", "./texts", "a/b.txt", "~/a"], ["fine.", "and/or", "see a.csv", "/"]
    assert main(["predict", RUN, *paths, *texts]) == 0
    lines = capsys.readouterr().err.splitlines()
    noted = [line.split()[1] for line in lines if "looks like a file that does not exist" in line]
    assert noted == paths
    assert main(["explain", RUN, "a.csv"]) == 0
    assert "note: a.csv looks like a file that does not exist" in capsys.readouterr().err


def test_blank_texts_are_counted(capsys):
    assert main(["predict", RUN, " ", "fine"]) == 0
    assert "note: 1 of 2 texts are blank" in capsys.readouterr().err
    assert main(["explain", RUN, ""]) == 0
    assert "note: 1 of 1 texts are blank" in capsys.readouterr().err


def saved(folder, **parts):
    tables = {name: datasets.Dataset.from_pandas(frame) for name, frame in parts.items()}
    datasets.DatasetDict(tables).save_to_disk(folder, num_shards=dict.fromkeys(tables, 2))


@pytest.mark.filterwarnings("ignore")
def test_a_folder_is_read_as_training_reads_it(tmp_path, capsys):
    first, last = FRAME[:2], FRAME[2:]
    (tmp_path / "shards").mkdir()
    for i, frame in enumerate((first, last)):
        frame.to_parquet(tmp_path / "shards" / f"test-0000{i}-of-00002.parquet")
    saved(tmp_path / "saved", train=FRAME[:2], test=FRAME)
    saved(tmp_path / "one", train=FRAME)
    for name in ("shards", "shards/test", "saved/test", "one"):
        out = tmp_path / "out.csv"
        words = ["predict", RUN, "--file", str(tmp_path / name), "--text-column", "body"]
        assert main([*words, "-o", str(out)]) == 0
        found = pd.read_csv(out, keep_default_na=False)
        assert (found["id"].tolist(), found["body"].tolist()) == ([7, 8, 9], [*FRAME["body"]])
    capsys.readouterr()
    (tmp_path / "shards" / "train.csv").write_text("text\nfine\n")
    (tmp_path / "empty").mkdir()
    for name, says in (
        ("saved", "has the parts train, test; pass one, such as"),
        ("shards", "has the parts train, test; pass one, such as"),
        ("empty", "holds no table named train or test"),
    ):
        assert main(["predict", RUN, "--file", str(tmp_path / name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line


def test_shards_with_other_columns_are_not_joined(tmp_path):
    FRAME.to_parquet(tmp_path / "a.parquet")
    FRAME.drop(columns="id").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet: its columns body, label are not those of a"):
        read_whole(tmp_path, ["body"])
