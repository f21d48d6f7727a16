"""Atomic writing of files: to a path next to the target, then renamed into place.

No reader sees half a file.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_discards: list[bool] = []


@contextmanager
def discarded() -> Iterator[None]:
    """Write no file within the context: another process of the same program writes them."""
    _discards.append(True)
    try:
        yield
    finally:
        _discards.pop()


def are_discarded() -> bool:
    """Return whether files are not written; see `discarded`."""
    return bool(_discards)


def write(path: Path, writer: Callable[[Path], object]) -> None:
    """Write a file atomically: `writer` writes to a neighbouring path, which then replaces `path`.

    It waits for the disk before the rename. Within `discarded`, nothing is written.
    """
    if are_discarded():
        return
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
    """Wait until a file is on the disk.

    A rename is not safe if it reaches the disk before the data. An error of a full disk is raised
    here.
    """
    with open(path, "rb") as file:
        os.fsync(file.fileno())
