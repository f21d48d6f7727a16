"""Loading of the data set that `--data` names, with training and test splits that share no text.

    auto      IMDb from the Hugging Face cache or hub; the built-in sample if it is in neither
    imdb      IMDb, or an error
    sample    the built-in sample (train/data/sample_reviews.py)
    PATH      a folder with train.parquet and test.parquet, the aclImdb folder or its .tar.gz,
              or one .csv, .tsv, .jsonl or .parquet file with a text and a label column

For every source, training and unlabelled rows that repeat a test text are dropped, because a score
on a text that was trained on is meaningless."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from train.data import imdb_archive, table_files
from train.data.dataset import DataError, Dataset, Split, Tables, readable
from train.data.hub import Unreachable, load_imdb
from train.data.sample_reviews import sample
from train.data.splits import draw, drop_overlap, split_validation

__all__ = ["DataError", "Dataset", "Split", "load", "split_validation"]

ACCEPTED = (
    "an aclImdb folder or .tar.gz, a folder with train.parquet and test.parquet, "
    "or a .csv, .tsv, .jsonl or .parquet file"
)
NAMES = ("auto", "imdb", "sample")
COLUMNS = ("text", "label")  # unless others are named
OFFLINE = (
    "NOT IMDb: this run uses the BUILT-IN SAMPLE of generated reviews, because IMDb is not cached "
    "and cannot be loaded from the Hugging Face Hub ({reason}). Its accuracy says nothing about "
    "IMDb. "
    f"For real data pass --data PATH: {ACCEPTED}."
)


def load(
    data: str = "auto",
    *,
    text_column: str = COLUMNS[0],
    label_column: str = COLUMNS[1],
    classes: int = 2,
    seed: int = 0,
    test_fraction: float = 0.2,
    reviews: bool = True,
) -> Dataset:
    """Load the data set that `--data` names.

    The columns apply to files only; `test_fraction` applies to sources without a test split. With
    `reviews`, auto and imdb are names, and labels 0 and 1 are negative and positive.
    Raises DataError for data that cannot be used, or that has no columns or another number of
    classes.
    """
    if text_column == label_column:
        raise DataError(f"--text-column and --label-column are both {text_column!r}")
    if not reviews and data in ("auto", "imdb"):
        raise DataError(f"--data {data} is for train.imdb; pass {ACCEPTED}")
    if not _has_columns(data) and (text_column, label_column) != COLUMNS:
        raise DataError(
            f"--data {data} has no columns; --text-column and --label-column are for "
            ".csv, .tsv, .jsonl and .parquet files"
        )
    found = _load(data, text_column, label_column, classes, seed, test_fraction, reviews)
    if len(found.classes) != classes:
        raise DataError(
            f"--data {data} has {len(found.classes)} classes, "
            f"{' and '.join(found.classes)}; got --classes {classes}"
        )
    return found


def _has_columns(data: str) -> bool:
    """Return whether `--data` names a table, or nothing, which is another error."""
    path = Path(data)
    with readable(path):
        if data in NAMES or not path.exists():
            return data not in NAMES
        return path.suffix.lower() in table_files.READERS or (path / "train.parquet").is_file()


def _load(
    data: str,
    text_column: str,
    label_column: str,
    classes: int,
    seed: int,
    test_fraction: float,
    reviews: bool,
) -> Dataset:
    if data == "sample":
        return _clean(sample(seed))
    if data in ("auto", "imdb"):
        try:
            return _from_tables("imdb", load_imdb(), seed, test_fraction)
        except Unreachable as error:
            if data == "imdb":
                raise DataError(
                    "--data imdb: IMDb is not cached and cannot be loaded from the Hugging Face "
                    f"Hub ({error}); pass --data sample, or --data PATH: {ACCEPTED}"
                ) from None
            fallback = sample(seed)
            return _clean(replace(fallback, notes=(OFFLINE.format(reason=error), *fallback.notes)))
    path = Path(data)
    with readable(path):
        tables = _read(path, text_column, label_column, classes, reviews)
        return _from_tables(path.resolve().name, tables, seed, test_fraction)


def load_data(options: Any) -> Dataset:
    """Load the data set that the options of a program name."""
    return load(
        options.data,
        text_column=options.text_column,
        label_column=options.label_column,
        classes=options.classes,
        seed=options.seed,
        reviews=options.reviews,
    )


def _read(path: Path, text_column: str, label_column: str, classes: int, reviews: bool) -> Tables:
    """Read a path in any of the accepted formats."""
    if path.is_dir():
        if (path / "train.parquet").is_file():
            return table_files.read_parquet_folder(path, text_column, label_column, reviews)
        for folder in (path, path / "aclImdb"):
            if (folder / "train" / "pos").is_dir():
                return imdb_archive.read_folder(folder)
        found = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{path} holds neither train.parquet nor train/pos, but {found}; pass {ACCEPTED}"
        )
    if not path.exists():
        named = "auto, imdb, sample" if reviews else "sample"
        raise DataError(f"no file or folder {path}; pass {named}, or {ACCEPTED}")
    if path.name.lower().endswith((".tar.gz", ".tgz")):
        return imdb_archive.read_archive(path)
    if path.suffix.lower() in table_files.READERS:
        return table_files.read_file(path, text_column, label_column, classes, reviews)
    raise DataError(f"{path} is none of the accepted formats: {ACCEPTED}")


def _from_tables(name: str, source: Tables, seed: int, test_fraction: float) -> Dataset:
    train, test, notes = source.train, source.test, source.notes
    if test is None:
        rows, rule = draw(train, test_fraction, seed, "test")
        test = train.take(rows)
        train = train.take(np.setdiff1d(np.arange(len(train)), rows))
        notes = (*notes, f"the source has no test split: one was held out {rule}")
    return _clean(
        Dataset(name, source.source, train, test, list(source.unsupervised), source.classes, notes)
    )


def _clean(data: Dataset) -> Dataset:
    """Drop training and unlabelled rows that repeat a test text, and note how many."""
    notes, train = list(data.notes), data.train
    kept = drop_overlap(train.texts, data.test.texts)
    if dropped := len(train) - len(kept):
        train = train.take(kept)
        notes.append(f"dropped {dropped:,} training texts that repeat a test text")
    if not len(train):
        raise DataError(
            f"{data.name}: every training text is also a test text; pass splits that differ"
        )
    kept = drop_overlap(data.unsupervised, data.test.texts)
    if dropped := len(data.unsupervised) - len(kept):
        notes.append(f"dropped {dropped:,} unlabelled texts that repeat a test text")
    unsupervised = [data.unsupervised[i] for i in kept]
    return replace(data, train=train, unsupervised=unsupervised, notes=tuple(notes))
