"""Tables with predictions: the rows of the input, with a label and its probability added."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.texts import json_line
from transformer_jax.text.tables import Table

if TYPE_CHECKING:
    from transformer_jax.inference.classify import Prediction

DELIMITERS = {".csv": ",", ".tsv": "\t", ".jsonl": None}
ADDED = ("label", "probability")


def check_output(out: str, file: str | None) -> None:
    """Raise InputError if `out` is no name of a table, or is the input `file` itself."""
    if Path(out).suffix.lower() not in DELIMITERS:
        raise InputError(f"-o must end with .csv, .tsv or .jsonl, got {out}")
    if file is not None and Path(out).resolve() == Path(file).resolve():
        raise InputError(f"-o {out} is the file that is read; name another")


def write_predictions(out: str, table: Table, predictions: Iterable["Prediction"]) -> str:
    """Write the rows of a table with their predictions, as they come; return a summary.

    The columns added are `label` and `probability`, or if the table has one of them,
    `predicted_label` and `predicted_probability`. A CSV file keeps the delimiter of the input.
    Raises InputError if columns of these names would be there twice, or `out` cannot be written.
    """
    names = _added(table)
    header = [*table.names, *names]
    suffix = Path(out).suffix.lower()
    delimiter = table.delimiter if suffix == ".csv" else DELIMITERS[suffix]
    if not delimiter and len(set(header)) < len(header):
        raise InputError(f"{table.name} has two columns of one name; write a .csv or .tsv file")
    try:
        # Half a character, which JSON can hold, has no bytes in UTF-8.
        with open(out, "w", encoding="utf-8", newline="", errors="backslashreplace") as file:
            writer = csv.writer(file, delimiter=delimiter) if delimiter else None
            if writer:
                writer.writerow(header)
                file.flush()
            for i, said in enumerate(predictions):
                row = [column[i] for column in table.values]
                if writer:
                    cells = [_cell(value) for value in row]
                    writer.writerow([*cells, said.label, f"{said.probability:.6f}"])
                else:
                    row += [said.label, round(said.probability, 6)]
                    file.write(json_line(dict(zip(header, row, strict=True))) + "\n")
                file.flush()
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from None
    return f"wrote {out}: {counted(len(table), 'row')}, with {' and '.join(names)}"


def _added(table: Table) -> tuple[str, ...]:
    """Return the names of the columns to add, none of which the table has."""
    for names in (ADDED, tuple(f"predicted_{name}" for name in ADDED)):
        if not set(names) & set(table.names):
            return names
    raise InputError(
        f"{table.name} has columns for labels and for predicted ones; rename or remove those that "
        "begin with predicted_"
    )


def _cell(value: Any) -> Any:
    return json_line(value) if isinstance(value, dict | list) else value
