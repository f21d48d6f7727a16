"""What every training program does around its training: the common options, the run folder, errors
in one line.
"""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.data.dataset import DataError
from train.evaluation.report import finished
from train.trainer.faults import TrainingError
from train.trainer.run import (
    OPTIONS,
    Run,
    RunError,
    held,
    new_folder,
    refuse_other_data,
    resumed_options,
)
from train.trainer.signals import stoppable
from transformer_jax.runtime.errors import TokenizerError

# What may be given anew when a run goes on; a program adds what of its own changes nothing that is
# learnt.
MAY_CHANGE = frozenset({"epochs", "checkpoint_minutes", "tensorboard", "data"})


class OptionError(ValueError):
    """An option that does not fit the data or the other options."""


def add_common(add: Callable[..., object], name: str) -> None:
    """The options that all programs have."""
    add("--epochs", type=int, metavar="E", help="passes over the training texts")
    add("--max-steps", type=int, metavar="N", help="stop after N updates")
    add("--batch-tokens", type=int, metavar="N", help="tokens in a batch, padding included")
    add("--dtype", choices=("float32", "bfloat16"), help="default: the recipe's")
    add("--seed", type=int, default=0, metavar="S", help="of everything random (default: 0)")
    add("--out", metavar="DIR", help=f"the run folder (default: runs/{name}-DATE-TIME)")
    add(
        "--resume",
        metavar="RUN",
        help="go on with a run that was stopped, bit for bit; with a larger --epochs also one that is finished",
    )
    add(
        "--checkpoint-minutes",
        type=float,
        metavar="M",
        help="between checkpoints (default: 5); also made at every best validation score",
    )
    add("--tensorboard", action="store_true", help="also write TensorBoard events")


def add_rates(add: Callable[..., object], learning_rate: str, muon_rate: str) -> None:
    """The highest learning rates of what learns to write; the defaults are the recipe's."""
    add(
        "--learning-rate",
        type=float,
        metavar="R",
        help=f"the highest, of AdamW (default: {learning_rate})",
    )
    add(
        "--muon-rate",
        type=float,
        metavar="R",
        help="the highest of the layers' matrices, which Muon moves; 0: AdamW moves all "
        f"(default: {muon_rate})",
    )


def check_rates(options: argparse.Namespace) -> None:
    rate, muon_rate = options.learning_rate, options.muon_rate
    if rate is not None and not 0 < rate < math.inf:
        raise OptionError(f"--learning-rate must be above 0; got {rate}")
    if muon_rate is not None and not 0 <= muon_rate < math.inf:
        raise OptionError(f"--muon-rate must be 0 or more; got {muon_rate}")


def chosen(given: Any, default: Any) -> Any:
    """What the command line says, or else the recipe."""
    return default if given is None else given


COMMON = (
    ("epochs", 0), ("max_steps", 0), ("batch_tokens", 3), ("seed", 0), ("checkpoint_minutes", 0),
)  # fmt: skip


def check_numbers(options: argparse.Namespace, bounds: Iterable[tuple[str, int]]) -> None:
    """The least of each number, before anything is read or made."""
    for name, least in bounds:
        value = getattr(options, name)
        # Beyond 32 bits two seeds are one, and no array has an axis of 31.
        if value is not None and not least <= value < 2**31:
            bound = f"less than {2**31}" if value >= 2**31 else f"at least {least}"
            raise OptionError(f"--{name.replace('_', '-')} must be {bound}; got {value}")


def fit_changes(options: argparse.Namespace) -> dict[str, object]:
    """What the command line changes of a FitConfig."""
    names = ("epochs", "max_steps", "seed", "checkpoint_minutes")
    return {k: getattr(options, k) for k in names if getattr(options, k) is not None}


@dataclass(frozen=True)
class Program:
    """What makes one training program another than the next."""

    module: str  # python -m MODULE
    name: str  # of its run folders
    parser: argparse.ArgumentParser
    check: Callable[[argparse.Namespace], None]
    train: Callable[[Run], None]
    result: Callable[[dict], str]  # what a report has found, in a phrase
    may_change: Collection[str]  # options that may be given anew when a run goes on


def run_program(program: Program, arguments: list[str]) -> int:
    """Trains in a run folder that nobody else has, and says in a line what went wrong; the exit
    code.
    """
    module, parser = program.module, program.parser
    options = parser.parse_args(arguments)
    folder = Path(options.resume) if options.resume else new_folder(options.out, program.name)
    go_on = shlex.join(["python", "-m", module, "--resume", str(folder)])
    try:
        program.check(options)
        with stoppable(), held(folder, new=not options.resume):
            began_with = None
            if options.resume:
                options, began_with = resumed_options(
                    folder, module, parser, arguments, program.may_change
                )
                program.check(options)
                if report := finished(folder, options.epochs):
                    refuse_other_data(folder, options.data)
                    print(
                        f"{folder} is finished: {report['epochs']} epochs, {program.result(report)}; "
                        f"see {folder / 'report.md'}. --epochs {options.epochs + 1} or more goes on"
                    )
                    return 0
            command = shlex.join(["python", "-m", module, *arguments])
            program.train(Run(module, folder, options, began_with, command))
    except (DataError, TokenizerError, RunError, OptionError) as error:
        print(f"{module}: error: {error}", file=sys.stderr)
        return 2
    except TrainingError as error:
        can_go_on = error.mendable and (folder / OPTIONS).exists()
        way_on = f". Then go on with\n    {go_on}" if can_go_on else ""
        print(f"{module}: {error}{way_on}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        if (folder / OPTIONS).exists():
            print(f"\nstopped; go on with\n    {go_on}", file=sys.stderr)
        else:
            print("\nstopped before training began; nothing was kept", file=sys.stderr)
        return 128 + getattr(stop, "number", 2)
    return 0
