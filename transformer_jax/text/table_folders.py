"""Folders of tables: the parts of a data set in files, and folders saved by `datasets`.

FOLDER/train.csv, test.csv, ...         files named train, validation, test and unlabelled
FOLDER/train-00000-of-00002.parquet     parts in several files (shards), also in FOLDER/data
FOLDER/dataset_dict.json, state.json    what `save_to_disk` of Hugging Face `datasets` writes
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.runtime.errors import DataError, one_line
from transformer_jax.runtime.texts import read_text
from transformer_jax.text.tables import Table, kind_of, of_arrow, read_table, readable_by_arrow

SPELLINGS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
    "unlabelled": ("unlabelled", "unlabeled", "unsupervised"),
}
PART = {spelling: part for part, spellings in SPELLINGS.items() for spelling in spellings}
SHARD = re.compile(rf"({'|'.join(PART)})([-_.]?\d.*)?", re.IGNORECASE)
PARTS, STATE = "dataset_dict.json", "state.json"  # of `datasets`: several parts, or one


def part_of(name: str) -> str | None:
    """Return the part that a name without ending tells, None for other names.

    >>> part_of("train-00000-of-00002"), part_of("dev"), part_of("texts")
    ('train', 'validation', None)
    """
    found = SHARD.fullmatch(name)
    return None if found is None else PART[found[1].lower()]


def is_saved(folder: Path) -> bool:
    """Return whether a folder was saved by `save_to_disk` of `datasets`."""
    return any((folder / name).is_file() for name in (PARTS, STATE))


def part_files(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the files of each part of a folder, and the names of other tables in it.

    Parquet files of which none is named after a part are the shards of the training part. Raises
    DataError if a part has files of two formats.
    """
    places = [_part_files(folder), _part_files(folder / "data")]
    parts, others = max(places, key=lambda found: ("train" in found[0], bool(found[0])))
    for name, of_part in parts.items():
        if len({kind_of(file) for file in of_part}) > 1:
            names = " and ".join(file.name for file in of_part[:2])
            raise DataError(f"{folder}: {names} are both of the {name} part; leave one of them")
    order = [name for name in SPELLINGS if name in parts]
    return {name: parts[name] for name in order}, [file.name for file in others]


def _part_files(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    parts: dict[str, list[Path]] = {}
    others = []
    for file in sorted(p for p in folder.glob("*") if kind_of(p) and p.is_file()):
        if (part := part_of(file.name.partition(".")[0])) is None:
            others.append(file)
        else:
            parts.setdefault(part, []).append(file)
    if not parts and others and all(kind_of(file) == "parquet" for file in others):
        return {"train": others}, []
    return parts, others


def saved_tables(folder: Path) -> dict[str, Table]:
    """Read each part of a folder saved by `datasets`; one that is no dictionary is "train".

    Raises DataError if a file is missing or damaged.
    """
    if not (folder / PARTS).is_file():
        return {"train": _saved_table(folder, f"{folder.name}/train")}
    names = _from_json(folder / PARTS, "splits", str)
    # No other folder is read, whatever the file says.
    return {name: _saved_table(folder / Path(name).name, f"{folder.name}/{name}") for name in names}


def _saved_table(folder: Path, name: str) -> Table:
    with readable_by_arrow(folder, "folder of datasets"):
        import pyarrow as pa

        shards = []
        for entry in _from_json(folder / STATE, "_data_files", dict):
            with open(folder / Path(str(entry.get("filename"))).name, "rb") as file:
                shards.append(pa.ipc.open_stream(file).read_all())
        table = pa.concat_tables(shards)
        return of_arrow(name, table, table.column_names)


def _from_json(path: Path, key: str, kind: type) -> list:
    """Return a list of values of one kind from an object in a file."""
    try:
        found = json.loads(read_text(path))[key]
        if all(isinstance(value, kind) for value in found):
            return list(found)
        problem = f"{key} is not a list of {kind.__name__}"
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        problem = one_line(error)
    raise DataError(f"{path} is not what datasets writes: {problem}")


def is_tabular(path: Path) -> bool:
    """Return whether a path names what `read_whole` reads, rather than a text file."""
    return os.path.isdir(path) or kind_of(path) is not None or bool(_shards(path))


def read_whole(path: Path, columns: Sequence[str], *, encoding: str | None = None) -> Table:
    """Read one table: a file, or a part of a folder, whose shards are joined.

    FOLDER alone is read if it has one part, and FOLDER/test is the part test of it. The arguments
    are those of `read_table`. Raises DataError if there are several parts or none, if shards have
    different columns, or for content that cannot be read.
    """
    if not os.path.isdir(path):
        files, parts = _shards(path) or [path], []
    elif is_saved(path):
        several = (path / PARTS).is_file()
        files, parts = [], _from_json(path / PARTS, "splits", str) if several else []
    else:
        by_part = part_files(path)[0]
        files, parts = next(iter(by_part.values()), []), list(by_part)
        if not parts:
            raise DataError(f"{path} holds no table named train or test, and no shards of Parquet")
    if len(parts) > 1:
        listed = ", ".join(parts)
        raise DataError(f"{path} has the parts {listed}; pass one, such as {path / parts[-1]}")
    if not files:
        return next(iter(saved_tables(path).values()))
    return _joined(path.name, [read_table(file, columns, encoding=encoding) for file in files])


def _shards(path: Path) -> list[Path]:
    """Return the files of FOLDER/PART, if there is no file of that name."""
    if path.exists() or (part := part_of(path.name)) is None:
        return []
    return part_files(path.parent)[0].get(part, [])


def _joined(name: str, tables: list[Table]) -> Table:
    """Return the rows of all tables, which must have the same columns."""
    first, *others = tables
    if not others:
        return first
    for table in others:
        if table.names != first.names:
            raise DataError(
                f"{table.name}: its columns {', '.join(table.names[:9])} are not those of "
                f"{first.name}: {', '.join(first.names[:9])}"
            )
    values = [[v for column in columns for v in column]
              for columns in zip(*(table.values for table in tables), strict=True)]  # fmt: skip
    rows = range(sum(map(len, tables)))
    notes = tuple(note for table in tables for note in table.notes)
    return Table(name, first.names, values, rows, "row", notes, first.delimiter)
