"""Loading of the pairs that `--data` of train.translate names, in three parts.

DIR        train, val and test*, each as NAME.LANGUAGE(.gz), one text per line (Multi30k's layout)
TSV        source, tab, target (.tsv or .tsv.gz); 5% each is held out for validation and test; for
           quotes see transformer_jax/text/delimited.py
hub:NAME   a data set on the Hugging Face hub with a column per language, or `translation`
sample     spelled-out numbers and dates, and their digits: no network (train/data/sample_pairs.py)
"""

import gzip
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from train.data.dataset import DataError, readable
from train.data.hub import load_named, text_of
from train.data.sample_pairs import sample_pairs
from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.texts import decode, lines_of
from transformer_jax.text.delimited import read_rows

HELD_OUT = 0.05
LANGUAGES = ("en", "de")  # unless others are named
SAMPLE = ("words", "digits")
ACCEPTED = "a folder of train/val/test*.LANGUAGE files, a .tsv file, hub:NAME or sample"

Texts = tuple[list[str], list[str]]  # source and target texts


@dataclass(frozen=True)
class Pairs:
    """Training, validation and test pairs; training pairs repeat none of the others."""

    name: str
    source: str  # where the pairs came from
    languages: tuple[str, str]  # source and target
    train: Texts
    validation: Texts
    test: Texts
    notes: tuple[str, ...] = ()


def load_pairs(data: str, source: str, target: str, seed: int) -> Pairs:
    """Load the pairs that `--data` names, in these two languages.

    Raises DataError for data that cannot be used.
    """
    check_source(data, source, target)
    if data == "sample":
        parts = sample_pairs(seed)
        origin = f"spelled-out numbers and dates, generated, seed {seed}"
        return Pairs("sample", origin, SAMPLE, *parts)
    if data.startswith("hub:"):
        return _from_hub(data.removeprefix("hub:"), source, target)
    path = Path(data)
    with readable(path):
        if path.is_dir():
            return _from_folder(path, source, target)
        return _from_tsv(path, source, target, seed)


def check_source(data: str, source: str, target: str) -> None:
    """Raise DataError if there are no such pairs, or not in these languages; nothing is read."""
    if source == target:
        raise DataError(f"--source and --target are both {source!r}")
    if data == "sample" and (source, target) not in (LANGUAGES, SAMPLE):
        raise DataError(
            f"--data sample translates words to digits; got --source {source} --target {target}"
        )
    path = Path(data)
    with readable(path):
        if data != "sample" and not data.startswith("hub:") and not path.exists():
            raise DataError(f"no file or folder {path}; pass {ACCEPTED}")


def _from_folder(folder: Path, source: str, target: str) -> Pairs:
    test = sorted(
        {
            file.name.removesuffix(".gz").removesuffix(f".{source}")
            for file in folder.glob(f"test*.{source}*")
        }
    )
    if not test:
        raise DataError(f"{folder} has no test*.{source} or test*.{source}.gz; pass {ACCEPTED}")
    names = ("train", "val", test[0])
    parts = [
        tuple(_lines(folder, f"{name}.{language}") for language in (source, target))
        for name in names
    ]
    for name, (one, other) in zip(names, parts, strict=True):
        if len(one) != len(other):
            raise DataError(
                f"{folder}: {name}.{source} has {counted(len(one), 'line')}, {name}.{target} "
                f"{len(other):,}; each line must be the translation of the other's"
            )
        if not one:
            raise DataError(f"{folder}: {name}.{source} is empty")
    return _without_held_out(
        Pairs(
            folder.resolve().name, f"{folder.resolve().name}, {names[2]}", (source, target), *parts
        )
    )


def _without_held_out(pairs: Pairs) -> Pairs:
    """Drop the training pairs that are also held out, and note how many."""
    held = {*zip(*pairs.validation, strict=True), *zip(*pairs.test, strict=True)}
    kept = [pair for pair in zip(*pairs.train, strict=True) if pair not in held]
    if not kept:
        raise DataError(f"{pairs.name}: every training pair is also a validation or test pair")
    dropped = len(pairs.train[0]) - len(kept)
    note = f"dropped {counted(dropped, 'training pair')}, also held out"
    return replace(pairs, train=_columns(kept), notes=(*pairs.notes, note)) if dropped else pairs


def _lines(folder: Path, name: str) -> list[str]:
    plain, packed = folder / name, folder / f"{name}.gz"
    if not (plain.exists() or packed.exists()):
        raise DataError(f"{folder} has no {name} or {name}.gz")
    return lines_of(_text(plain if plain.exists() else packed))


def _text(path: Path) -> str:
    """Return the text of a file, which gzip may have compressed."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
    return decode(content, str(path))


def _from_tsv(path: Path, source: str, target: str, seed: int) -> Pairs:
    rows, notes = read_rows(_text(path), str(path), "\t")
    pairs = dict.fromkeys((row.fields[0], row.fields[1]) for row in rows)  # in order
    if dropped := len(rows) - len(pairs):
        notes.append(f"dropped {counted(dropped, 'pair')} repeating another one")
    if more := sum(len(row.fields) > 2 for row in rows):
        notes.append(
            f"in {counted(more, 'row')} of more than two columns, only the first two are read"
        )
    pairs = list(pairs)
    count = max(1, round(HELD_OUT * len(pairs)))
    if len(pairs) < 3:
        raise DataError(f"{path} has {len(pairs)} different pairs; at least three are needed")
    order = np.random.default_rng(seed).permutation(len(pairs))
    parts = order[2 * count :], order[:count], order[count : 2 * count]
    texts = (_columns([pairs[i] for i in np.sort(rows)]) for rows in parts)
    return Pairs(path.stem, path.name, (source, target), *texts, tuple(notes))


def _from_hub(name: str, source: str, target: str) -> Pairs:
    parts, origin = load_named(name, ACCEPTED)
    found = []
    for split in ("train", "validation", "test"):
        if split not in parts:
            raise DataError(f"hub:{name} has no split `{split}`")
        rows = [row.get("translation", row) for row in parts[split]]
        if not rows or not {source, target} <= set(rows[0]):
            raise DataError(f"hub:{name} has no texts in {source} and {target} in `{split}`")
        texts = (
            [text_of(row, column, name, i) for column in (source, target)]
            for i, row in enumerate(rows)
        )
        found.append(_columns(list(texts)))
    return _without_held_out(Pairs(name, f"{name} from {origin}", (source, target), *found))


def _columns(pairs: list[tuple[str, str]]) -> Texts:
    one, other = zip(*pairs, strict=True)
    return list(one), list(other)
