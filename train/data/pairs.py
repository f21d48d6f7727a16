"""Loading of the pairs that `--data` of train.translate names, in three parts.

DIR        train, val and test*, each as NAME.LANGUAGE(.gz), one text per line (Multi30k's layout)
TSV        one pair per line: source, tab, target; 5% each is held out for validation and test
hub:NAME   a data set on the Hugging Face hub with a column per language, or `translation`
sample     spelled-out numbers and dates, and their digits: no network (train/data/sample_pairs.py)
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from train.data.dataset import DataError, readable
from train.data.hub import load_named
from train.data.sample_pairs import sample_pairs

HELD_OUT = 0.05
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
    if data == "sample":
        parts = sample_pairs(seed)
        origin = f"spelled-out numbers and dates, generated, seed {seed}"
        return Pairs("sample", origin, ("words", "digits"), *parts)
    if data.startswith("hub:"):
        return _from_hub(data.removeprefix("hub:"), source, target)
    path = Path(data)
    with readable(path):
        if path.is_dir():
            return _from_folder(path, source, target)
        if not path.exists():
            raise DataError(f"no file or folder {path}; pass {ACCEPTED}")
        return _from_tsv(path, source, target, seed)


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
                f"{folder}: {name}.{source} has {len(one):,} lines, {name}.{target} "
                f"{len(other):,}; each line must be the translation of the other's"
            )
        if not one:
            raise DataError(f"{folder}: {name}.{source} is empty")
    held = {*zip(*parts[1], strict=True), *zip(*parts[2], strict=True)}
    kept = [pair for pair in zip(*parts[0], strict=True) if pair not in held]
    notes = ()
    if dropped := len(parts[0][0]) - len(kept):
        notes = (f"dropped {dropped:,} training pairs that are also held out",)
    if not kept:
        raise DataError(f"{folder}: every training pair is also a validation or test pair")
    return Pairs(
        folder.resolve().name,
        f"{folder.resolve().name}, {names[2]}",
        (source, target),
        _columns(kept),
        *parts[1:],
        notes,
    )


def _lines(folder: Path, name: str) -> list[str]:
    plain, packed = folder / name, folder / f"{name}.gz"
    if not (plain.exists() or packed.exists()):
        raise DataError(f"{folder} has no {name} or {name}.gz")
    path = plain if plain.exists() else packed
    try:
        content = path.read_bytes()
        if path == packed:
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    # Split at line feeds only: U+0085 and others occur inside texts.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _from_tsv(path: Path, source: str, target: str, seed: int) -> Pairs:
    pairs = {}  # without duplicates, in order
    for number, line in enumerate(_lines(path.parent, path.name), 1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise DataError(f"{path}, line {number}: no tab between source and target")
        pairs[columns[0], columns[1]] = None
    pairs = list(pairs)
    count = max(1, round(HELD_OUT * len(pairs)))
    if len(pairs) < 3:
        raise DataError(f"{path} has {len(pairs)} different pairs; at least three are needed")
    order = np.random.default_rng(seed).permutation(len(pairs))
    parts = order[2 * count :], order[:count], order[count : 2 * count]
    texts = (_columns([pairs[i] for i in np.sort(rows)]) for rows in parts)
    return Pairs(path.stem, path.name, (source, target), *texts)


def _from_hub(name: str, source: str, target: str) -> Pairs:
    parts, origin = load_named(name, ACCEPTED)
    found = []
    for split in ("train", "validation", "test"):
        if split not in parts:
            raise DataError(f"hub:{name} has no split `{split}`")
        rows = [row.get("translation", row) for row in parts[split]]
        if not rows or not {source, target} <= set(rows[0]):
            raise DataError(f"hub:{name} has no texts in {source} and {target} in `{split}`")
        found.append(_columns([(row[source], row[target]) for row in rows]))
    return Pairs(name, f"{name} from {origin}", (source, target), *found)


def _columns(pairs: list[tuple[str, str]]) -> Texts:
    one, other = zip(*pairs, strict=True)
    return list(one), list(other)
