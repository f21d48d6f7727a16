"""Rows of CSV and TSV files, whose quotes are read in one of two ways.

quoted    as in CSV: a field that begins with a quote ends at the next quote. It may hold delimiters
          and line breaks, and "" is a quote in it.
literal   as in plain TSV: a quote is a character of the text, and every line is a row.

A file is read as quoted. It is read as literal, with a note, in three cases:

- the quoted reading fails, and the file is a TSV whose lines all have the right number of columns;
- the file is a TSV, and quotes surround some texts, but none with a tab, a line break or a quote in
  it, as no program would write it (a program may quote all texts with commas, or all empty ones);
- the quoted reading joins lines of which the first and the last are rows by themselves, each with
  the right number of columns and a label of the file, or an integer if all labels are integers. A
  quote at the start of one text and a quote at the end of a later one do that. If some line of the
  file is no row, neither reading is right: an error. A file with quotes in the header and in every
  row is always read as quoted.

The right number of columns is that of the header. A file without one has the number of its lines if
they all have the same, else at least two.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.errors import DataError
from transformer_jax.runtime.texts import lines_of

LONGEST = 2**31 - 1  # characters of a field; the limit of the module csv is 131 thousand
PAIR = 2  # columns that a row needs in a file without a header
INTEGER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True)
class Row:
    """The fields of a row, and the lines of the file that it takes, counted from 1."""

    fields: list[str]
    first: int
    last: int


@dataclass(frozen=True)
class _Layout:
    """The delimiter and, if there is a header, its fields and the column of the labels."""

    delimiter: str
    header: list[str] | None
    label: int | None
    columns: int | None = None  # of every line of a file without a header

    def fault(self, fields: Sequence[str]) -> str | None:
        """Return the reason why these fields are no row, or None if they are one."""
        if self.header is None:
            if len(fields) < PAIR:
                return "no tab between source and target"
            if self.columns and len(fields) != self.columns:
                return f"expected {self.columns} columns as in every line, got {len(fields)}"
            return None
        if len(fields) != len(self.header):
            return (
                f"expected {len(self.header)} columns as in the header, got {len(fields)}; "
                "quote texts that contain the delimiter"
            )
        return None

    def label_of(self, fields: Sequence[str]) -> str:
        return "" if self.label is None else fields[self.label].strip(' "')


def read_rows(
    text: str,
    where: str,
    delimiter: str,
    label_column: str | None = None,
    *,
    header: bool | None = None,
) -> tuple[list[Row], list[str]]:
    """Return the rows of a CSV or TSV file, and notes on how its quotes were read.

    With a `label_column` or `header` the first row is the header. Blank lines are skipped and
    counted. Raises DataError, with `where` and the line, if a row has another number of columns
    than the header.
    """
    csv.field_size_limit(LONGEST)
    header = label_column is not None if header is None else header
    layout = _layout(text, delimiter, label_column, header)
    lines = list(io.StringIO(text, newline=""))
    headers = int(layout.header is not None)
    joined = fault = None
    try:
        rows, blank = _quoted(lines, where, layout)
        # Quotes in the header and in every row are a program's, and no stray ones. A CSV file
        # without labels, which would tell rows, is read as CSV.
        is_csv = delimiter != "\t" and layout.label is None
        if not (is_csv or (headers and all('"' in lines[row.first - 1] for row in rows))):
            joined = _joined_row(rows[headers:], lines, layout)
        if not (joined or (delimiter == "\t" and _has_needless_quotes(rows[headers:], lines))):
            return rows, [*_line_break_notes(rows[headers:], layout), *skipped(blank)]
    except DataError as error:
        if delimiter != "\t":
            raise
        rows, blank, fault = [], 0, error
    literal, empty, literal_fault = _literal(text, layout)
    if literal_fault is None:
        rows_of_lines = counted(len(literal) - headers, "row")
        note = f"quotes are read as characters, one row per line: {rows_of_lines}"
        if joined:
            note += f"; as in CSV they would join lines to {counted(len(rows) - headers, 'row')}"
        return literal, [note, *skipped(empty)]
    if joined:
        raise DataError(
            f"{where}, lines {joined.first} to {joined.last}: one quoted text, or "
            f"{joined.last - joined.first + 1} rows with quotes; write a quote inside a quoted "
            f'text as "" (line by line, {literal_fault})'
        )
    if fault:
        raise fault
    return rows, skipped(blank)


def header_of(text: str, delimiter: str) -> list[str]:
    """Return the fields of the first row that is not blank, or none.

    >>> header_of("text;label\\ngood;1\\n", ";")
    ['text', 'label']
    """
    csv.field_size_limit(LONGEST)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return next(filter(None, rows), [])


def _layout(text: str, delimiter: str, label_column: str | None, has_header: bool) -> _Layout:
    if not has_header:
        counts = {line.count(delimiter) + 1 for line in lines_of(text) if line}
        return _Layout(delimiter, None, None, min(counts) if len(counts) == 1 else None)
    header = header_of(text, delimiter)
    label = header.index(label_column) if label_column in header else None
    return _Layout(delimiter, header, label)


def _quoted(lines: list[str], where: str, layout: _Layout) -> tuple[list[Row], int]:
    """Return the rows with quotes as in CSV, and the number of blank lines between them."""
    reader = csv.reader(lines, delimiter=layout.delimiter, strict=True)
    rows, blank, last = [], 0, 0
    try:
        for fields in reader:
            first, last = last + 1, reader.line_num
            if not fields:
                blank += 1
            elif fault := layout.fault(fields):
                raise DataError(f"{where}, line {last}: {fault}")
            else:
                rows.append(Row(fields, first, last))
    except csv.Error as error:
        began = f" (in the row that begins at line {last + 1})" * (last + 1 < reader.line_num)
        raise DataError(
            f"{where}, line {reader.line_num}: {error}{began}; "
            'write a quote inside a quoted text as ""'
        ) from None
    return rows, blank


def _literal(text: str, layout: _Layout) -> tuple[list[Row], int, str | None]:
    """Return the rows with quotes as characters, the number of blank lines, and the first fault."""
    lines = lines_of(text)
    rows = [Row(line.split(layout.delimiter), n, n) for n, line in enumerate(lines, 1) if line]
    blank = len(lines) - len(rows)
    if layout.header is not None and rows and rows[0].fields != layout.header:
        return rows, blank, "line 1: the header is quoted"
    faults = ((row.first, layout.fault(row.fields)) for row in rows)
    return rows, blank, next((f"line {n}: {fault}" for n, fault in faults if fault), None)


def _joined_row(rows: list[Row], lines: list[str], layout: _Layout) -> Row | None:
    """Return the first row that begins and ends with lines that are rows by themselves, if any."""
    known = {layout.label_of(row.fields) for row in rows}
    integers = all(map(INTEGER.fullmatch, filter(None, known)))  # a label may be missing

    def is_row(line: str) -> bool:
        fields = line.rstrip("\r\n").split(layout.delimiter)
        if layout.fault(fields):
            return False
        label = layout.label_of(fields)
        # A file of one label cannot be used, so its label says nothing about its lines.
        return len(known) < 2 or label in known or (integers and bool(INTEGER.fullmatch(label)))

    several = (row for row in rows if row.last > row.first)
    ends = ((row, (lines[row.first - 1], lines[row.last - 1])) for row in several)
    return next((row for row, both in ends if all(map(is_row, both))), None)


def _has_needless_quotes(rows: list[Row], lines: list[str]) -> bool:
    """Return whether quotes surround some texts, and not those that a program would quote."""
    raw = [lines[row.first - 1].rstrip("\r\n").split("\t") for row in rows]
    if all(any('"' in field for field in fields) for fields in raw):
        return False
    quoted, plain = [], []
    for row, fields in zip(rows, raw, strict=True):
        if row.first < row.last or len(fields) != len(row.fields):
            return False
        for field, value in zip(fields, row.fields, strict=True):
            if field not in (value, f'"{value}"'):
                return False
            (plain if field == value else quoted).append(value)
    commas = all("," in value for value in quoted) and not any("," in value for value in plain)
    return any(quoted) and not commas


def _line_break_notes(rows: list[Row], layout: _Layout) -> list[str]:
    """Return a note on rows that take several lines or, if rows may have any length, hold tabs."""
    tabs = layout.header is None
    number = sum(
        row.last > row.first or (tabs and any("\t" in field for field in row.fields))
        for row in rows
    )
    what = "line breaks or tabs" if tabs else "line breaks"
    return [f"{number:,} of {len(rows):,} rows have {what} in quoted texts"] if number else []


def skipped(blank: int) -> list[str]:
    """Return a note on blank lines, if there are any."""
    return [f"skipped {counted(blank, 'blank line')}"] if blank else []
