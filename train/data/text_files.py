"""Loading of the texts that `--data` of train.lm names, in pieces, so they may exceed memory.

FILE       one text; its last tenth is held out
DIR        its *.txt files, one text each; a tenth, drawn with the seed, is held out
hub:NAME   the column `text` of a data set on the Hugging Face hub, one text per row
sample     the generated reviews of the built-in sample: no network, a few seconds
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from train.data.dataset import DataError, readable
from train.data.hub import load_named, text_of
from train.data.sample_reviews import sample
from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.texts import decode

HELD_OUT = 0.1
PIECE = 2**20  # bytes
ACCEPTED = "a UTF-8 text file, a folder of .txt files, hub:NAME or sample"

Text = Iterator[str]  # in pieces


@dataclass(frozen=True)
class Texts:
    """A training and a held-out part that share no text; each call reads a part again."""

    name: str
    source: str
    train: Callable[[], Iterator[Text]]
    held_out: Callable[[], Iterator[Text]]
    separate: bool  # True: several texts that do not attend to each other
    rule: str  # which texts are held out, as a phrase


def load_texts(data: str, seed: int) -> Texts:
    """Load the texts that `--data` names; raise DataError if they cannot be used."""
    check_source(data)
    if data == "sample":
        found = sample(seed)
        return Texts(
            "sample",
            f"the built-in sample: generated reviews, seed {seed} (train/data/sample_reviews.py)",
            lambda: ([text] for text in found.train.texts),
            lambda: ([text] for text in found.test.texts),
            True,
            f"{len(found.test):,} other generated reviews",
        )
    if data.startswith("hub:"):
        return _from_hub(data.removeprefix("hub:"), seed)
    path = Path(data)
    with readable(path):
        return _from_folder(path, seed) if path.is_dir() else _from_file(path)


def check_source(data: str) -> None:
    """Raise DataError if there are no such texts; nothing is read."""
    path = Path(data)
    with readable(path):
        if data != "sample" and not data.startswith("hub:") and not path.exists():
            raise DataError(f"no file or folder {path}; pass {ACCEPTED}")


def _from_file(path: Path) -> Texts:
    size = path.stat().st_size
    middle = round((1 - HELD_OUT) * size)
    with open(path, "rb") as file:
        file.seek(middle)
        while (byte := file.read(1)) and byte[0] & 0xC0 == 0x80:  # inside a character
            middle += 1
    if not 0 < middle < size:
        raise DataError(f"{path} has {size} bytes: too few to train on and to hold some out")
    return Texts(
        path.name,
        f"{path.name}, {size:,} bytes",
        lambda: iter([_pieces(path, 0, middle)]),
        lambda: iter([_pieces(path, middle, size)]),
        False,
        f"the last {size - middle:,} bytes",
    )


def _from_folder(folder: Path, seed: int) -> Texts:
    files = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() == ".txt" and path.is_file()
    )
    if len(files) < 2:
        raise DataError(
            f"{folder} holds {len(files)} .txt files; at least two are needed: one to train on, "
            "one held out"
        )
    held = _held_out(len(files), seed)
    return Texts(
        folder.resolve().name,
        f"{counted(len(files), '.txt file')} of {folder.resolve().name}",
        lambda: (_pieces(file) for i, file in enumerate(files) if i not in held),
        lambda: (_pieces(file) for i, file in enumerate(files) if i in held),
        True,
        f"{len(held):,} of {counted(len(files), 'file')}, drawn with seed {seed}",
    )


def _from_hub(name: str, seed: int) -> Texts:
    parts, origin = load_named(name, ACCEPTED)
    if "train" not in parts or "text" not in parts["train"].column_names:
        raise DataError(f"hub:{name} has no split `train` with a column `text`")
    rows = parts["train"]
    if len(rows) < 2:
        raise DataError(f"hub:{name} has {counted(len(rows), 'text')}; at least two are needed")
    held = _held_out(len(rows), seed)
    return Texts(
        name,
        f"{name} from {origin}, {counted(len(rows), 'text')}",
        lambda: ([text_of(row, "text", name, i)] for i, row in enumerate(rows) if i not in held),
        lambda: ([text_of(row, "text", name, i)] for i, row in enumerate(rows) if i in held),
        True,
        f"{len(held):,} of {counted(len(rows), 'text')}, drawn with seed {seed}",
    )


def _held_out(number: int, seed: int) -> set[int]:
    count = max(1, round(HELD_OUT * number))
    return set(np.random.default_rng(seed).choice(number, count, replace=False).tolist())


def _pieces(path: Path, start: int = 0, end: int | None = None) -> Text:
    """Yield a file in pieces, cut after a line feed where there is one, so that no word is cut."""
    with readable(path), open(path, "rb") as file:
        line = 1 + sum(block.count(b"\n") for block in _blocks(file, start))
        piece, last = b"", path.stat().st_size if end is None else end
        for block in _blocks(file, last - start):
            piece += block
            cut = piece.rfind(b"\n") + 1
            if cut and file.tell() < last:
                yield decode(piece[:cut], str(path), line=line)
                line += piece.count(b"\n", 0, cut)
                piece = piece[cut:]
        if piece:
            yield decode(piece, str(path), line=line)


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of a file in blocks."""
    while size > 0 and (block := file.read(min(PIECE, size))):
        size -= len(block)
        yield block
