"""Loading of the data set that `--data` names, with training and test splits that share no text.

    auto      IMDb from the Hugging Face cache or hub; the built-in sample if it is in neither
    imdb      IMDb, or an error
    sample    the built-in sample (train/data/sample_reviews.py)
    PATH      a table with a text and a label column, or a folder with several of them
              (train/data/table_files.py); or the aclImdb folder or its .tar.gz

For every source, training and unlabelled rows that repeat a test text are dropped, because a score
on a text that was trained on is meaningless."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from train.data import imdb_archive
from train.data.dataset import DataError, Dataset, Split, Tables, readable
from train.data.hub import Unreachable, load_imdb
from train.data.sample_reviews import sample
from train.data.splits import draw, drop_overlap, split_validation
from train.data.table_files import Reading, read_tables
from transformer_jax.runtime.counted import counted
from transformer_jax.text.table_folders import is_saved, part_files
from transformer_jax.text.tables import kind_of

__all__ = ["DataError", "Dataset", "Split", "load", "split_validation"]

ACCEPTED = (
    "a .csv, .tsv, .json, .jsonl or .parquet file, or a folder with files named train and test"
)
RELEASE = "the aclImdb folder or its .tar.gz"
NAMES = ("auto", "imdb", "sample")
COLUMNS = ("text", "label")  # unless others are named
OFFLINE = (
    "NOT IMDb: this run uses the BUILT-IN SAMPLE of generated reviews, because IMDb is not cached "
    "and cannot be loaded from the Hugging Face Hub ({reason}). Its accuracy says nothing about "
    "IMDb. "
    f"For real data pass --data PATH: {RELEASE}, {ACCEPTED}."
)


def load(
    data: str = "auto",
    *,
    text_column: str = COLUMNS[0],
    label_column: str = COLUMNS[1],
    classes: int | None = None,
    unlabelled: bool = False,
    skip_bad: bool = False,
    encoding: str | None = None,
    seed: int = 0,
    test_fraction: float = 0.2,
    reviews: bool = True,
) -> Dataset:
    """Load the data set that `--data` names.

    The columns, `unlabelled`, `skip_bad` and `encoding` apply to tables only (`Reading`);
    `test_fraction` applies to sources without a test split. With `reviews`, auto, imdb and the
    release are accepted, and labels 0 and 1 are negative and positive. Raises DataError for data
    that cannot be used, or that has no columns or another number of classes.
    """
    check_source(data, text_column, label_column, reviews=reviews)
    reading = Reading(text_column, label_column, classes, unlabelled, skip_bad, encoding, reviews)
    found = _load(data, reading, seed, test_fraction)
    if classes not in (None, len(found.classes)):
        raise DataError(
            f"--data {data} has {len(found.classes)} classes, "
            f"{' and '.join(found.classes)}; got --classes {classes}"
        )
    return found


def check_source(data: str, text_column: str, label_column: str, *, reviews: bool) -> None:
    """Raise DataError if there is no such data set, or none with columns; nothing is read."""
    if text_column == label_column:
        raise DataError(f"--text-column and --label-column are both {text_column!r}")
    if not reviews and data in ("auto", "imdb"):
        raise DataError(f"--data {data} is for train.imdb; pass {ACCEPTED}")
    if not _has_columns(data) and (text_column, label_column) != COLUMNS:
        raise DataError(
            f"--data {data} has no columns; --text-column and --label-column are for "
            ".csv, .tsv, .json, .jsonl and .parquet files"
        )
    path = Path(data)
    with readable(path):
        if data not in NAMES and not path.exists():
            named = f"auto, imdb, sample, {RELEASE}" if reviews else "sample"
            raise DataError(f"no file or folder {path}; pass {named}, or {ACCEPTED}")


def _has_columns(data: str) -> bool:
    """Return whether `--data` names a table, or nothing, which is another error."""
    path = Path(data)
    with readable(path):
        if data in NAMES or not path.exists():
            return data not in NAMES
        return kind_of(path) is not None or is_saved(path) or "train" in part_files(path)[0]


def _load(data: str, reading: Reading, seed: int, test_fraction: float) -> Dataset:
    if data == "sample":
        return _clean(sample(seed))
    if data in ("auto", "imdb"):
        try:
            return _from_tables("imdb", load_imdb(), seed, test_fraction)
        except Unreachable as error:
            if data == "imdb":
                raise DataError(
                    "--data imdb: IMDb is not cached and cannot be loaded from the Hugging Face "
                    f"Hub ({error}); pass --data sample, or --data PATH: {RELEASE}, {ACCEPTED}"
                ) from None
            fallback = sample(seed)
            return _clean(replace(fallback, notes=(OFFLINE.format(reason=error), *fallback.notes)))
    path = Path(data)
    with readable(path):
        return _from_tables(path.resolve().name, _read(path, reading), seed, test_fraction)


def load_data(options: Any) -> Dataset:
    """Load the data set that the options of a classifier name."""
    return load(
        options.data,
        text_column=options.text_column,
        label_column=options.label_column,
        classes=options.classes,
        unlabelled=options.unlabelled,
        skip_bad=options.skip_bad,
        encoding=options.encoding,
        seed=options.seed,
        reviews=options.reviews,
    )


def _read(path: Path, reading: Reading) -> Tables:
    """Read a path in any of the accepted formats."""
    if path.is_dir():
        if is_saved(path) or "train" in part_files(path)[0]:
            return read_tables(path, reading)
        for folder in (path, path / "aclImdb"):
            if (folder / "train" / "pos").is_dir():
                return imdb_archive.read_folder(folder)
        found = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
        raise DataError(f"{path} holds no file named train, but {found}; pass {ACCEPTED}")
    if path.name.lower().endswith((".tar.gz", ".tgz")):
        return imdb_archive.read_archive(path)
    if kind_of(path):
        return read_tables(path, reading)
    raise DataError(f"{path} is none of the accepted formats: {ACCEPTED}")


def _from_tables(name: str, source: Tables, seed: int, test_fraction: float) -> Dataset:
    train, test, notes = source.train, source.test, source.notes
    if test is None:
        rows, rule = draw(train, test_fraction, seed, "test")
        test = train.take(rows)
        train = train.take(np.setdiff1d(np.arange(len(train)), rows))
        notes = (*notes, f"the source has no test split: one was held out {rule}")
    return _clean(
        Dataset(
            name,
            source.source,
            train,
            test,
            list(source.unsupervised),
            source.classes,
            notes,
            source.validation,
        )
    )


def _clean(data: Dataset) -> Dataset:
    """Drop texts that repeat one they are scored on, or are validated on, and note how many."""
    notes, test, validation = list(data.notes), data.test.texts, data.validation

    def kept(split: Split, others: list[str], what: str, repeated: str) -> Split:
        rows = drop_overlap(split.texts, others)
        if dropped := len(split) - len(rows):
            notes.append(f"dropped {counted(dropped, f'{what} text')} repeating a {repeated} text")
        if not len(rows):
            raise DataError(
                f"{data.name}: every {what} text is also a {repeated} text; pass splits that differ"
            )
        return split.take(rows) if dropped else split

    train = kept(data.train, test, "training", "test")
    if validation is not None:
        validation = kept(validation, test, "validation", "test")
        train = kept(train, validation.texts, "training", "validation")
    rows = drop_overlap(data.unsupervised, test)
    if dropped := len(data.unsupervised) - len(rows):
        notes.append(f"dropped {counted(dropped, 'unlabelled text')} repeating a test text")
    unsupervised = [data.unsupervised[i] for i in rows]
    return replace(
        data, train=train, validation=validation, unsupervised=unsupervised, notes=tuple(notes)
    )
