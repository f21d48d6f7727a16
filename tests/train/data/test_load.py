"""The guarantees of `--data`: the same texts and labels from every format, splits that share
nothing, and one clear line for every fault. No test needs a network or a downloaded file."""

import gzip
import io
import json
import tarfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from train.data import hub
from train.data.dataset import DataError, Split
from train.data.hub import Unreachable
from train.data.imdb_archive import read_archive
from train.data.load import load, split_validation
from train.data.splits import same_text

TEXTS = [f"review number {i} of this film" for i in range(20)]
LABELS = [i % 2 for i in range(20)]
FRAME = pd.DataFrame({"text": TEXTS, "label": LABELS})
RELEASE = {
    "train/neg/0_2.txt": "Dull, \x85 and <br />long.",
    "train/neg/1_1.txt": "Awful.",
    "train/pos/0_9.txt": "Lovely.",
    "train/pos/1_10.txt": "A café of joy.",
    "train/unsup/0_0.txt": "Unlabelled.",
    "train/unsup/1_0.txt": "weak",
    "train/urls_neg.txt": "http://www.imdb.com/title/tt0064354/usercomments\n"
    "http://www.imdb.com/title/tt0000002/usercomments\n",
    "train/urls_pos.txt": "http://www.imdb.com/title/tt0000003/usercomments\n"
    "http://www.imdb.com/title/tt0064354/usercomments\n",
    "train/labeledBow.feat": "9 0:9\n",
    "test/neg/0_3.txt": "Weak",
    "test/pos/0_7.txt": "Strong",
    "README": "not a review",
}


def write_release(folder: Path) -> Path:
    for name, text in RELEASE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


def archive(path: Path, extra: list[tuple[tarfile.TarInfo, bytes]] = ()) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in RELEASE.items():
            member = tarfile.TarInfo(f"aclImdb/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        for member, content in extra:
            tar.addfile(member, io.BytesIO(content))
    return path


def write_parquet_folder(folder: Path, **columns: list) -> Path:
    pd.DataFrame({"text": TEXTS, "label": LABELS, **columns}).to_parquet(folder / "train.parquet")
    test = pd.DataFrame({"text": ["One more.", TEXTS[3], "  REVIEW number 4 of this film"]})
    test.assign(label=[0, 1, 0]).to_parquet(folder / "test.parquet")
    return folder


def rows(data) -> set[tuple[str, str]]:
    """Every labelled text of a data set with the name of its label."""
    return {
        (text, data.classes[label])
        for split in (data.train, data.test)
        for text, label in zip(split.texts, split.labels, strict=True)
    }


# One file.


def write_jsonl(frame: pd.DataFrame, path: Path) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in frame.to_dict("records")]
    path.write_text("\n".join(lines), encoding="utf-8")


WRITERS = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "jsonl": write_jsonl,
    "parquet": lambda frame, path: frame.to_parquet(path),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_file_format_gives_the_same_texts_and_labels(kind, tmp_path):
    strange = [".", 'Quotes "and", commas;\ttabs', "two\nlines", "ellipsis\x85 and\u2028more", "NA"]
    frame = pd.DataFrame({"text": TEXTS + strange, "label": [*LABELS, 0, 1, 0, 1, 0], "other": 7})
    path = tmp_path / f"reviews.{kind}"
    WRITERS[kind](frame, path)
    data = load(str(path))
    assert rows(data) == {
        (t, ("negative", "positive")[n]) for t, n in zip(frame["text"], frame["label"], strict=True)
    }
    assert data.name == f"reviews.{kind}" and str(tmp_path) not in data.source
    assert data.train.labels.dtype == data.test.labels.dtype == np.int32
    assert len(data.test) == 5 and any("no test split" in note for note in data.notes)


def test_words_as_labels_become_classes_in_alphabetical_order(tmp_path):
    path = tmp_path / "moods.csv"
    moods = ["sad", "glad", "mad", "glad"] * 5
    pd.DataFrame({"body": TEXTS, "mood": moods}).to_csv(path, index=False)
    with pytest.raises(DataError, match=r"got 3: 'glad', 'mad', 'sad'; .* pass --classes 3"):
        load(str(path), text_column="body", label_column="mood", classes=2)
    data = load(str(path), text_column="body", label_column="mood")
    assert data.classes == ("glad", "mad", "sad")
    assert rows(data) == set(zip(TEXTS, moods, strict=True))


def test_integers_other_than_0_and_1_are_classes_in_numerical_order(tmp_path):
    path = tmp_path / "stars.csv"
    FRAME.assign(label=[10, 9] * 10).to_csv(path, index=False)
    data = load(str(path))
    assert data.classes == ("9", "10")
    assert rows(data) == set(zip(TEXTS, ["10", "9"] * 10, strict=True))


def test_equal_texts_do_not_straddle_a_made_test_split(tmp_path):
    path = tmp_path / "copies.csv"
    copies = [text.upper() + "  " for text in TEXTS]
    pd.DataFrame({"text": TEXTS + copies, "label": LABELS * 2}).to_csv(path, index=False)
    data = load(str(path), test_fraction=0.3)
    assert len(data.test) == 12
    assert not set(map(same_text, data.train.texts)) & set(map(same_text, data.test.texts))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", b"text,label\ngood,1\nb\xe4d,0\n", "a.csv, line 3: byte 0xe4 is not UTF-8"),
        ("a.csv", b"review,label\ngood,1\n", "no column 'text' among 'review', 'label'"),
        ("a.csv", b"text,label,label\ngood,1,1\n", "two columns 'label'"),
        ("a.csv", b"text,label,movie,movie\ngood,1,x,y\n", "two columns 'movie'; rename one"),
        ("a.csv", b"text,label\nwell, good,1\n", "expected 2 columns as in the header, got 3"),
        ("a.csv", b'text,label\n"open,1\n', "a.csv, line 2: unexpected end of data"),
        (
            "a.csv",
            b"text,label\ngood,1\nbad,\n",
            "1 row cannot be used: 1 with a blank label (line 3)",
        ),
        (
            "a.csv",
            b"text,label\ngood,1\nfine,1\n",
            "two or more different labels, got 1: 1",
        ),
        ("a.csv", b"text,label\n", "it has no rows"),
        ("a.csv", b"", "no column 'text' among none"),
        ("a.csv", b"text,label\nsame,1\nSame,0\n", "all 2 texts are equal"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"\n', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n\n[1]\n', "line 3: expected an object"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', "1 with a blank label (line 2)"),
        ("a.jsonl", b'{"text": null, "label": 1}\n', "1 with a blank text (line 1)"),
        ("a.jsonl", b'{"text": "a", "label": 0.5}\n', "line 1: the label must be an integer"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b", "label": "x"}', "one kind"),
        ("a.parquet", b"PAR1 no", "a.parquet: not a sound Parquet file"),
        ("a.txt", b"good", "none of the accepted formats"),
    ],
)
def test_a_faulty_file_is_one_line_that_names_the_place(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        load(str(tmp_path / name))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_that_is_not_there_or_holds_nothing_known_says_what_to_pass(tmp_path):
    with pytest.raises(DataError, match=r"no file or folder .*pass auto, imdb, sample"):
        load(str(tmp_path / "nowhere"))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"no file named train, but notes.txt"):
        load(str(tmp_path))


@pytest.mark.parametrize("data", ["sample", "release", "parquet"])
def test_options_that_the_data_cannot_obey_are_refused(data, tmp_path):
    if data == "release":
        write_release(tmp_path)
    elif data == "parquet":
        frame = pd.DataFrame({"body": TEXTS, "mood": LABELS})
        frame.to_parquet(tmp_path / "train.parquet")
    columns = {"text_column": "body", "label_column": "mood"}
    name = "sample" if data == "sample" else str(tmp_path)
    if data == "parquet":
        assert len(load(name, **columns).classes) == 2
    else:
        for option, column in columns.items():
            with pytest.raises(DataError, match="has no columns; --text-column and --label-column"):
                load(name, **{option: column})
        columns = {}
    says = "2 classes, negative and positive; got --classes 5|expected 5 different labels, got 2"
    with pytest.raises(DataError, match=says):
        load(name, **columns, classes=5)
    with pytest.raises(DataError, match="--text-column and --label-column are both 'label'"):
        load(name, text_column="label")


def test_a_blank_line_of_jsonl_is_counted_and_a_repeated_column_refused(tmp_path):
    lines = [json.dumps({"text": text, "label": i % 2}) for i, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    data = load(str(tmp_path / "a.jsonl"))
    assert len(rows(data)) == 20 and data.notes[0] == "skipped 19 blank lines"
    (tmp_path / "a.jsonl").write_text('{"text": "a", "text": "b", "label": 1}')
    with pytest.raises(DataError, match=r"line 1: not JSON: .* two values of one name"):
        load(str(tmp_path / "a.jsonl"))


# A folder of Parquet files.


def test_parquet_files_that_are_not_read_are_named(tmp_path):
    write_parquet_folder(tmp_path)
    FRAME.to_parquet(tmp_path / "extra.parquet")
    assert load(str(tmp_path)).notes[0] == "not read: extra.parquet"


def test_training_and_unlabelled_rows_that_repeat_a_test_text_are_dropped_and_counted(tmp_path):
    write_parquet_folder(tmp_path, movie=[f"tt{i}" for i in range(20)])
    pd.DataFrame({"text": ["one MORE.", "new"]}).to_parquet(tmp_path / "unsupervised.parquet")
    data = load(str(tmp_path))
    assert len(data.train) == 18 and len(data.test) == 3
    assert data.train.groups == [f"tt{i}" for i in range(20) if i not in (3, 4)]
    assert data.unsupervised == ["new"]
    assert data.notes == (
        "dropped 2 training texts repeating a test text",
        "dropped 1 unlabelled text repeating a test text",
    )


@pytest.mark.parametrize("label", [-1, 2])
def test_a_folder_may_have_any_labels_unless_their_number_is_given(label, tmp_path):
    write_parquet_folder(tmp_path, label=[*LABELS[:-1], label])
    data = load(str(tmp_path))
    assert data.classes == tuple(map(str, sorted({0, 1, label})))
    assert any("-1 is read as a class" in note for note in data.notes) == (label == -1)
    with pytest.raises(DataError, match=r"expected 2 different labels, got 3: .*--classes 3"):
        load(str(tmp_path), classes=2)


def test_a_test_split_of_one_class_keeps_its_label(tmp_path):
    write_parquet_folder(tmp_path)
    pd.DataFrame({"text": ["new"], "label": [1]}).to_parquet(tmp_path / "test.parquet")
    assert load(str(tmp_path)).test.labels.tolist() == [1]
    write_release(tmp_path / "aclImdb")
    (tmp_path / "aclImdb/test/neg/0_3.txt").unlink()
    assert load(str(tmp_path / "aclImdb")).test.labels.tolist() == [1]
    (tmp_path / "aclImdb/train/neg/0_2.txt").unlink()
    (tmp_path / "aclImdb/train/neg/1_1.txt").unlink()
    with pytest.raises(DataError, match="train has only pos reviews"):
        load(str(tmp_path / "aclImdb"))
    for labels, says in (([1], "got 1: 1"), ([0, 1], "its test part has no labelled text")):
        texts = [f"t{i}" for i in labels]
        pd.DataFrame({"text": texts, "label": labels}).to_parquet(tmp_path / "train.parquet")
        pd.DataFrame({"text": [], "label": []}).to_parquet(tmp_path / "test.parquet")
        with pytest.raises(DataError, match=says):
            load(str(tmp_path))


def test_a_training_split_that_is_the_test_split_is_refused(tmp_path):
    for name in ("train", "test"):
        FRAME.to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="every training text is also a test text"):
        load(str(tmp_path))


# The release, as a folder and as an archive.


@pytest.mark.parametrize("form", ["folder", "folder above", "archive"])
def test_the_release_gives_reviews_labels_and_movies(form, tmp_path):
    if form == "archive":
        data = load(str(archive(tmp_path / "aclImdb_v1.tar.gz")))
    else:
        folder = write_release(tmp_path / "aclImdb")
        data = load(str(folder if form == "folder" else tmp_path))
    assert data.train.texts == [RELEASE[name] for name in list(RELEASE)[:4]]
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert data.train.groups == ["tt0064354", "tt0000002", "tt0000003", "tt0064354"]
    assert data.test.texts == ["Weak", "Strong"] and data.test.labels.tolist() == [0, 1]
    assert data.test.groups is None
    assert data.unsupervised == ["Unlabelled."]


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_reviews_with_the_same_number_are_all_read_and_other_files_are_counted(form, tmp_path):
    more = {"train/pos/1_8.txt": "Another.", "train/pos/mine.txt": "Mine.", "test/neg/0_3.md": "M"}
    more |= {"train/pos/more/2_8.txt": "Below.", "test/unsup/0_0.txt": "No such part."}
    if form == "archive":
        members = []
        for name, text in more.items():
            members.append((tarfile.TarInfo(f"aclImdb/{name}"), text.encode()))
            members[-1][0].size = len(text)
        data = load(str(archive(tmp_path / "a.tar.gz", members)))
    else:
        write_release(tmp_path / "aclImdb")
        for name, text in more.items():
            (tmp_path / "aclImdb" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "aclImdb" / name).write_text(text)
        data = load(str(tmp_path / "aclImdb"))
    assert data.train.texts[-3:] == ["Lovely.", "A café of joy.", "Another."]
    assert data.train.groups[-2:] == ["tt0064354", "tt0064354"]
    assert "ignored 4 files that are no reviews of the release in a" in data.notes[0]


def test_an_archive_is_read_without_writing_anything(tmp_path, monkeypatch):
    path = archive(tmp_path / "a.tar.gz")
    monkeypatch.chdir(tmp_path)
    load(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar_gives_the_release(form, tmp_path):
    """GNU tar has headers for long names, and PAX for those and for times with fractions."""
    folder = write_release(tmp_path / "aclImdb")
    if form != tarfile.USTAR_FORMAT:
        (folder / ("x" * 200)).touch()
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=form) as tar:
        tar.add(folder, "aclImdb")
    data = load(str(tmp_path / "a.tar.gz"))
    assert data.train.texts == [RELEASE[name] for name in list(RELEASE)[:4]]
    assert data.test.texts == ["Weak", "Strong"]


def test_links_and_devices_in_an_archive_are_ignored_and_counted(tmp_path):
    link = tarfile.TarInfo("aclImdb/train/pos/7_9.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    device = tarfile.TarInfo("aclImdb/train/pos/8_9.txt")
    device.type = tarfile.CHRTYPE
    outside = tarfile.TarInfo("../../train/pos/9_9.txt")
    data = load(str(archive(tmp_path / "a.tar.gz", [(link, b""), (device, b""), (outside, b"")])))
    assert len(data.train) == 4
    assert "ignored 2 links or devices in a.tar.gz" in data.notes[0]


def test_a_member_that_claims_to_be_huge_is_refused_unread(tmp_path):
    bomb = tarfile.TarInfo("aclImdb/train/pos/7_9.txt")
    bomb.size = 10**12
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb") as file:
        file.write(bomb.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(DataError, match=r"7_9.txt' claims 1,000,000,000,000 bytes"):
        load(str(path))


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_a_damaged_archive_is_refused(damage, tmp_path):
    path = archive(tmp_path / "a.tar.gz")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-20]
    elif damage == "flipped":
        content[-6] ^= 1  # in the sum at the end
    else:
        content = bytearray(b"plain text")
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a whole .tar.gz"):
        load(str(path))


def test_a_review_that_is_not_utf8_is_named(tmp_path):
    write_release(tmp_path)
    (tmp_path / "train/pos/1_10.txt").write_bytes(b"caf\xe9")
    says = r"train/pos/1_10.txt, line 1: byte 0xe9 is not UTF-8"
    with pytest.raises(DataError, match=says):
        load(str(tmp_path))
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "train", "aclImdb/train")
    with pytest.raises(DataError, match=f"a.tar.gz: {says}"):
        read_archive(tmp_path / "a.tar.gz")


# The hub.


def unreachable():
    raise Unreachable("https://hub.example: no answer within 5 seconds")


def test_auto_without_network_or_cache_is_the_sample_and_says_so(monkeypatch):
    monkeypatch.setattr("train.data.load.load_imdb", unreachable)
    data = load("auto")
    assert data.name == "sample"
    assert data.notes[0].startswith("NOT IMDb: this run uses the BUILT-IN SAMPLE")
    assert "no answer within 5 seconds" in data.notes[0]


def test_imdb_without_network_or_cache_is_an_error_that_says_what_to_pass(monkeypatch):
    monkeypatch.setattr("train.data.load.load_imdb", unreachable)
    with pytest.raises(DataError, match=r"no answer within 5 seconds.*--data sample"):
        load("imdb")


def test_a_hub_that_never_answers_is_given_up_in_time(monkeypatch):
    import huggingface_hub

    def hang(*_, **__):
        time.sleep(3)

    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", hang)
    start = time.monotonic()
    assert hub.probe(patience=0.2).endswith("no answer within 0.2 seconds")
    assert time.monotonic() - start < 1.5


def test_offline_mode_asks_nobody(monkeypatch):
    import huggingface_hub

    def fail(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    assert "offline mode" in hub.probe()


def test_a_cached_imdb_is_read_without_asking_anybody(tmp_path, monkeypatch):
    import datasets

    # The layout in which load_dataset leaves a data set.
    folder = tmp_path / "stanfordnlp___imdb" / "plain_text" / "0.0.0" / ("e" * 40)
    folder.mkdir(parents=True)
    infos = datasets.SplitDict()
    for part, labels in {"train": [0, 1], "test": [1, 0], "unsupervised": [-1, -1]}.items():
        texts = [f"{part} {i}" for i in range(2)]
        table = datasets.Dataset.from_dict({"text": texts, "label": labels})
        with datasets.arrow_writer.ArrowWriter(
            path=str(folder / f"imdb-{part}.arrow"), features=table.features
        ) as writer:
            for row in table:
                writer.write(row)
            writer.finalize()
        infos.add(datasets.SplitInfo(part, num_examples=2, dataset_name="imdb"))
    info = datasets.DatasetInfo(
        features=table.features,
        splits=infos,
        builder_name="parquet",
        dataset_name="imdb",
        config_name="plain_text",
    )
    info.write_to_directory(str(folder))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "probe", lambda: pytest.fail("the network was asked"))

    before = datasets.config.HF_HUB_OFFLINE
    data = load("auto")
    assert data.name == "imdb" and "local Hugging Face cache" in data.source
    assert data.train.texts == ["train 0", "train 1"] and data.train.labels.tolist() == [0, 1]
    assert len(data.test) == 2 and len(data.unsupervised) == 2
    assert before == datasets.config.HF_HUB_OFFLINE


def test_the_hub_lists_reviews_in_blocks_which_are_put_in_order():
    listed = [*range(127, -1, -1), *range(255, 127, -1), *range(299, 255, -1)]
    texts = [f"{label} {i}" for label in (0, 1) for i in listed]
    split = Split(texts, np.repeat([0, 1], 300).astype(np.int32), None)
    found = hub.as_numbered(split)
    assert found.texts == [f"{label} {i}" for label in (0, 1) for i in range(300)]
    assert found.labels.tolist() == split.labels.tolist()


# Validation.


def corpus(rows: int = 200, movies: int | None = 40) -> Split:
    rng = np.random.default_rng(7)
    texts = [f"text {i}" for i in range(rows)]
    texts[:10] = texts[-10:]  # copies, which join movies
    groups = None if movies is None else [f"tt{i}" for i in rng.integers(0, movies, rows)]
    return Split(texts, rng.integers(0, 2, rows).astype(np.int32), groups)


def test_validation_shares_no_movie_and_no_text_with_training():
    texts = [f"text {i}" for i in range(200)]
    texts[100] = "  TEXT\n3 "  # joins two movies
    groups = [f"tt{i // 5}" for i in range(200)]
    split = Split(texts, np.zeros(200, np.int32), groups)
    for seed in range(5):
        kept, held, rule = split_validation(split, 0.2, seed)
        assert len(kept) + len(held) == 200 and len(held) == 40
        assert not set(kept.groups) & set(held.groups)
        assert not set(map(same_text, kept.texts)) & set(map(same_text, held.texts))
        assert rule.startswith("by movie (")


def test_validation_without_movies_shares_no_text():
    kept, held, rule = split_validation(corpus(movies=None), 0.25, 0)
    assert not set(kept.texts) & set(held.texts)
    assert kept.groups is held.groups is None
    assert len(held) == 50 and rule.startswith("by distinct text (")


def test_unknown_movies_are_not_one_movie():
    split = Split([f"text {i}" for i in range(50)], np.zeros(50, np.int32), [""] * 49 + ["tt1"])
    assert len(split_validation(split, 0.2, 0)[1]) == 10


def test_validation_depends_on_the_seed_and_not_on_the_order_of_rows():
    split = corpus()
    order = np.random.default_rng(1).permutation(len(split))
    first = split_validation(split, 0.2, 3)[1]
    again = split_validation(split.take(order), 0.2, 3)[1]
    other = split_validation(split, 0.2, 4)[1]
    assert sorted(first.texts) == sorted(again.texts) != sorted(other.texts)


def test_both_parts_keep_texts_labels_and_movies_together():
    split = corpus()
    known = set(zip(split.texts, split.labels.tolist(), split.groups, strict=True))
    for part in split_validation(split, 0.1, 0)[:2]:
        assert set(zip(part.texts, part.labels.tolist(), part.groups, strict=True)) <= known


def test_a_part_is_never_empty():
    movies = ["tt1"] * 9 + ["tt2"]
    split = Split([f"text {i}" for i in range(10)], np.zeros(10, np.int32), movies)
    for fraction in (0.01, 0.5, 0.99):
        kept, held, _ = split_validation(split, fraction, 0)
        assert len(kept) and len(held)
    alone = Split(["a", "b"], np.zeros(2, np.int32), ["tt1", "tt1"])
    with pytest.raises(DataError, match="no validation part can be held out"):
        split_validation(alone, 0.5, 0)
    with pytest.raises(DataError, match="between 0 and 1"):
        split_validation(split, 1.0, 0)
