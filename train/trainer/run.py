"""The run of a training program: its folder, its options, and how it is resumed."""

import dataclasses
import json
import re
import time
from collections.abc import Callable, Sequence
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
    type_of,
)
from train.trainer.signals import stop_if_asked
from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.runtime.files import write_text
from transformer_jax.runtime.texts import read_text

OPTIONS = "options.json"
CLUSTER = ("coordinator", "processes", "process")  # that say which processes train as one
NOT_SAVED = ("out", "resume", "config", *CLUSTER)  # options of a command line, not of a run


class RunError(ValueError):
    """A run folder that cannot be used; the message is one line."""


class TrainingError(Exception):
    """A failure that ends training; the last checkpoint is kept.

    `mendable` says whether the run can be resumed once the cause outside it is fixed.
    """

    def __init__(self, message: str, *, mendable: bool):
        super().__init__(message)
        self.mendable = mendable


class LostProcess(TrainingError):
    """A process of several that is gone, so that the others cannot go on."""


def new_folder(out: str | None, name: str) -> Path:
    """Return the folder of a new run: `out`, or a runs/NAME-DATE-TIME that does not exist yet."""
    if out:
        return Path(out)
    stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (stem.with_name(f"{stem.name}-{n}") for n in range(2, 1000))
    # After the clock was set back, a name may be taken.
    return next((path for path in (stem, *others) if not path.exists()), stem)


@dataclass(frozen=True)
class Run:
    """A run of a training program, new or resumed."""

    program: str
    folder: Path
    options: Any  # the program's own kind of CommonOptions
    began_with: str | None = None  # the SHA-256 of the run's data; None for a new run
    command: str = ""
    earlier_commands: tuple[str, ...] = ()  # of a resumed run, its first one first

    def begin(self, data_sha256: str, *beside: str, **resolved: Any) -> None:
        """Write the options to the run folder, from which `resumed_options` can resume the run.

        `data_sha256` covers the data and the inputs named by the options `beside`; `resolved` are
        the values of options whose default the program chose. Raises RunError if a resumed run is
        given other data.
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
        values = {k: v for k, v in values.items() if k not in NOT_SAVED}
        content = {
            "program": self.program,
            "data_sha256": data_sha256,
            "commands": [*self.earlier_commands, *([self.command] if self.command else [])],
            "options": values,
        }
        write_text(self.folder / OPTIONS, json.dumps(content, indent=2) + "\n")

    def tokenizer(self, learn: Callable[[], Any], load: Callable[[Path], Any]) -> Any:
        """Return the tokenizer of a resumed run, loaded from its folder, else a new one."""
        stop_if_asked()
        if self.began_with is not None:
            try:
                return load(self.folder)
            except TokenizerError as error:
                print(f"note        {error}; training the tokenizer again")
        return learn()


def resumed_options(
    folder: Path, program: str, options: type[CommonOptions], arguments: Sequence[str]
) -> tuple[CommonOptions, str]:
    """Return the options of the run to resume, changed by `arguments`, and its data's SHA-256.

    Raises RunError if the run belongs to another program or version, or if `arguments` change an
    option that must stay the same.
    """
    saved, data_sha256 = _read_options(folder, program)
    known = {each.name: each for each in dataclasses.fields(options)}
    saved = {name: known[name].default for name in options.later} | saved
    if set(saved) != set(known) - set(NOT_SAVED):
        raise RunError(f"{folder} was made by another version of {program}; start a new run")
    for name, value in saved.items():
        if not is_possible(known[name], value):
            raise RunError(f"{folder / OPTIONS}: {name} cannot be {value!r:.60}; start a new run")
    given = given_options(make_parser(options, program), arguments)
    given = {name: value for name, value in given.items() if name not in CLUSTER}
    if "config" in given:
        raise RunError(
            "--config cannot be combined with --resume, which takes the options of the run itself; "
            "leave --config out"
        )
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
                "run can only be extended"
            )
    values = saved | given | {"out": None, "resume": str(folder)}
    return make_options(options, values), data_sha256


def config_options(file: Path, program: str, options: type[CommonOptions]) -> dict[str, Any]:
    """Return the options in an options.json of an earlier run of `program`, for a new run.

    Those that are not of a run, such as --out, are left out. Raises RunError if the file has no
    options, has one that the program does not know, or a value that it cannot have.
    """
    fix = "pass the options.json of a run folder"
    try:
        content = json.loads(read_text(file))
        began, saved = content["program"], dict(content["options"])
    except OSError as error:
        raise RunError(f"--config {file} cannot be read: {error.strerror}; {fix}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RunError(f"--config {file} has no options of a run; {fix}") from None
    if began != program:
        raise RunError(
            f"--config {file} is of a run of {began!r:.60}, not of {program}; {fix} of {program}"
        )
    known = {each.name: each for each in dataclasses.fields(options)}
    saved = {name: value for name, value in saved.items() if name not in NOT_SAVED}
    for name, value in saved.items():
        if name not in known:
            raise RunError(
                f"--config {file}: {program} has no option {name!r:.60}; remove it from the file"
            )
        if type(value) is int and type_of(known[name]) is float:  # as 1 for 1.0 on a command line
            saved[name] = value = float(value)
        if not is_possible(known[name], value):
            raise RunError(
                f"--config {file}: {name} cannot be {value!r:.60}; change it in the file"
            )
    return saved


def _read_options(folder: Path, program: str) -> tuple[dict[str, Any], str]:
    try:
        content = json.loads(read_text(folder / OPTIONS))
        began, data_sha256, saved = (content[k] for k in ("program", "data_sha256", "options"))
        saved = dict(saved)
        if not isinstance(data_sha256, str):
            raise TypeError(data_sha256)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise RunError(f"cannot resume {folder}: it has no readable {OPTIONS}") from None
    if began != program:
        is_named = isinstance(began, str) and re.fullmatch(r"train\.[a-z]+", began)
        fix = f"; python -m {began} --resume {folder} resumes it" if is_named else ""
        raise RunError(f"{folder} is a run of {began!r:.60}, not of {program}{fix}")
    return saved, data_sha256


def earlier_commands(folder: Path) -> tuple[str, ...]:
    """Return the command lines that a run was trained with so far; runs of version 0.1 have none.

    The last one of a run that was stopped is among them.
    """
    try:
        commands = json.loads(read_text(folder / OPTIONS))["commands"]
        return tuple(command for command in commands if isinstance(command, str))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ()


def finished(folder: Path, epochs: int) -> dict[str, Any] | None:
    """Return the report of a run that was trained for at least `epochs` epochs, or None."""
    try:
        report = json.loads(read_text(folder / "report.json"))
        return report if report["settings"]["fit"]["epochs"] >= epochs else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def refuse_other_data(folder: Path, data: str) -> None:
    """Raise RunError if `data` is not the --data of a finished run, which reads no data again."""
    began = json.loads(read_text(folder / OPTIONS))["options"]["data"]
    if data != "auto" and Path(data).resolve() != Path(began).resolve():
        raise RunError(
            f"{folder} is finished and began with --data {began}; leave --data out, or start a "
            f"new run with {data}"
        )
