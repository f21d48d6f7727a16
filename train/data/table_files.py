"""Readers of labelled texts from CSV, TSV, JSONL and Parquet files; errors name file and line.

Nothing is unpickled. Texts are split at the format's own line end only: str.splitlines would also
split at U+0085, which occurs in IMDb as an ellipsis."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np

from train.data.dataset import SENTIMENT, DataError, Split, Tables
from transformer_jax.runtime.errors import one_line

MOVIE_COLUMN = "movie"  # optional


Columns = tuple[list[str], list[object], list[str] | None]  # texts, raw labels, movies


def _read_csv(path: Path, text_column: str, label_column: str, delimiter: str = ",") -> Columns:
    csv.field_size_limit(2**31 - 1)  # the default limits a text to 131 thousand characters
    lines = io.StringIO(decode(path.read_bytes(), path.name), newline="")
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    texts, labels, movies = [], [], []
    try:
        header = next(rows, [])
        text, label, movie = _places(header, text_column, label_column, path.name)
        for row in rows:
            if not row:
                continue
            where = f"{path.name}, line {rows.line_num}"
            if len(row) != len(header):
                raise DataError(
                    f"{where}: expected {len(header)} columns as in the header, got {len(row)}; "
                    "quote texts that contain the delimiter"
                )
            texts.append(row[text])
            labels.append(_label(row[label], where))
            movies.append(row[movie] if movie is not None else "")
    except csv.Error as error:
        raise DataError(f"{path.name}, line {rows.line_num}: {error}") from None
    return texts, _as_integers(labels), movies if movie is not None else None


def _read_tsv(path: Path, text_column: str, label_column: str) -> Columns:
    return _read_csv(path, text_column, label_column, "\t")


def _read_jsonl(path: Path, text_column: str, label_column: str) -> Columns:
    texts, labels, movies = [], [], []
    for number, line in enumerate(decode(path.read_bytes(), path.name).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: an integer of 5000 digits
            raise DataError(f"{where}: not JSON: {one_line(error)}") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object with columns, got {type(row).__name__}")
        _places(list(row), text_column, label_column, where)
        texts.append(_text(row[text_column], where, text_column))
        labels.append(_label(row[label_column], where))
        movies.append(_movie(row.get(MOVIE_COLUMN), where))
    return texts, labels, movies if any(movies) else None


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
    return texts, labels, movies if MOVIE_COLUMN in columns else None


def read_file(path: Path, text_column: str, label_column: str, classes: int = 2) -> Tables:
    """Read one file whose suffix is in `READERS`; its labels are `classes` integers or words.

    Raises DataError, with the file and line, for content that cannot be used.
    """
    texts, values, groups = READERS[path.suffix.lower()](path, text_column, label_column)
    labels, names = _classes(values, path.name, classes)
    return Tables(f"the file {path.name}", Split(texts, labels, groups), classes=names)


READERS = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def read_parquet_folder(path: Path, text_column: str, label_column: str) -> Tables:
    """Read train.parquet and, if they exist, test.parquet and unsupervised.parquet.

    Labels must be 0 (negative) or 1 (positive); those of unsupervised.parquet are not read.
    """
    splits: dict[str, Split] = {}
    for name in ("train", "test"):
        file = path / f"{name}.parquet"
        if file.is_file():
            texts, values, movies = _read_parquet(file, text_column, label_column)
            for i, value in enumerate(values):
                if isinstance(value, str) or value not in (0, 1):
                    raise DataError(
                        f"{name}.parquet, row {i}: label {_shown(value)}; "
                        "expected 0 (negative) or 1 (positive); rows without a label "
                        "belong in unsupervised.parquet"
                    )
            splits[name] = Split(texts, np.array(values, np.int32), movies)
            if len(set(values)) < 2:
                raise DataError(
                    f"{name}.parquet: expected both labels 0 and 1, got {set(values) or 'none'}"
                )
    unsupervised: list[str] = []
    if (path / "unsupervised.parquet").is_file():
        unsupervised, _, _ = _read_parquet(path / "unsupervised.parquet", text_column, None)
    source = f"the Parquet files of the folder {path.resolve().name}"
    return Tables(source, splits["train"], splits.get("test"), unsupervised)


def _places(
    found: list[str], text_column: str, label_column: str, where: str
) -> tuple[int, int, int | None]:
    """Return the indices of the columns in `found`; raise a DataError if one is missing."""
    for option, column in (("--text-column", text_column), ("--label-column", label_column)):
        if found.count(column) != 1:
            problem = "two columns" if column in found else "no column"
            names = ", ".join(map(_shown, found[:20])) or "none"
            raise DataError(f"{where}: {problem} {column!r} among {names}; name it with {option}")
    movie = found.index(MOVIE_COLUMN) if found.count(MOVIE_COLUMN) == 1 else None
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


def _classes(values: list[object], where: str, expected: int) -> tuple[np.ndarray, tuple[str, ...]]:
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
    # 0 and 1 are negative and positive; other integers and words are their own names.
    classes = SENTIMENT if distinct == [0, 1] else tuple(map(str, distinct))
    return np.array([index[value] for value in values], np.int32), classes


def decode(content: bytes, where: str) -> str:
    """Decode UTF-8, with or without a byte order mark; raise DataError with the line of an error.

    A NUL byte is an error too: it means UTF-16, or no text at all.
    """
    if (place := content.find(0)) >= 0:
        line = content[:place].count(b"\n") + 1
        raise DataError(f"{where}, line {line}: a NUL byte; convert the file to UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{where}, line {line}: byte {content[error.start]:#04x} is not UTF-8; "
            "convert the file to UTF-8"
        ) from None
