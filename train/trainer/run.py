"""The run of a training program: a folder of its own, held by one process, with the options that it
began with.
"""

import argparse
import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.trainer.signals import stop_if_asked, undisturbed
from transformer_jax.runtime.files import write_text
from transformer_jax.text.tokenizer import TokenizerError, load_own_tokenizer

OPTIONS, LOCK = "options.json", ".lock"


class RunError(ValueError):
    """A run folder that cannot be used."""


def new_folder(out: str | None, name: str) -> Path:
    """Where a new run will write: --out, or runs/NAME-DATE-TIME. It never writes over another run."""
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
    """A training that begins, or goes on."""

    program: str
    folder: Path
    options: argparse.Namespace
    began_with: str | None = None  # the sum of the data, where it goes on
    command: str = ""

    def begin(self, data_sha256: str, *beside: str) -> None:
        """Writes what `resumed_options` reads: from here on the run can be gone on with.

        The sum is of the data, and of what the options `beside` name. Raises RunError where it goes
        on with other data.
        """
        if self.began_with not in (None, data_sha256):
            others = "".join(f", or the {name} model," for name in beside)
            options = " and ".join(f"--{name}" for name in ("data", *beside))
            raise RunError(
                f"the data{others} are not those that {self.folder} began with; pass the same with {options}"
            )
        stop_if_asked()
        values = {k: v for k, v in vars(self.options).items() if k not in ("out", "resume")}
        content = {"program": self.program, "data_sha256": data_sha256, "options": values}
        write_text(self.folder / OPTIONS, json.dumps(content, indent=2) + "\n")

    def tokenizer(
        self, learn: Callable[[], Any], load: Callable[[Path], Any] = load_own_tokenizer
    ) -> Any:
        """The run's own when it goes on, else one that is learned now."""
        if self.began_with is not None:
            try:
                return load(self.folder)
            except TokenizerError as error:
                print(f"note        {error}; it is learned again")
        return learn()


def resumed_options(
    folder: Path,
    program: str,
    parser: argparse.ArgumentParser,
    arguments: list[str],
    may_change: Collection[str],
) -> tuple[argparse.Namespace, str]:
    """The options that the run began with, those of `may_change` as given anew, and the sum of its
    data.
    """
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
    known = vars(parser.parse_args([]))
    if set(saved) != set(known) - {"out", "resume"}:
        raise RunError(f"{folder} was made by another version of {program}; start a new run")
    for action in parser._actions:
        if action.dest in saved and not _possible(action, saved[action.dest]):
            raise RunError(
                f"{folder / OPTIONS}: {action.dest} cannot be {saved[action.dest]!r:.60}; start a new run"
            )
    unset = object()
    given = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(known, unset)))
    for name, value in vars(given).items():
        if value is unset or name == "resume":
            continue
        if name not in may_change and (name == "out" or value != saved[name]):
            option = f"--{name.replace('_', '-')}"
            raise RunError(
                f"{option} cannot change within a run"
                + ("" if name == "out" else f", and {folder} began with {saved[name]!r:.60}")
                + f"; leave {option} out, or start a new run"
            )
        if name == "epochs" and value < (saved[name] or 0):
            raise RunError(
                f"--epochs {value} is fewer than the {saved[name]} that {folder} began with; a run only grows"
            )
        saved[name] = value
    return argparse.Namespace(**saved, out=None, resume=str(folder)), data_sha256


def refuse_other_data(folder: Path, data: str) -> None:
    """RunError where a finished run, which looks at no data again, would pass for one of these."""
    began = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))["options"]["data"]
    if data != "auto" and Path(data).resolve() != Path(began).resolve():
        raise RunError(
            f"{folder} is finished and began with --data {began}; leave --data out, or start a new run with {data}"
        )


def _possible(action: argparse.Action, value: object) -> bool:
    """Whether the command line can give an option this value."""
    if value is None:
        return action.default is None
    if action.nargs == 0:  # a switch
        return isinstance(value, bool)
    return type(value) is (action.type or str) and value in (action.choices or [value])


@contextmanager
def event_log(run: Path, tensorboard: bool) -> Iterator[Callable[[dict], None]]:
    """Where the lines of metrics.jsonl also go: TensorBoard when asked for, else nowhere."""
    if not tensorboard:
        yield lambda line: None
        return
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise RunError("--tensorboard needs tensorboardX: pip install tensorboardX") from None
    with SummaryWriter(str(run / "tensorboard")) as writer:
        yield lambda line: [
            writer.add_scalar(name, value, line["step"])
            for name, value in line.items()
            if name != "step" and value is not None
        ]
