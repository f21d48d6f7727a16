"""Markdown tables, and the text of the numbers in their cells."""

import math
from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cell, to be read in a
    terminal too.

    A cell is a text, or a number that `cell` writes. Without rows there is no table.
    """
    rows = [[cell(value) for value in row] for row in rows]
    if not rows:
        return []
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return [
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in (list(header), rule, *rows)
    ]


def cell(value: Any) -> str:
    """Return a text as it is, a float with three significant digits, yes or no, and "" for None."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return digits(value) if isinstance(value, float | None) else str(value)


def digits(value: float | None) -> str:
    """Return three significant digits; "never" for an infinite value."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "never"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def milliseconds(seconds: float | None) -> str:
    """Return the milliseconds, or a dash where nothing was measured."""
    return "-" if seconds is None else digits(1e3 * seconds)


def quotient(ratio: dict | None) -> str:
    """Return `0.61 [0.58, 0.66]`, the median and the quartiles, or a dash where nothing was
    measured.
    """
    if ratio is None:
        return "-"
    low, high = (digits(end) if end is not None else "?" for end in ratio["quartiles"])
    return f"{digits(ratio['median'])} [{low}, {high}]"


def described(machine: dict) -> list[str]:
    """Return two lines: processor and devices; versions, threads and settings."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    threads = ", ".join(f"{name} {number}" for name, number in machine["threads"].items())
    settings = " ".join(f"{name}={value}" for name, value in machine["settings"].items())
    return [
        f"{machine['processor']}, {machine['cores']} cores; {', '.join(machine['devices'])};",
        f"Python {machine['python']}, {versions}; threads: {threads}"
        + (f"; {settings}." if settings else "."),
    ]


def origin(runs: Sequence[dict]) -> list[str]:
    """Return one line a run, and the machine of the last."""
    runs = [run for run in runs if "machine" in run]
    return [
        *(
            f"Written by `{run['command']}`, {run['date']}, {run['seconds']} s, seed {run['seed']}."
            for run in runs
        ),
        *(described(runs[-1]["machine"]) if runs else []),
    ]
