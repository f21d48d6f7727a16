"""The JSON file of a benchmark program, and the option that writes its page anew from that file."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from transformer_jax.runtime.errors import InputError, one_line
from transformer_jax.runtime.files import write_text


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add --docs and --page, which every program that writes a page has."""
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where to write (docs)")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing: the page, from the numbers"
    )


def read_results(path: Path, program: str, names: Iterable[str]) -> dict:
    """Return what a program wrote.

    Raises InputError where there is no such file, or it has none of these names.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}; measure first") from None
    except ValueError as problem:
        raise InputError(f"{path}: {one_line(problem)}") from None
    if not isinstance(results, dict) or set(names) - set(results):
        raise InputError(f"{path} is not what {program} wrote")
    return results


def write_results(path: Path, results: dict, indent: int | None = 1) -> None:
    """Write what was measured, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(results, indent=indent) + "\n")


def write_page(path: Path, lines: Iterable[str]) -> Path:
    """Write the lines of a page; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join(lines) + "\n")
    return path


def rewrite(
    path: Path, program: str, names: Iterable[str], write: Callable[[dict], Path | list[Path]]
) -> int:
    """Do what --page asks for: `write` the page from the results in a file. Return the exit code."""
    try:
        written = write(read_results(path, program, names))
    except InputError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    for each in written if isinstance(written, list) else [written]:
        print(each)
    return 0
