"""The lock of a run folder, which keeps other processes out while one trains."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from train.trainer.run import OPTIONS, RunError
from train.trainer.signals import undisturbed
from transformer_jax.serialization.folder_files import LOCK

_held: list[Callable[[], None]] = []  # what releases each folder that is `held`


@contextmanager
def held(folder: Path, *, new: bool) -> Iterator[None]:
    """Keep other processes out of a run folder for the duration of the context, by a lock.

    The folder of a new run is created, and removed again if it is empty at the end, so that a
    failed start leaves nothing behind. The lock is the system's (flock) and ends with the process.

    Raises RunError if the folder is locked, cannot be written, does not exist although the run is
    not `new`, or is not empty although it is.
    """
    made = not os.path.exists(folder)  # Path.exists raises if the name is too long
    if not (made or folder.is_dir()):
        raise RunError(f"{folder} is not a folder; pass another {'--out' if new else '--resume'}")
    if made and not new:
        raise RunError(f"cannot resume {folder}: there is no such folder")
    path, lock = folder / LOCK, None
    parents = [parent for parent in folder.parents if not os.path.exists(parent)]

    def release() -> None:
        if lock is None:
            return
        with lock:  # removed while locked, so that no other process locks a removed file
            path.unlink(missing_ok=True)
            if made and not any(folder.iterdir()):
                for each in (folder, *parents):
                    each.rmdir()

    _held.append(release)
    try:
        try:
            with undisturbed():
                folder.mkdir(parents=True, exist_ok=True)
                lock = _lock(path)
        except OSError as error:
            raise RunError(
                f"cannot write to {folder}: {error.strerror}; "
                + ("pass another --out" if new else "make it writable")
            ) from None
        if lock is None:
            raise RunError(
                f"another process is training in {folder}; wait for it, or pass another --out"
            )
        if new and any(entry.name != LOCK for entry in folder.iterdir()):
            raise RunError(
                f"{folder} is not empty and would be overwritten; pass another --out"
                + (f", or --resume {folder}" if (folder / OPTIONS).exists() else "")
            )
        yield
    finally:
        if release in _held:
            _held.remove(release)
            release()


def release_held() -> None:
    """Remove the locks of the folders that are `held`, for a process that ends at once."""
    while _held:
        with suppress(OSError):
            _held.pop()()


def _lock(path: Path):
    """Return the locked lock file, open, or None if another process has locked it."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 (`held` closes it)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous process may have removed the file between the two lines above.
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        file.close()
