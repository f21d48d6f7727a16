"""Markdown of the pages: paragraphs, tables, folded blocks, and the text of numbers in cells."""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

WIDTH = 100  # columns of prose
LONGEST_TABLE = 25  # rows; a longer table is folded
# Lines that are not prose: headings, tables, HTML, images.
BLOCK = re.compile(r"#|\||<|!\[")
# Spaces at which a line is not broken: before what would begin a list or a quotation at the start
# of a line, and in short code.
BEFORE_MARKER = re.compile(r" (?=(?:[-+*#>|]|\d+[.)]) )")
SHORT_CODE = re.compile(r"`[^`]{,60}`")


def written(lines: Iterable[str]) -> str:
    """Return the text of a page: prose is wrapped at WIDTH columns, long tables are folded.

    Headings, tables, images, HTML and code keep their lines. A list item begins with "- ".
    """
    found, prose, rows, is_code = [], [], [], False

    def end_block() -> None:
        found.extend(_wrapped(prose))
        found.extend(folded(f"A table of {len(rows) - 2} rows", rows) if _is_long(rows) else rows)
        prose.clear()
        rows.clear()

    for line in "\n".join(lines).strip().split("\n"):
        is_fence = line.startswith("```")
        if line.startswith("|") and not is_code:
            rows.append(line)
        elif is_code or is_fence or not line or BLOCK.match(line):
            end_block()
            found.append(line)
        else:
            if rows or line.startswith("- "):
                end_block()
            prose.append(line)
        is_code ^= is_fence
    end_block()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(found)) + "\n"


def _is_long(rows: Sequence[str]) -> bool:
    return len(rows) - 2 > LONGEST_TABLE


def _wrapped(lines: Sequence[str]) -> list[str]:
    text = " ".join(line.strip() for line in lines)
    unbroken = BEFORE_MARKER.sub("\0", text)
    unbroken = SHORT_CODE.sub(lambda code: code[0].replace(" ", "\0"), unbroken)
    wrapped = textwrap.wrap(
        unbroken,
        WIDTH,
        subsequent_indent="  " if text.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in wrapped]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Return a block that is folded until a reader opens it."""
    return ["<details markdown>", f"<summary>{summary}</summary>", "", *lines, "", "</details>"]


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table, padded so that it is readable in a terminal too.

    A cell is a text, or a number that `cell` formats. Without rows there is no table.
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
    """Format a cell: three digits of a float, yes or no for a bool, "" for None, else the text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return digits(value) if isinstance(value, float | None) else str(value)


def digits(value: float | None) -> str:
    """Format three significant digits; None is "", an infinite value is "never"."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "never"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def milliseconds(seconds: float | None) -> str:
    """Format seconds as milliseconds; a dash if nothing was measured."""
    return "-" if seconds is None else digits(1e3 * seconds)


def quotient(ratio: dict | None) -> str:
    """Format a ratio as `0.61 [0.58, 0.66]`, the median and the quartiles.

    A dash if nothing was measured.
    """
    if ratio is None:
        return "-"
    low, high = (digits(end) if end is not None else "?" for end in ratio["quartiles"])
    return f"{digits(ratio['median'])} [{low}, {high}]"


def described(machine: dict) -> list[str]:
    """Return two list items: processor and devices; versions, threads and settings."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    threads = ", ".join(f"{name} {number}" for name, number in machine["threads"].items())
    settings = " ".join(f"{name}={value}" for name, value in machine["settings"].items())
    # Earlier records do not say whether the kernels were built.
    without = "" if machine.get("has_cpu_kernels", True) else "; without the kernels in C++"
    devices = f"{machine['cores']} cores; {', '.join(machine['devices'])}{without}"
    return [
        f"- {machine['processor']}, {devices}",
        f"- Python {machine['python']}, {versions}; threads: {threads}"
        + (f"; {settings}." if settings else "."),
    ]


def origin(file: str, runs: Sequence[dict]) -> list[str]:
    """Return the last block of a page: the command of each run, the machine, the results file."""
    runs = [run for run in runs if "machine" in run]
    commands = [
        f"{run['command']}  # {run['date']}, {run['seconds']} s, seed {run['seed']}" for run in runs
    ]
    return how_measured(file, commands, described(runs[-1]["machine"]) if runs else [])


def how_measured(file: str, commands: Sequence[str], items: Iterable[str] = ()) -> list[str]:
    """Return a folded block of commands, list items and the name of the results file."""
    shown = ["```sh", *commands, "```", "", *items, f"- All numbers: `../results/{file}`"]
    return ["", *folded("How this was measured", shown)]
