"""Labelled texts from tables: one file, the files of a folder, or a folder saved by `datasets`.

    texts.csv                               one file; formats: transformer_jax/text/tables.py
    FOLDER/train.csv, test.csv, ...         files named train, validation, test and unlabelled
    FOLDER/train-00000-of-00002.parquet     parts in several files (shards), also in FOLDER/data
    FOLDER/dataset_dict.json                what `save_to_disk` of Hugging Face `datasets` writes

Rows with a blank text or label stop the program, or are dropped and counted."""

from dataclasses import dataclass, field
from pathlib import Path

from train.data.dataset import DataError, Split, Tables
from train.data.labels import as_integers, classes_of, read_label, spelling_notes
from transformer_jax.runtime.counted import counted
from transformer_jax.text.table_folders import is_saved, part_files, part_of, saved_tables
from transformer_jax.text.tables import Table, read_table

MOVIE_COLUMN = "movie"  # optional
SHOWN = 3  # lines that a message names


@dataclass(frozen=True)
class Reading:
    """The options that say how tables are read."""

    text_column: str = "text"
    label_column: str = "label"
    classes: int | None = None  # None: as many as there are labels
    unlabelled: bool = False  # whether a text without a label is an unlabelled text, or a mistake
    skip_bad: bool = False  # whether rows with a blank text or label are dropped, or a mistake
    encoding: str | None = None  # of text files; None: UTF-8, or UTF-16 with its mark
    reviews: bool = False  # whether labels 0 and 1 are negative and positive


@dataclass
class _Part:
    """The rows of one part: training, validation or test."""

    texts: list[str] = field(default_factory=list)
    labels: list[int | str] = field(default_factory=list)
    movies: list[str] = field(default_factory=list)


def read_tables(path: Path, reading: Reading) -> Tables:
    """Read the labelled texts of a file or a folder.

    Raises DataError, with the file and line, for content that cannot be used.
    """
    notes: list[str] = []
    if path.is_dir():
        source = f"the folder {path.resolve().name}"
        tables = _saved_tables(path) if is_saved(path) else _folder_tables(path, reading, notes)
    else:
        source = f"the file {path.name}"
        tables = {"train": [_table(path, reading, labelled=True)]}
    parts: dict[str, _Part] = {part: _Part() for part in ("train", "validation", "test")}
    unlabelled, raw = [], []
    for name, of_part in tables.items():
        for table in of_part:
            notes += table.notes
            if name == "unlabelled":
                unlabelled += _texts_alone(table, reading, notes)
            else:
                raw += _add(parts[name], table, reading, unlabelled, notes)
    notes += spelling_notes(raw)
    labels = as_integers([label for part in parts.values() for label in part.labels])
    try:
        indices, classes = classes_of(labels, path.name, reading.classes, reviews=reading.reviews)
    except DataError as error:
        dropped = [note for note in notes if note.startswith("dropped ")]
        raise DataError("; ".join([str(error), *dropped])) from None
    if len(learned := set(parts["train"].labels)) == 1:
        raise DataError(f"{path.name}: all training texts have one label, {learned.pop()!r}")
    if classes[:2] == ("-1", "0"):  # in data sets of Hugging Face, -1 is a label that is missing
        notes.append("-1 is read as a class; if it means no label, leave those labels blank")
    splits, start = {}, 0
    for name, part in parts.items():
        end = start + len(part.texts)
        movies = part.movies if any(part.movies) else None
        splits[name] = Split(part.texts, indices[start:end], movies)
        start = end
        if name in tables and not part.texts:
            raise DataError(f"{path.name}: its {name} part has no labelled text")
    validation, test = (splits[name] if name in tables else None for name in ("validation", "test"))
    found = splits["train"], test, unlabelled, classes, tuple(notes), validation
    return Tables(source, *found)


def _folder_tables(folder: Path, reading: Reading, notes: list[str]) -> dict[str, list[Table]]:
    parts, others = part_files(folder)
    if others:
        notes.append(f"not read: {', '.join(others[:5])}{', ...' * (len(others) > 5)}")
    return {
        name: [_table(file, reading, labelled=name != "unlabelled") for file in files]
        for name, files in parts.items()
    }


def _table(path: Path, reading: Reading, *, labelled: bool) -> Table:
    wanted = [reading.text_column, *([reading.label_column] if labelled else [])]
    return read_table(
        path,
        wanted,
        label_column=reading.label_column if labelled else None,
        encoding=reading.encoding,
        only=[*wanted, MOVIE_COLUMN],
    )


def _saved_tables(folder: Path) -> dict[str, list[Table]]:
    """Read the parts of a folder saved by `datasets`."""
    tables: dict[str, list[Table]] = {}
    found = saved_tables(folder)
    for name, table in found.items():
        if (part := part_of(name)) is not None:
            tables.setdefault(part, []).append(table)
    if "train" not in tables:
        raise DataError(f"{folder}: no part train, but {', '.join(found) or 'none'}")
    return tables


def _texts_alone(table: Table, reading: Reading, notes: list[str]) -> list[str]:
    """Return the texts of a table of unlabelled texts; blank ones are dropped and counted."""
    texts = table.texts(reading.text_column, "--text-column")
    kept = [text for text in texts if text.strip()]
    if dropped := len(texts) - len(kept):
        notes.append(f"dropped {counted(dropped, 'blank text')} of {table.name}")
    return kept


def _add(
    part: _Part, table: Table, reading: Reading, unlabelled: list[str], notes: list[str]
) -> list[object]:
    """Add the rows of a table to a part or the unlabelled texts; return its labels as written."""
    texts = table.texts(reading.text_column, "--text-column")
    raw = table.column(reading.label_column, "--label-column")
    movies = [None] * len(table)
    if MOVIE_COLUMN in table.names:
        if table.names.count(MOVIE_COLUMN) > 1:
            raise DataError(f"{table.name}: two columns {MOVIE_COLUMN!r}; rename one of them")
        movies = table.values[table.names.index(MOVIE_COLUMN)]
    bad: dict[str, list[int]] = {"text": [], "label": []}
    for i, text in enumerate(texts):
        label = read_label(raw[i], table.place(i))
        movie = _movie(movies[i], table.place(i))
        if not text.strip():
            bad["text"].append(i)
        elif label is not None:
            part.texts.append(text)
            part.labels.append(label)
            part.movies.append(movie)
        elif reading.unlabelled:
            unlabelled.append(text)
        else:
            bad["label"].append(i)
    if any(bad.values()):
        notes.append(_report_bad(table, bad, skip=reading.skip_bad))
    return raw


def _report_bad(table: Table, bad: dict[str, list[int]], *, skip: bool) -> str:
    """Return a note on the rows that are dropped; raise DataError if they are not to be."""
    found = []
    for what, rows in bad.items():
        if rows:
            numbers = [str(table.numbers[i]) for i in rows[:SHOWN]]
            unit = table.unit + "s" * (len(rows) > 1)
            listed = ", ".join(numbers) + ", ..." * (len(rows) > SHOWN)
            found.append(f"{len(rows):,} with a blank {what} ({unit} {listed})")
    total = sum(map(len, bad.values()))
    rows = counted(total, "row")
    if skip:
        return f"dropped {rows} of {table.name}: {' and '.join(found)}"
    ways = "drop them with --skip-bad"
    if bad["label"]:
        ways += ", or learn from the texts without a label with --unlabelled"
    raise DataError(f"{table.name}: {rows} cannot be used: {' and '.join(found)}; {ways}")


def _movie(value: object, where: str) -> str:
    """Return the movie of a text, "" if unknown."""
    if value is None or isinstance(value, str | int):
        return str(value or "")
    raise DataError(
        f"{where}: {MOVIE_COLUMN!r} must be a string or an integer, got {type(value).__name__}"
    )
