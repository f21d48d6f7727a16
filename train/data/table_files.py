"""Readers of labelled texts from CSV, TSV, JSONL and Parquet files; errors name file and line.

Nothing is unpickled. Texts are split at the format's own line end only: str.splitlines would also
split at U+0085, which occurs in IMDb as an ellipsis."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from train.data.dataset import SENTIMENT, DataError, Split, Tables, readable
from train.data.delimited import read_rows, skipped
from transformer_jax.runtime.errors import one_line
from transformer_jax.runtime.texts import decode, lines_of

MOVIE_COLUMN = "movie"  # optional
PARTS = ("train", "test", "unsupervised")  # the names of the Parquet files in a folder


class Columns(NamedTuple):
    """The columns of a file, and remarks on how it was read."""

    texts: list[str]
    labels: list[object]  # integers or words; [] if they were not asked for
    movies: list[str] | None
    notes: Sequence[str] = ()


def _read_csv(path: Path, text_column: str, label_column: str, delimiter: str = ",") -> Columns:
    content = decode(path.read_bytes(), path.name)
    rows, notes = read_rows(content, path.name, delimiter, label_column)
    header = rows.pop(0).fields if rows else []
    text, label, movie = _places(header, text_column, label_column, path.name)
    labels = [_label(row.fields[label], f"{path.name}, line {row.last}") for row in rows]
    movies = None if movie is None else [row.fields[movie] for row in rows]
    return Columns([row.fields[text] for row in rows], _as_integers(labels), movies, notes)


def _read_tsv(path: Path, text_column: str, label_column: str) -> Columns:
    return _read_csv(path, text_column, label_column, "\t")


def _read_jsonl(path: Path, text_column: str, label_column: str) -> Columns:
    texts, labels, movies, blank = [], [], [], 0
    for number, line in enumerate(lines_of(decode(path.read_bytes(), path.name)), 1):
        if not line.strip():
            blank += 1
            continue
        where = f"{path.name}, line {number}"
        try:
            row = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:  # ValueError: an integer of 5000 digits
            raise DataError(f"{where}: not JSON: {one_line(error)}") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object with columns, got {type(row).__name__}")
        _places(list(row), text_column, label_column, where)
        texts.append(_text(row[text_column], where, text_column))
        labels.append(_label(row[label_column], where))
        movies.append(_movie(row.get(MOVIE_COLUMN), where))
    return Columns(texts, labels, movies if any(movies) else None, skipped(blank))


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; raise ValueError if it has two values of one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object with two values of one name")
    return found


def _read_parquet(path: Path, text_column: str, label_column: str | None) -> Columns:
    """Read a Parquet file; without `label_column` there are no labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            found = file.schema_arrow.names
            columns = [text_column] + ([label_column] if label_column else [])
            movie = _places(found, text_column, label_column or text_column, path.name)[2]
            if movie is not None and MOVIE_COLUMN not in columns:
                columns.append(MOVIE_COLUMN)
            table = file.read(columns)
        table.validate(full=True)  # checks UTF-8 too
        values = {name: table[name].to_pylist() for name in columns}
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno:  # from the system, not the decoder
            raise
        raise DataError(f"{path.name}: not a sound Parquet file: {one_line(error)}") from None
    texts = [
        _text(text, f"{path.name}, row {i}", text_column)
        for i, text in enumerate(values[text_column])
    ]
    labels = [
        _label(value, f"{path.name}, row {i}")
        for i, value in enumerate(values[label_column] if label_column else [])
    ]
    movies = [
        _movie(value, f"{path.name}, row {i}")
        for i, value in enumerate(values.get(MOVIE_COLUMN, []))
    ]
    return Columns(texts, labels, movies if MOVIE_COLUMN in columns else None)


def read_file(
    path: Path, text_column: str, label_column: str, classes: int = 2, reviews: bool = True
) -> Tables:
    """Read one file whose suffix is in `READERS`; its labels are `classes` integers or words.

    With `reviews` labels 0 and 1 are called negative and positive.

    Raises DataError, with the file and line, for content that cannot be used.
    """
    with readable(path):
        found = READERS[path.suffix.lower()](path, text_column, label_column)
    labels, names = _classes(found.labels, path.name, classes, reviews)
    split = Split(found.texts, labels, found.movies)
    return Tables(f"the file {path.name}", split, classes=names, notes=tuple(found.notes))


READERS = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def read_parquet_folder(
    path: Path, text_column: str, label_column: str, reviews: bool = True
) -> Tables:
    """Read train.parquet and, if they exist, test.parquet and unsupervised.parquet.

    Labels must be 0 (negative) or 1 (positive); those of unsupervised.parquet are not read.
    """
    splits: dict[str, Split] = {}
    for name in ("train", "test"):
        file = path / f"{name}.parquet"
        if file.is_file():
            texts, values, movies, _ = _read_parquet(file, text_column, label_column)
            for i, value in enumerate(values):
                if isinstance(value, str) or value not in (0, 1):
                    raise DataError(
                        f"{name}.parquet, row {i}: label {_shown(value)}; "
                        "expected 0 (negative) or 1 (positive); rows without a label "
                        "belong in unsupervised.parquet"
                    )
            splits[name] = Split(texts, np.array(values, np.int32), movies)
            if len(set(values)) < (2 if name == "train" else 1):
                raise DataError(
                    f"{name}.parquet: expected both labels 0 and 1, got {set(values) or 'none'}"
                )
    unsupervised: list[str] = []
    if (path / "unsupervised.parquet").is_file():
        unsupervised = _read_parquet(path / "unsupervised.parquet", text_column, None).texts
    others = sorted(p.name for p in path.glob("*.parquet") if p.stem not in PARTS)
    notes = (f"not read: {', '.join(others[:5])}{', ...' * (len(others) > 5)}",) if others else ()
    source = f"the Parquet files of the folder {path.resolve().name}"
    classes = SENTIMENT if reviews else ("0", "1")
    return Tables(source, splits["train"], splits.get("test"), unsupervised, classes, notes)


def _places(
    found: list[str], text_column: str, label_column: str, where: str
) -> tuple[int, int, int | None]:
    """Return the indices of the columns in `found`; raise a DataError if one is missing."""
    for option, column in (("--text-column", text_column), ("--label-column", label_column)):
        if found.count(column) != 1:
            problem = "two columns" if column in found else "no column"
            names = ", ".join(map(_shown, found[:20])) or "none"
            raise DataError(f"{where}: {problem} {column!r} among {names}; name it with {option}")
    if found.count(MOVIE_COLUMN) > 1:
        raise DataError(f"{where}: two columns {MOVIE_COLUMN!r}; rename one of them")
    movie = found.index(MOVIE_COLUMN) if MOVIE_COLUMN in found else None
    return found.index(text_column), found.index(label_column), movie


def _text(value: object, where: str, column: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: {column!r} must be a string, got {type(value).__name__}")
    return value


def _label(value: object, where: str) -> int | str:
    """Return a label as an integer or a string; 1.0 becomes 1, as tables with gaps write it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.strip() and _is_whole(value):
        return " ".join(value.split())
    if isinstance(value, int):
        return int(value)
    raise DataError(f"{where}: the label must be an integer or a word, got {_shown(value)}")


def _movie(value: object, where: str) -> str:
    """Return the movie of a text, "" if unknown."""
    if value is None or isinstance(value, str | int):
        return str(value or "")
    raise DataError(
        f"{where}: {MOVIE_COLUMN!r} must be a string or an integer, got {type(value).__name__}"
    )


def _is_whole(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON can contain, such as "\\ud800"."""
    return not re.search(r"[\ud800-\udfff]", text)


def _shown(value: object) -> str:
    """Return a value cut to 60 characters; a wrong label column may hold whole reviews."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def _as_integers(labels: list[str]) -> list[object]:
    """Convert labels of a CSV file to integers if all of them are integers."""
    if all(re.fullmatch(r"[+-]?\d{1,18}", label) for label in labels):
        return [int(label) for label in labels]
    return list(labels)


def _classes(
    values: list[object], where: str, expected: int, reviews: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels as class indices, and the names of the classes."""
    if len({type(value) for value in values}) > 1:
        raise DataError(f"{where}: some labels are integers, some words; use one kind")
    distinct = sorted(set(values))
    if not distinct:
        raise DataError(f"{where}: it has no rows; expected texts with {expected} different labels")
    if len(distinct) != expected:
        got = ", ".join(map(_shown, distinct[:4])) + (", ..." if len(distinct) > 4 else "")
        way_out = (
            "" if len(distinct) < 2 else f"; for as many classes pass --classes {len(distinct)}"
        )
        raise DataError(
            f"{where}: expected {expected} different labels, got {len(distinct)}: {got}{way_out}"
        )
    index = {value: i for i, value in enumerate(distinct)}
    classes = SENTIMENT if reviews and distinct == [0, 1] else tuple(map(str, distinct))
    return np.array([index[value] for value in values], np.int32), classes
