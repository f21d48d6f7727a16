"""The answers of a training program before it trains: usage, version, and its task by name."""

import importlib

import pytest

from transformer_jax import __version__

PROGRAMS = pytest.mark.parametrize(
    "name", ["train.imdb", "train.lm", "train.mlm", "train.translate"]
)


@PROGRAMS
def test_an_unknown_argument_shows_the_usage_of_the_program(name, capsys):
    assert importlib.import_module(name).main(["--no-such-option"]) == 2
    usage, error = capsys.readouterr().err.split(f"\n{name}: error: ")
    assert usage.startswith(f"usage: python -m {name} [-h]") and "--batch-tokens N" in usage
    assert error == "unrecognized arguments: --no-such-option; --help lists the options\n"


@PROGRAMS
def test_the_version_is_that_of_the_library(name, capsys):
    with pytest.raises(SystemExit) as raised:
        importlib.import_module(name).main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"transformer_jax {__version__}\n"


@PROGRAMS
def test_the_name_of_the_task_is_that_of_a_class(name):
    assert importlib.import_module(name).PROGRAM.task.result
