"""Users' own tables: every format gives the same texts, and no row is lost without a word."""

import gzip
import json

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train.data.dataset import DataError
from train.data.labels import spelling_notes
from train.data.load import load
from train.data.splits import validation_part
from transformer_jax.text.table_folders import read_whole

TEXTS = [f"text {i}, né à Łódź" for i in range(20)]
WORDS = ["sea", "land", "air", "sea"] * 5
FRAME = pd.DataFrame({"text": TEXTS, "label": WORDS, "other": 7})


def read(path, **options):
    return load(str(path), reviews=False, **options)


def rows(data):
    """Every labelled text of a data set with the name of its label."""
    splits = (data.train, data.test, *([data.validation] if data.validation else []))
    return {
        (text, data.classes[label])
        for split in splits
        for text, label in zip(split.texts, split.labels, strict=True)
    }


def json_lines(frame):
    return frame.to_json(orient="records", lines=True, force_ascii=False)


def csv_of(delimiter):
    return lambda frame: frame.to_csv(index=False, sep=delimiter)


FILES = {
    "commas.csv": (csv_of(","), "utf-8"),
    "semicolons.csv": (csv_of(";"), "utf-8"),
    "tabs.csv": (csv_of("\t"), "utf-8"),
    "a.tsv": (csv_of("\t"), "utf-8"),
    "mark.csv": (csv_of(","), "utf-8-sig"),
    "utf-16.csv": (csv_of(";"), "utf-16"),
    "utf-16.tsv": (csv_of("\t"), "utf-16"),
    "a.json": (lambda frame: frame.to_json(orient="records"), "utf-8"),
    "lines.json": (json_lines, "utf-8"),
    "a.jsonl": (json_lines, "utf-8"),
    "a.ndjson": (json_lines, "utf-16"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("packed", [False, True], ids=["", "gz"])
def test_every_text_format_and_encoding_gives_the_same_texts_and_labels(name, packed, tmp_path):
    write, encoding = FILES[name]
    content = write(FRAME).encode(encoding)
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(content) if packed else content)
    data = read(path)
    assert rows(data) == set(zip(TEXTS, WORDS, strict=True))
    assert data.classes == ("air", "land", "sea")
    if "semicolons" in name:
        assert "the columns are separated by semicolons" in data.notes


def test_another_encoding_is_named_and_asked_for(tmp_path):
    text = csv_of(",")(FRAME.replace("Łódź", "Köln", regex=True))
    (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
    with pytest.raises(DataError, match=r"line 2: byte 0xe9 is not UTF-8; .*--encoding cp1252"):
        read(tmp_path / "a.csv")
    data = read(tmp_path / "a.csv", encoding="cp1252")
    assert {text.split()[-1] for text, _ in rows(data)} == {"Köln"}


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["0", "1"], ("0", "1")),
        (["0.0", "1.0"], ("0", "1")),
        (["10", "9.0"], ("9", "10")),
        (["0.5", "1"], ("0.5", "1")),
        (["True", "False"], ("False", "True")),
        ([" good ", "bad"], ("bad", "good")),
    ],
)
def test_labels_of_a_csv_are_integers_if_they_look_so_and_else_words(labels, classes, tmp_path):
    FRAME.assign(label=labels * 10).to_csv(tmp_path / "a.csv", index=False)
    assert read(tmp_path / "a.csv").classes == classes


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([1.0, 0.0], ("0", "1")), ([True, False], ("False", "True")), (["1", "0"], ("0", "1"))],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_typed_labels_are_integers_booleans_or_words(kind, labels, classes, tmp_path):
    frame = FRAME.assign(label=labels * 10)
    if kind == "parquet":
        frame.to_parquet(tmp_path / "a.parquet")
    else:
        lines = map(json.dumps, frame.to_dict("records"))
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert read(tmp_path / f"a.{kind}").classes == classes


# Blank texts and labels.

BLANK = FRAME.assign(
    text=["", " ", *TEXTS[2:18], "\t", ""], label=["sea"] * 4 + ["", " "] + WORDS[6:]
)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
def test_blank_texts_and_labels_stop_the_run_or_are_dropped_and_counted(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    if kind == "csv":
        BLANK.to_csv(path, index=False)
    elif kind == "parquet":
        BLANK.replace(r"^\s*$", None, regex=True).to_parquet(path)
    else:
        BLANK.to_json(path, orient="records", lines=kind == "jsonl")
    first = {"csv": 2, "jsonl": 1, "json": 1, "parquet": 0}[kind]
    unit = {"json": "objects", "parquet": "rows"}.get(kind, "lines")
    says = (
        f"6 rows {{}}: 4 with a blank text ({unit} {first}, {first + 1}, {first + 18}, ...) and "
        f"2 with a blank label ({unit} {first + 4}, {first + 5})"
    )
    with pytest.raises(DataError) as error:
        read(path)
    assert says.format("cannot be used") in str(error.value)
    assert "drop them with --skip-bad, or learn" in str(error.value)
    data = read(path, skip_bad=True)
    assert "dropped " + says.format(f"of {path.name}") in data.notes
    assert rows(data) == set(zip(TEXTS[2:4] + TEXTS[6:18], ["sea"] * 2 + WORDS[6:18], strict=True))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_text_with_a_blank_label_is_an_unlabelled_text_if_they_are_asked_for(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    frame = FRAME.assign(label=[*WORDS[:15], *[None] * 5])
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        path.write_text("\n".join(row.dropna().to_json() for _, row in frame.iterrows()))
    data = read(path, unlabelled=True)
    assert data.unsupervised == TEXTS[15:] and len(data.classes) == 3
    assert rows(data) == set(zip(TEXTS[:15], WORDS[:15], strict=True))


def test_too_few_classes_are_explained_by_the_rows_that_were_dropped(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n,0\na,1\nb,1\n")
    says = r"got 1: 1; dropped 1 row of a.csv: 1 with a blank text \(line 2\)"
    with pytest.raises(DataError, match=says):
        read(tmp_path / "a.csv", skip_bad=True)


# Classes.


def test_a_column_with_a_label_for_each_text_is_refused_unless_the_number_is_given(tmp_path):
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(50)], "label": range(50)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=r"50 different labels of 50 texts .*--label-column"):
        read(tmp_path / "a.csv")
    assert len(read(tmp_path / "a.csv", classes=50).classes) == 50


def test_labels_that_differ_in_case_or_spaces_are_named(tmp_path):
    FRAME.assign(label=["Sea", "sea", "air ", "air"] * 5).to_csv(tmp_path / "a.csv", index=False)
    data = read(tmp_path / "a.csv")
    assert data.classes == ("Sea", "air", "sea")
    spaces, case = (note for note in data.notes if "differ" in note)
    assert "only in spaces are read as one: 'air', 'air '" in spaces
    assert "only in case are different classes: 'Sea', 'sea'; write them alike" in case
    with pytest.raises(
        DataError, match=r"got 3: .*; labels that differ only in case are different"
    ):
        read(tmp_path / "a.csv", classes=2)
    assert spelling_notes(["a", "b", "", None, 3]) == []


# Folders.


def test_the_files_of_a_folder_are_its_parts(tmp_path):
    for name, part in {"train": FRAME[:10], "dev": FRAME[10:15], "test": FRAME[15:]}.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    pd.DataFrame({"text": ["new", "", "newer"]}).to_csv(tmp_path / "unlabelled.csv", index=False)
    data = read(tmp_path)
    assert data.train.texts == TEXTS[:10] and data.test.texts == TEXTS[15:]
    assert data.validation.texts == TEXTS[10:15] and data.unsupervised == ["new", "newer"]
    assert "dropped 1 blank text of unlabelled.csv" in data.notes
    _, validation, rule = validation_part(data, 0.1, 0)
    assert validation.texts == TEXTS[10:15] and rule == "the validation part is the source's own"


@pytest.mark.parametrize("inside", ["", "data"])
def test_shards_of_parquet_are_one_part(inside, tmp_path):
    (tmp_path / inside).mkdir(exist_ok=True)
    for i in range(2):
        FRAME[8 * i : 8 * i + 8].to_parquet(tmp_path / inside / f"train-0000{i}-of-00002.parquet")
    FRAME[16:].to_parquet(tmp_path / inside / "test-00000-of-00001.parquet")
    data = read(tmp_path)
    assert data.train.texts == TEXTS[:16] and data.test.texts == TEXTS[16:]


def test_parquet_files_without_a_part_in_their_names_are_the_training_part(tmp_path):
    FRAME[:10].to_parquet(tmp_path / "part-0.parquet")
    FRAME[10:].to_parquet(tmp_path / "part-1.parquet")
    assert rows(read(tmp_path)) == set(zip(TEXTS, WORDS, strict=True))


def test_two_formats_of_one_part_are_refused(tmp_path):
    FRAME.to_parquet(tmp_path / "train.parquet")
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(DataError, match=r"train.csv and train.parquet are both of the train part"):
        read(tmp_path)


def test_texts_of_two_parts_are_dropped_from_the_one_that_learns(tmp_path):
    FRAME[:12].to_csv(tmp_path / "train.csv", index=False)
    FRAME[10:15].to_csv(tmp_path / "validation.csv", index=False)
    FRAME[14:].to_csv(tmp_path / "test.csv", index=False)
    data = read(tmp_path)
    assert data.train.texts == TEXTS[:10] and data.validation.texts == TEXTS[10:14]
    assert "dropped 1 validation text repeating a test text" in data.notes
    assert "dropped 2 training texts repeating a validation text" in data.notes


@pytest.mark.parametrize("split", [False, True])
def test_a_folder_saved_by_datasets_is_read_with_the_names_of_its_classes(split, tmp_path):
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["low", "high"])
    )
    labels = [0, 1] * 9 + [-1, -1]
    table = datasets.Dataset.from_dict({"text": TEXTS, "label": labels}, features=features)
    found = datasets.DatasetDict(train=table, test=table.select([0, 1])) if split else table
    found.save_to_disk(tmp_path / "saved")
    data = read(tmp_path / "saved", unlabelled=True)
    assert data.classes == ("high", "low") and data.unsupervised == TEXTS[18:]
    assert rows(data) == {(t, ("low", "high")[n]) for t, n in zip(TEXTS[:18], labels, strict=False)}
    with pytest.raises(DataError, match=r"2 with a blank label \(rows 18, 19\)"):
        read(tmp_path / "saved")


def test_the_names_of_classes_in_a_parquet_file_are_its_labels(tmp_path):
    names = ["low", "high"]
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=names)
    )
    labels = [0, 1] * 9 + [-1, None]
    table = datasets.Dataset.from_dict({"text": TEXTS, "label": labels}, features=features)
    table.to_parquet(tmp_path / "train.parquet")
    data = read(tmp_path / "train.parquet", unlabelled=True)
    assert data.classes == ("high", "low") and data.unsupervised == TEXTS[18:]
    assert rows(data) == {(t, names[n]) for t, n in zip(TEXTS[:18], labels, strict=False)}


def test_opinions_named_as_in_imdb_have_the_names_of_train_imdb(tmp_path):
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["neg", "pos"])
    )
    table = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1] * 10}, features=features)
    table.to_parquet(tmp_path / "train.parquet")
    assert read(tmp_path).classes == ("neg", "pos")
    assert load(str(tmp_path), reviews=True).classes == ("negative", "positive")


def test_a_class_without_a_name_is_refused(tmp_path):
    frame = pa.Table.from_pandas(FRAME.assign(label=[0, 1, 2, 1] * 5), preserve_index=False)
    features = {"label": {"names": ["low", "high"], "_type": "ClassLabel"}}
    info = json.dumps({"info": {"features": features}})
    pq.write_table(frame.replace_schema_metadata({"huggingface": info}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: there is a class 2, and names of 2 classes"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("damage", ["state", "cut", "missing"])
def test_a_damaged_folder_of_datasets_is_one_line(damage, tmp_path):
    datasets.Dataset.from_dict({"text": TEXTS, "label": WORDS}).save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    if damage == "state":
        (tmp_path / "saved" / "state.json").write_text("[]")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-700])
    if damage == "missing":
        file.unlink()
    with pytest.raises(DataError) as raised:
        read_whole(tmp_path / "saved", ["text"])
    assert "\n" not in str(raised.value) and "saved" in str(raised.value)
