"""Command-line options as the fields of a dataclass."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, TypeVar, get_args

from train.trainer.config import FitConfig
from transformer_jax import __version__
from transformer_jax.parallel.mesh import parse_mesh

MOST = 2**31  # seeds beyond 32 bits would coincide, and no array has an axis this long

Options = TypeVar("Options", bound="CommonOptions")


class OptionError(ValueError):
    """An option that does not fit the data or the other options; the message is one line."""


def option(
    default: Any = None,
    metavar: str | None = None,
    help: str | None = None,
    *,
    choices: Collection[str] | None = None,
    least: int | None = None,
    must: tuple[Callable[[Any], bool], str] | None = None,
) -> Any:
    """Return a dataclass field that becomes a command-line option.

    The field's type is int, float, str, or bool for a switch. A given value must be at least
    `least` and pass `must`, a pair of a test and its description for the error message.
    """
    argument = {"metavar": metavar, "help": help, "choices": choices}
    argument = {key: value for key, value in argument.items() if value is not None}
    return field(default=default, metadata={"argument": argument, "least": least, "must": must})


ABOVE_0 = (lambda value: 0 < value < math.inf, "above 0")
NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "0 or more")


@dataclass(frozen=True)
class CommonOptions:
    """The options of every training program; each program adds its own."""

    # Options that may differ when a run is resumed, those that runs of version 0.1.0 lack, and the
    # groups of options in the help.
    may_change: ClassVar = frozenset(
        {"data", "epochs", "checkpoint_minutes", "tensorboard", "mesh", "remat"}
    )
    later: ClassVar[frozenset[str]] = frozenset({"mesh", "remat", "accumulate"})
    groups: ClassVar[dict[str, tuple[str, ...]]] = {}

    epochs: int | None = option(
        None, "E", "passes over the training texts (default: the recipe's)", least=0
    )
    max_steps: int | None = option(None, "N", "stop after N updates", least=0)
    batch_tokens: int | None = option(
        None, "N", "tokens per batch, padding included (default: the recipe's)", least=3
    )
    dtype: str | None = option(
        choices=("float32", "bfloat16"),
        help="dtype of the computation; parameters stay float32 (default: the recipe's)",
    )
    seed: int = option(0, "S", "random seed (default: 0)", least=0)
    out: str | None = option(None, "DIR", "run folder to create (default: runs/PROGRAM-DATE-TIME)")
    resume: str | None = option(
        None,
        "RUN",
        "continue an interrupted run, with bit-identical results; with a larger --epochs also a "
        "finished one",
    )
    config: str | None = option(
        None,
        "FILE",
        "options.json of an earlier run, whose options the new run takes; those on the command "
        "line come first",
    )
    checkpoint_minutes: float | None = option(
        None,
        "M",
        "minutes between checkpoints (default: 5); every best validation score is also saved",
        least=0,
    )
    mesh: str | None = option(
        None,
        "AXIS=N,...",
        "sizes of the device mesh: data, fsdp and tensor, such as data=2,fsdp=4; -1: the rest "
        "(default: data = all devices)",
    )
    accumulate: int = option(
        1,
        "N",
        "compute the gradient of each batch as the sum over N microbatches, of which one at a time "
        "is in memory (default: 1)",
        least=1,
    )
    remat: bool = option(
        False,
        help="compute each layer again in the backward pass instead of keeping its activations: "
        "less memory, more time, the same results",
    )
    tensorboard: bool = option(False, help="also write TensorBoard events (needs tensorboardX)")

    def __post_init__(self):
        for each in dataclasses.fields(self):
            value, flag = getattr(self, each.name), flag_of(each.name)
            least, must = each.metadata["least"], each.metadata["must"]
            if value is None:
                continue
            if least is not None and not least <= value < MOST:
                bound = f"less than {MOST}" if value >= MOST else f"at least {least}"
                raise OptionError(f"{flag} must be {bound}; got {value}")
            if must is not None and not must[0](value):
                raise OptionError(f"{flag} must be {must[1]}; got {value}")
        parse_mesh(self.mesh)

    def check_paths(self) -> None:
        """Raise DataError or OptionError if a path does not exist or cannot be what it must be."""

    def fit_config(self, config: FitConfig) -> FitConfig:
        """Return the recipe's `config`, changed as these options ask."""
        names = ("epochs", "max_steps", "seed", "checkpoint_minutes", "accumulate", "remat")
        return replace(config, **{k: v for k in names if (v := getattr(self, k)) is not None})


def flag_of(name: str) -> str:
    """Return the command-line flag of a field, such as --max-steps of `max_steps`."""
    return f"--{name.replace('_', '-')}"


def type_of(each: dataclasses.Field) -> type:
    """Return the type of an option's values, without None."""
    return next((kind for kind in get_args(each.type) if kind is not type(None)), each.type)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments"):
            self.print_usage(sys.stderr)
        raise OptionError(f"{message}; --help lists the options")


def make_parser(
    options: type[CommonOptions], program: str, description: str = ""
) -> argparse.ArgumentParser:
    """Return the parser of a program's command line."""
    parser = _Parser(
        prog=f"python -m {program}",
        description=description,
        allow_abbrev=False,  # a new option would make an abbreviation of another one ambiguous
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"transformer_jax {__version__}")
    common = tuple(each.name for each in dataclasses.fields(CommonOptions))
    groups = options.groups | {"every training program": common}
    title_of = {name: title for title, names in groups.items() for name in names}
    shown = {title: parser.add_argument_group(title) for title in groups}
    for each in dataclasses.fields(options):
        kind, given = type_of(each), each.metadata["argument"]
        if kind is bool:
            given = given | {"action": "store_true"}
        elif kind is not str:
            given = given | {"type": kind}
        group = shown.get(title_of.get(each.name), parser)
        group.add_argument(flag_of(each.name), default=each.default, **given)
    return parser


def given_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options that are given on a command line, without those left at their default."""
    unset = object()
    names = (action.dest for action in parser._actions)
    found = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(names, unset)))
    return {name: value for name, value in vars(found).items() if value is not unset}


def make_options(options: type[Options], values: dict[str, Any]) -> Options:
    """Return options with these values; raise OptionError if no model can be built from them."""
    try:
        return options(**values)
    except ValueError as error:
        raise OptionError(str(error)) from None


def is_possible(each: dataclasses.Field, value: object) -> bool:
    """Return whether the command line could give this option this value."""
    if value is None:
        return each.default is None
    choices = each.metadata["argument"].get("choices", [value])
    return type(value) is type_of(each) and value in choices


def chosen(given: Any, default: Any) -> Any:
    """Return `given` unless it is None, else `default`."""
    return default if given is None else given
