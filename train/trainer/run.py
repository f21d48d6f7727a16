"""The run of a training program: a folder of its own, held by one process, with the options that it
began with.
"""

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.trainer.options import (
    CommonOptions,
    flag_of,
    given_options,
    is_possible,
    make_options,
    make_parser,
)
from train.trainer.signals import stop_if_asked, undisturbed
from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.runtime.files import write_text
from transformer_jax.text.tokenizer import load_own_tokenizer

OPTIONS, LOCK = "options.json", ".lock"


class RunError(ValueError):
    """A run folder that cannot be used."""


def new_folder(out: str | None, name: str) -> Path:
    """Return the folder of a new run: --out, or runs/NAME-DATE-TIME, which does not exist yet."""
    if out:
        return Path(out)
    stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (stem.with_name(f"{stem.name}-{n}") for n in range(2, 1000))
    # A clock that was set back names a run twice.
    return next((path for path in (stem, *others) if not path.exists()), stem)


@contextmanager
def held(folder: Path, *, new: bool) -> Iterator[None]:
    """Keeps other processes out of the folder until this one ends, however it ends.

    A new run's folder is made, and removed again if nothing was put into it: a mistake leaves none.
    The lock is the system's (flock) and dies with the process.
    """
    made = not os.path.exists(folder)  # Path.exists raises where a name is too long
    if not (made or folder.is_dir()):
        raise RunError(f"{folder} is not a folder; pass another {'--out' if new else '--resume'}")
    if made and not new:
        raise RunError(f"{folder} is not a run to go on with: there is no such folder")
    path, lock = folder / LOCK, None
    parents = [parent for parent in folder.parents if not os.path.exists(parent)]
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
                f"{folder} is not empty and would be written over; pass another --out"
                + (f", or --resume {folder}" if (folder / OPTIONS).exists() else "")
            )
        yield
    finally:
        if lock is not None:
            with lock:  # removed while it is held, so that nobody holds what is no longer there
                path.unlink(missing_ok=True)
                if made and not any(folder.iterdir()):
                    for each in (folder, *parents):
                        each.rmdir()


def _lock(path: Path):
    """The open lock file, or None if another process has it."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 (`held` closes it)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed it between the two lines above.
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        file.close()


@dataclass(frozen=True)
class Run:
    """A training that begins, or is resumed."""

    program: str
    folder: Path
    options: Any  # the program's own kind of CommonOptions
    began_with: str | None = None  # the SHA-256 of the data, where it is resumed
    command: str = ""

    def begin(self, data_sha256: str, *beside: str, **resolved: Any) -> None:
        """Write what `resumed_options` reads: from here on the run can be resumed.

        The SHA-256 is of the data, and of what the options `beside` name; `resolved` are the values
        of options that were left to the program. Raises RunError where the run is resumed with
        other data.
        """
        if self.began_with not in (None, data_sha256):
            others = "".join(f", or the {name} model," for name in beside)
            options = " and ".join(f"--{name}" for name in ("data", *beside))
            raise RunError(
                f"the data{others} are not those that {self.folder} began with; pass the same "
                f"with {options}"
            )
        stop_if_asked()
        values = dataclasses.asdict(self.options) | resolved
        values = {k: v for k, v in values.items() if k not in ("out", "resume")}
        content = {"program": self.program, "data_sha256": data_sha256, "options": values}
        write_text(self.folder / OPTIONS, json.dumps(content, indent=2) + "\n")

    def tokenizer(
        self, learn: Callable[[], Any], load: Callable[[Path], Any] = load_own_tokenizer
    ) -> Any:
        """Return the run's own tokenizer where it is resumed, else one that is trained now."""
        if self.began_with is not None:
            try:
                return load(self.folder)
            except TokenizerError as error:
                print(f"note        {error}; it is learned again")
        return learn()


def resumed_options(
    folder: Path, program: str, options: type[CommonOptions], arguments: Sequence[str]
) -> tuple[CommonOptions, str]:
    """Return the options of a run, changed as `arguments` say, and the SHA-256 of its data."""
    saved, data_sha256 = _read_options(folder, program)
    known = {each.name: each for each in dataclasses.fields(options)}
    if set(saved) != set(known) - {"out", "resume"}:
        raise RunError(f"{folder} was made by another version of {program}; start a new run")
    for name, value in saved.items():
        if not is_possible(known[name], value):
            raise RunError(f"{folder / OPTIONS}: {name} cannot be {value!r:.60}; start a new run")
    given = given_options(make_parser(options, program), arguments)
    for name, value in given.items():
        may_change = name in options.may_change or name == "resume"
        if not may_change and (name == "out" or value != saved[name]):
            raise RunError(
                f"{flag_of(name)} cannot change within a run"
                + ("" if name == "out" else f", and {folder} began with {saved[name]!r:.60}")
                + f"; leave {flag_of(name)} out, or start a new run"
            )
        if name == "epochs" and value < (saved[name] or 0):
            raise RunError(
                f"--epochs {value} is fewer than the {saved[name]} that {folder} began with; a "
                "run only grows"
            )
    values = saved | given | {"out": None, "resume": str(folder)}
    return make_options(options, values), data_sha256


def _read_options(folder: Path, program: str) -> tuple[dict[str, Any], str]:
    try:
        content = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))
        began, data_sha256, saved = (content[k] for k in ("program", "data_sha256", "options"))
        saved = dict(saved)
        if not isinstance(data_sha256, str):
            raise TypeError(data_sha256)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise RunError(
            f"{folder} is not a run to go on with: it has no readable {OPTIONS}"
        ) from None
    if began != program:
        raise RunError(f"{folder} is a run of {began!r:.60}, not of {program}")
    return saved, data_sha256


def finished(folder: Path, epochs: int) -> dict[str, Any] | None:
    """Return the report of a run that was trained for at least so many epochs, or None."""
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return report if report["settings"]["fit"]["epochs"] >= epochs else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def refuse_other_data(folder: Path, data: str) -> None:
    """Raise RunError where a finished run, which reads no data again, began with other data."""
    began = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))["options"]["data"]
    if data != "auto" and Path(data).resolve() != Path(began).resolve():
        raise RunError(
            f"{folder} is finished and began with --data {began}; leave --data out, or start a "
            f"new run with {data}"
        )
