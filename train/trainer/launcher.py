"""The frame of every training program: options, run folder, one-line errors, exit code."""

import pkgutil
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax

from train.data.dataset import DataError
from train.trainer.closed_pipes import outlast_readers
from train.trainer.options import (
    CommonOptions,
    OptionError,
    given_options,
    make_options,
    make_parser,
)
from train.trainer.run import (
    OPTIONS,
    Run,
    RunError,
    TrainingError,
    config_options,
    earlier_commands,
    finished,
    held,
    new_folder,
    refuse_other_data,
    resumed_options,
)
from train.trainer.signals import stop_if_asked, stoppable
from transformer_jax.parallel.mesh import mesh_sizes, use_mesh
from transformer_jax.runtime.compilation_cache import use_compilation_cache
from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.errors import TokenizerError, warnings_as_notes


class Trainable(Protocol):
    """The task of a training program: it holds the data of a run and trains on it."""

    def __init__(self, run: Run):
        """Read the data; write nothing."""

    def train(self) -> None:
        """Train, evaluate, and write the model and the report into the run folder."""

    @staticmethod
    def result(report: dict[str, Any]) -> str:
        """Return the main result of a report as a short phrase."""

    @classmethod
    def write_page(cls, folder: Path, report: dict[str, Any]) -> None:
        """Write the page of a finished run from its other files."""


@dataclass(frozen=True)
class Program:
    """A training program: its module, help text, options and task.

    The task is imported once the command line and the paths in it are checked, because it takes
    several seconds.
    """

    module: str  # python -m MODULE
    description: str
    options: type[CommonOptions]
    task_name: str  # MODULE:CLASS of a Trainable

    def script(self) -> int:
        """Train in a process of its own, and return the exit code."""
        use_compilation_cache()
        outlast_readers()
        return self.main()

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Train in a run folder, print any error as one line, and return the exit code."""
        arguments = sys.argv[1:] if arguments is None else arguments
        try:
            parser = make_parser(self.options, self.module, self.description)
            given = given_options(parser, arguments)
            if resume := given.get("resume"):
                return self._stoppable(Path(resume), None, arguments)
            folder = new_folder(given.get("out"), self.module.rpartition(".")[2])
            if file := given.get("config"):
                given = config_options(Path(file), self.module, self.options) | given
            options = make_options(self.options, given)
            options.check_paths()
            return self._stoppable(folder, options, arguments)
        except (DataError, TokenizerError, RunError, OptionError) as error:
            print(f"{self.module}: error: {error}", file=sys.stderr)
            return 2

    def _stoppable(
        self, folder: Path, options: CommonOptions | None, arguments: Sequence[str]
    ) -> int:
        """Train, or resume the run in `folder` if there are no options; return the exit code."""
        go_on = f"resume with\n    {self._command('--resume', folder)}"
        try:
            with warnings_as_notes(), stoppable(), held(folder, new=options is not None):
                self._train(folder, options, arguments)
            return 0
        except TrainingError as error:
            can_resume = error.mendable and (folder / OPTIONS).exists()
            print(f"{self.module}: {error}" + can_resume * f". Then {go_on}", file=sys.stderr)
            return 1
        except KeyboardInterrupt as stop:
            if (folder / OPTIONS).exists():
                print(f"\nstopped; {go_on}", file=sys.stderr)
            else:
                print("\nstopped before training began; nothing was kept", file=sys.stderr)
            return 128 + getattr(stop, "number", 2)

    def _train(self, folder: Path, options: CommonOptions | None, arguments: Sequence[str]) -> None:
        began_with, before = None, ()
        if options is None:
            options, began_with = resumed_options(folder, self.module, self.options, arguments)
            if report := finished(folder, options.epochs):
                refuse_other_data(folder, options.data)
                try:
                    self.task.write_page(folder, report)
                except OSError as error:
                    raise RunError(f"cannot write the page of {folder}: {error.strerror}") from None
                print(
                    f"{folder} is finished: {counted(report['epochs'], 'epoch')}, "
                    f"{self.task.result(report)}; see {folder / 'report.html'}. Pass --epochs "
                    f"{options.epochs + 1} or more to continue"
                )
                return
            before = earlier_commands(folder)
        run = Run(self.module, folder, options, began_with, self._command(*arguments), before)
        task = self.task
        stop_if_asked()  # imports may swallow an exception
        with on_mesh(options.mesh):
            task(run).train()

    @property
    def task(self) -> type[Trainable]:
        """The class named `task_name`."""
        return pkgutil.resolve_name(self.task_name)

    def _command(self, *arguments: object) -> str:
        return shlex.join(["python", "-m", self.module, *map(str, arguments)])


@contextmanager
def on_mesh(text: str | None) -> Iterator[None]:
    """Set the mesh of a run for the duration of the context.

    Raises OptionError if the devices do not fill it.
    """
    try:
        mesh_sizes(text, jax.device_count())
    except ValueError as error:
        raise OptionError(str(error)) from None
    with use_mesh(text):
        yield
