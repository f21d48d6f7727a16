"""The page of all commands, which is made from their help whenever the site is built."""

import ast
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import fill
from unittest import mock

from train.trainer.options import make_parser
from transformer_jax.__main__ import COMMANDS, command_parser

ROOT = Path(__file__).parents[2]
WIDTH = 80  # characters of the column of the site on a laptop
INTRODUCTION = """# Commands

Every command with its options, as `--help` prints them. The commands under "Use a model" run
wherever the library is [installed](guides/install.md), and `transformer-jax` is short for
`python -m transformer_jax`. The others run in a clone of the repository.
"""


def commands_page() -> str:
    """Return the page as Markdown."""
    # What argparse reads: the width of the page, and whether to colour the help.
    with mock.patch.dict(os.environ, COLUMNS=str(WIDTH), NO_COLOR="1"):
        helps = {
            "Use a model": {
                f"transformer_jax {name}": command_parser(name).format_help() for name in COMMANDS
            },
            "Train a model": {name: training_help(name) for name in programs("train")},
        }
    parts = [INTRODUCTION]
    for title, found in helps.items():
        parts.append(f"## {title}\n")
        parts += [
            f"### `{name}`\n\n``` {{ .text .help }}\n{narrow(text)}```\n"
            for name, text in found.items()
        ]
    parts.append("## Measure\n\n`python -m bench.NAME --help` lists the options of each.\n")
    parts += [f"- `python -m {name}`: {summary(name)}" for name in programs("bench")]
    return "\n".join(parts) + "\n"


def narrow(text: str) -> str:
    """Return a help with its paragraphs of prose wrapped; a description has its own line breaks."""
    return "\n\n".join(
        part if re.search(r"^ ", part, re.M) else fill(part, WIDTH) + "\n" * part.endswith("\n")
        for part in text.split("\n\n")
    )


def programs(package: str) -> Iterator[str]:
    """Yield the programs of a package by name: its modules that can be run with python -m."""
    for path in sorted([*(ROOT / package).glob("*.py"), *(ROOT / package).glob("*/__main__.py")]):
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8"):
            module = path.parent if path.stem == "__main__" else path.with_suffix("")
            yield f"{package}.{module.name}"


def training_help(name: str) -> str:
    """Return the help of a training program."""
    program = import_module(name).PROGRAM
    return make_parser(program.options, program.module, program.description).format_help()


def summary(name: str) -> str:
    """Return the first paragraph of a program's docstring on one line."""
    path = ROOT / name.replace(".", "/")
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())
