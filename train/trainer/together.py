"""The processes of one run: their common end, and which of them writes and prints."""

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from train.trainer.exchange import exchange, from_first, largest, tell_end
from train.trainer.run import RunError
from train.trainer.signals import Stopped, undisturbed
from transformer_jax.parallel import processes
from transformer_jax.parallel.processes import are_several
from transformer_jax.runtime.files import discarded


@dataclass(frozen=True)
class Ending:
    """The exit code of a program, and the lines that it prints at its end."""

    code: int
    lines: str = ""

    def told(self, *, lost: bool = False) -> "Ending":
        """Return the ending of all processes, after telling the others of this one."""
        return Ending.read(tell_end(json.dumps(asdict(self)), lost=lost))

    @classmethod
    def read(cls, text: str) -> "Ending":
        """Return the ending that a process told the others."""
        return cls(**json.loads(text))


def shared_folder(folder: Path) -> Path:
    """Return the run folder of the first process, which holds it.

    Raises RunError if this process does not see it.
    """
    found = Path(from_first(str(folder)))
    if not found.is_dir():
        raise RunError(
            f"process {processes.index()} does not see {found}, which process 0 holds; pass a "
            "folder in a file system that all processes share"
        )
    return found


def check_same(what: str, value: str) -> None:
    """Raise RunError in all processes unless all call this with the same value."""
    values = exchange(value)
    if others := [i for i, other in enumerate(values) if other != values[0]]:
        raise RunError(
            f"process {others[0]} has other {what} than process 0; start all processes with the "
            "same, on machines of the same kind"
        )


@contextmanager
def agreed_stop() -> Iterator[None]:
    """Raise Stopped in all processes at the end if one of several received a signal within.

    For what all must go through together, such as a computation on the mesh.
    """
    if not are_several():
        yield
        return
    came = 0
    try:
        with undisturbed():
            yield
    except Stopped as stop:
        came = stop.number
    if number := largest(came):
        raise Stopped(number)


@contextmanager
def silent_unless_first() -> Iterator[None]:
    """Keep what is printed and written in the context only if this process is the first."""
    if processes.is_first():
        yield
        return
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        discarded(),
    ):
        yield
