"""Writing files so that no reader meets half of one: beside the place, then renamed into it."""

import os
from collections.abc import Callable
from pathlib import Path


def write(path: Path, writer: Callable[[Path], object]) -> None:
    """Calls `writer` with a neighbouring path, waits for the disk and renames the result into
    place.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        writer(beside)
        sync(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, so that a reader never sees half of it."""
    write(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def sync(path: Path) -> None:
    """Waits until the disk has it: a rename that outruns its data is no safety, and a full disk
    says so here.
    """
    with open(path, "rb") as file:
        os.fsync(file.fileno())
