"""The frame of every training program: options, run folder, one-line errors, exit code."""

import os
import pkgutil
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import jax

from train.data.dataset import DataError
from train.trainer.closed_pipes import outlast_readers
from train.trainer.exchange import EndedElsewhere, leave_with_others
from train.trainer.folder_lock import held, release_held
from train.trainer.options import (
    CommonOptions,
    OptionError,
    given_options,
    make_options,
    make_parser,
)
from train.trainer.run import (
    CLUSTER,
    OPTIONS,
    LostProcess,
    Run,
    RunError,
    TrainingError,
    config_options,
    earlier_commands,
    finished,
    new_folder,
    refuse_other_data,
    resumed_options,
)
from train.trainer.signals import stop_if_asked, stoppable
from train.trainer.together import (
    Ending,
    agreed_stop,
    check_same,
    shared_folder,
    silent_unless_first,
)
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import use_mesh
from transformer_jax.runtime.compilation_cache import use_compilation_cache
from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.errors import TokenizerError, one_line, warnings_as_notes


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
        code = self.main(finds_cluster=True)
        if processes.are_others_lost():  # JAX would wait for them, and then abort
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def main(self, arguments: Sequence[str] | None = None, *, finds_cluster: bool = False) -> int:
        """Train in a run folder, print any error as one line, and return the exit code.

        With options that name other processes, and if it `finds_cluster` also where JAX finds them,
        this process joins them. All then return the same code, and print the same error.
        """
        arguments = sys.argv[1:] if arguments is None else arguments
        stderr = sys.stderr
        try:
            parser = make_parser(self.options, self.module, self.description)
            given = given_options(parser, arguments)
            if finds_cluster or any(name in given for name in CLUSTER):
                processes.join(*(given.get(name) for name in CLUSTER))
        except (ValueError, processes.ProcessError) as error:
            print(f"{self.module}: error: {error}", file=stderr)
            return 2

        def leave(told: str) -> None:
            self._print(Ending.read(told), stderr)
            release_held()
            os._exit(Ending.read(told).code)

        leave_with_others(leave)
        with silent_unless_first():
            ending = self._ending(given, arguments)
        self._print(ending, stderr)
        return ending.code

    @staticmethod
    def _print(ending: Ending, stderr: TextIO) -> None:
        if ending.lines:
            print(ending.lines, file=stderr, flush=True)

    def _ending(self, given: dict[str, Any], arguments: Sequence[str]) -> Ending:
        """Train, and return how that ended, which the other processes are told."""
        try:
            if resume := given.get("resume"):
                return self._stoppable(Path(resume), None, arguments)
            folder = new_folder(given.get("out"), self.module.rpartition(".")[2])
            if file := given.get("config"):
                given = config_options(Path(file), self.module, self.options) | given
            options = make_options(self.options, given)
            options.check_paths()
            return self._stoppable(folder, options, arguments)
        except (DataError, TokenizerError, RunError, OptionError) as error:
            return Ending(2, f"{self.module}: error: {error}").told()
        except EndedElsewhere as end:
            return Ending.read(str(end))
        except processes.ProcessError as error:
            return Ending(1, f"{self.module}: {error}; start all again").told(lost=True)
        except Exception as error:
            what = f"process {processes.index()} failed: {one_line(error)}"
            Ending(1, f"{self.module}: {what}").told()
            raise

    def _stoppable(
        self, folder: Path, options: CommonOptions | None, arguments: Sequence[str]
    ) -> Ending:
        """Train, or resume the run in `folder` if there are no options."""
        try:
            # The first process holds the folder for all.
            holding = held(folder, new=options is not None) if processes.is_first() else None
            with warnings_as_notes(), stoppable(), holding or nullcontext():
                folder = shared_folder(folder)
                self._train(folder, options, arguments)
            return Ending(0)
        except TrainingError as error:
            can_resume = error.mendable and (folder / OPTIONS).exists()
            lines = f"{self.module}: {error}" + can_resume * f". Then {self._go_on(folder)}"
            return Ending(1, lines).told(lost=isinstance(error, LostProcess))
        except KeyboardInterrupt as stop:
            lines = "\nstopped before training began; nothing was kept"
            if (folder / OPTIONS).exists():
                lines = f"\nstopped; {self._go_on(folder)}"
            return Ending(128 + getattr(stop, "number", 2), lines).told()

    def _go_on(self, folder: Path) -> str:
        return f"resume with\n    {self._command('--resume', folder)}"

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
        with agreed_stop():  # each process waits for the devices of the others
            check_same("options", options.of_run())
            jax.device_count()
        try:
            mesh = use_mesh(options.mesh)
        except ValueError as error:
            raise OptionError(str(error)) from None
        with mesh:
            task(run).train()

    @property
    def task(self) -> type[Trainable]:
        """The class named `task_name`."""
        return pkgutil.resolve_name(self.task_name)

    def _command(self, *arguments: object) -> str:
        return shlex.join(["python", "-m", self.module, *map(str, arguments)])
