"""Readers of tables with texts: CSV, TSV, JSON, JSON Lines and Parquet; errors name file and line.

All but Parquet may be compressed by gzip (.csv.gz). In a CSV file, columns are separated by commas,
semicolons or tabs, whichever the header has. Nothing is unpickled. Texts are split at the format's
own line end only: str.splitlines would also split at U+0085, which occurs in texts as an ellipsis.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_jax.runtime.errors import DataError, one_line, shown
from transformer_jax.runtime.texts import EncodingError, decode_as, lines_of
from transformer_jax.text.delimited import header_of, read_rows, skipped

KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}  # of a .csv file


@dataclass(frozen=True)
class Table:
    """The values of a file by column, and the line or row of the file that each came from."""

    name: str  # of the file, without its folder
    names: list[str]  # of the columns
    values: list[list[Any]]  # of each column; None where a row has no value
    numbers: Sequence[int]  # of the lines or rows
    unit: str = "line"
    notes: tuple[str, ...] = ()  # remarks on how the file was read
    delimiter: str = ","  # of a CSV file

    def __len__(self) -> int:
        return len(self.numbers)

    def column(self, name: str, option: str) -> list[Any]:
        """Return the values of a column; raise DataError, which names `option`, if there is none.

        >>> Table("a.csv", ["text"], [["good"]], [2]).column("text", "--text-column")
        ['good']
        """
        if self.names.count(name) == 1:
            return self.values[self.names.index(name)]
        problem = "two columns" if name in self.names else "no column"
        names = ", ".join(map(shown, self.names[:20])) or "none"
        raise DataError(f"{self.name}: {problem} {name!r} among {names}; name it with {option}")

    def texts(self, name: str, option: str) -> list[str]:
        """Return a column of texts, "" for a missing one; raise DataError for other values.

        >>> Table("a.jsonl", ["text"], [["good", None]], [1, 2]).texts("text", "--text-column")
        ['good', '']
        """
        for row, value in enumerate(values := self.column(name, option)):
            if not isinstance(value, str | None):
                kind = type(value).__name__
                raise DataError(f"{self.place(row)}: {name!r} must be a string, got {kind}")
        return [value or "" for value in values]

    def place(self, row: int) -> str:
        """Return the file and line of a row, for a message."""
        return f"{self.name}, {self.unit} {self.numbers[row]}"


def kind_of(path: Path) -> str | None:
    """Return the format that a file's name tells, one of csv, tsv, json, jsonl and parquet.

    None for other names.

    >>> kind_of(Path("a.CSV")), kind_of(Path("b.jsonl.gz")), kind_of(Path("c.txt"))
    ('csv', 'jsonl', None)
    """
    name = path.name.lower()
    plain = name.removesuffix(".gz")
    kind = KINDS.get(Path(plain).suffix)
    return None if kind == "parquet" and plain != name else kind


def read_table(
    path: Path,
    columns: Sequence[str],
    *,
    label_column: str | None = None,
    only: Sequence[str] | None = None,
    encoding: str | None = None,
) -> Table:
    """Read a file whose name has one of the endings in `KINDS`.

    The delimiter of a CSV file is one that gives `columns`; of a Parquet file `only` these columns
    are read, if they are given. `label_column` helps to tell rows from quoted line breaks. Raises
    DataError, with the file and line, for content that cannot be read.
    """
    kind = kind_of(path)
    try:
        if kind == "parquet":
            return _read_parquet(path, only)
        text = decode_as(_content(path), path.name, encoding)
    except EncodingError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if kind == "json":
        return _read_json(path.name, text)
    if kind == "jsonl":
        return _read_jsonl(path.name, text)
    delimiter = "\t" if kind == "tsv" else _delimiter(text, columns)
    return _read_csv(path.name, text, delimiter, label_column, is_csv=kind == "csv")


def _content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if its name ends in .gz."""
    content = path.read_bytes()
    if not path.name.lower().endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path.name}: not a whole gzip file: {one_line(error)}") from None


def _delimiter(text: str, columns: Sequence[str]) -> str:
    """Return the delimiter that gives a header with these columns, or else the most columns."""
    headers = {delimiter: header_of(text, delimiter) for delimiter in DELIMITERS}
    for delimiter, header in headers.items():
        if set(columns) <= set(header):
            return delimiter
    return max(headers, key=lambda delimiter: len(headers[delimiter]))


def _read_csv(
    name: str, text: str, delimiter: str, label_column: str | None, *, is_csv: bool
) -> Table:
    rows, notes = read_rows(text, name, delimiter, label_column, header=True)
    header = rows.pop(0).fields if rows else []
    if is_csv and delimiter != ",":
        notes = [f"the columns are separated by {DELIMITERS[delimiter]}", *notes]
    columns = [list(column) for column in zip(*(row.fields for row in rows), strict=True)]
    numbers = [row.last for row in rows]
    columns = columns or [[] for _ in header]
    delimiter = delimiter if is_csv else ","
    return Table(name, header, columns, numbers, notes=tuple(notes), delimiter=delimiter)


def _read_jsonl(name: str, text: str) -> Table:
    rows, numbers, blank = [], [], 0
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            blank += 1
            continue
        where = f"{name}, line {number}"
        try:
            row = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:  # ValueError: an integer of 5000 digits
            raise DataError(f"{where}: not JSON: {one_line(error)}") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object with columns, got {type(row).__name__}")
        rows.append(row)
        numbers.append(number)
    return _of_objects(name, rows, numbers, "line", tuple(skipped(blank)))


def _read_json(name: str, text: str) -> Table:
    """Read a list of objects; a file of one object a line is read as JSON Lines."""
    try:
        rows = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return _read_jsonl(name, text)
        raise DataError(f"{name}, line {error.lineno}: not JSON: {one_line(error)}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not JSON: {one_line(error)}") from None
    rows = [rows] if isinstance(rows, dict) and not _has_columns(rows) else rows
    if not isinstance(rows, list):
        raise DataError(
            f"{name}: expected a list of objects, one for each text; pandas writes it with "
            'to_json(orient="records")'
        )
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DataError(f"{name}, object {number}: got {type(row).__name__}")
    return _of_objects(name, rows, range(1, len(rows) + 1), "object")


def _has_columns(found: dict[str, Any]) -> bool:
    """Return whether an object holds columns or lists, and not the values of one row."""
    return not found or any(isinstance(value, dict | list) for value in found.values())


def _of_objects(
    name: str, rows: list[dict], numbers: Sequence[int], unit: str, notes: tuple[str, ...] = ()
) -> Table:
    names = list(dict.fromkeys(key for row in rows for key in row))
    values = [[row.get(key) for row in rows] for key in names]
    return Table(name, names, values, numbers, unit, notes)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; raise ValueError if it has two values of one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object with two values of one name")
    return found


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    """Read a Parquet file, or those of its columns that are named."""
    with readable_by_arrow(path, "Parquet file"):
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            wanted = names if columns is None else [n for n in names if n in columns]
            if len(set(wanted)) < len(wanted):  # as a table without rows, whose names are refused
                return Table(path.name, names, [[] for _ in names], [], "row")
            return of_arrow(path.name, file.read(wanted), names)


@contextmanager
def readable_by_arrow(path: Path, what: str) -> Iterator[None]:
    """Raise DataError, which names the path, if pyarrow is missing or the content is damaged."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise DataError(f"{path.name}: a {what} needs pyarrow; pip install pyarrow") from None
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno:  # from the system, not the decoder
            raise DataError(f"{error.filename or path} cannot be read: {error.strerror}") from None
        raise DataError(f"{path.name}: not a sound {what}: {one_line(error)}") from None


def of_arrow(name: str, table: Any, names: Sequence[str]) -> Table:
    """Return a table of pyarrow with all columns `names`; those that were not read are empty.

    Numbers of classes become the names that `datasets` wrote for them, and -1 None.
    """
    table.validate(full=True)  # checks UTF-8 too
    classes = _class_names(table.schema.metadata)
    held = {}
    for column in table.column_names:
        values = table[column].to_pylist()
        held[column] = _named(values, classes[column], name) if column in classes else values
    return Table(name, list(names), [held.get(n, []) for n in names], range(len(table)), "row")


def _class_names(metadata: dict[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the names of classes by column, as `datasets` writes them into a file."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"].items()
        return {column: kind["names"] for column, kind in features if "names" in kind}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _named(numbers: list[Any], names: list[str], where: str) -> list[Any]:
    """Return the names of classes, None for -1, which means that there is none."""
    if not all(type(number) is int for number in numbers if number is not None):
        return numbers  # another program wrote the column and kept the names
    if (most := max((n for n in numbers if n is not None), default=-1)) >= len(names):
        raise DataError(f"{where}: there is a class {most}, and names of {len(names)} classes")
    return [None if number is None or number < 0 else names[number] for number in numbers]
