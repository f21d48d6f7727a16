"""List the runs of the training programs, the newest last.

    python -m transformer_jax runs              the run folders in runs/
    python -m transformer_jax runs FOLDER       those in another folder

prints the data, recipe and result of each run: its test accuracy with a 95% interval, or the result
of another program with its unit. The seconds are those of training; the date is the day on which
the run ended. A run without a result has the last step that is known of it.
"""

import argparse
import json
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.cli.matrix_text import clip, pad_left, pad_right, width
from transformer_jax.cli.terminal import writable
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.texts import read_text
from transformer_jax.serialization.folder_files import WEIGHTS, is_training

HEADER = ("run", "data", "recipe", "accuracy", "interval", "seconds", "date")
RIGHT = ("accuracy", "interval", "seconds")  # columns of numbers
WIDEST = 40  # of a cell
RESULTS = (  # of a report: the entry, and its format
    ("test_accuracy", "{:.2%}"),
    ("bleu", "{:.2f} BLEU"),
    ("held_out_accuracy", "{:.2%} of masked tokens"),
    ("bits_per_byte", "{:.4f} bits per byte"),
)
SECONDS = ("train_seconds", "evidence_seconds", "guess_seconds")


class Row(NamedTuple):
    """A run of the table."""

    cells: tuple[str, ...]  # in the order of HEADER
    ended: tuple[str, float]  # its date and time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default="runs",
        help="folder of run folders (default: runs)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    folder = Path(options.folder)
    try:
        inside = [folder, *folder.iterdir()]
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{folder} cannot be listed: {reason}; pass the folder that has the run folders"
        ) from None
    rows = [row for path in inside if (row := _row(path)) is not None]
    if not rows:
        print(writable(f"{folder} has no run of a training program"))
        return
    for line in _table([HEADER, *(row.cells for row in sorted(rows, key=lambda row: row.ended))]):
        print(writable(line))


def _row(folder: Path) -> Row | None:
    """Return the row of a run folder, or None if the folder is not one."""
    options, report = (_read(folder / name) for name in ("options.json", "report.json"))
    program, given = options.get("program"), options.get("options")
    if not isinstance(program, str) or not isinstance(given, dict):
        return None
    data = report.get("data")
    source = data.get("name") if isinstance(data, dict) else given.get("data")
    # Programs of one recipe have no such option; their name says what is trained.
    recipe = report.get("recipe") or given.get("recipe", program.rpartition(".")[2])
    changed = _changed(folder)
    result, interval, seconds = _unfinished(folder, report), "", ""
    if result is None:
        result, interval, seconds = _finished(report)
        date = str(report.get("date", ""))
    else:
        date = datetime.fromtimestamp(changed, UTC).date().isoformat()
    name = folder.resolve().name
    cells = (name, source or "", recipe or "", result, interval, seconds, date)
    return Row(tuple(clip(str(cell), WIDEST) for cell in cells), (date, changed))


def _finished(report: dict[str, Any]) -> tuple[str, str, str]:
    """Return the result of a run, its interval and the seconds of training, as text."""
    found = ((report[key], form) for key, form in RESULTS if isinstance(report.get(key), float))
    value, form = next(found, ("", "{}"))
    seconds = [report[key] for key in SECONDS if isinstance(report.get(key), int | float)]
    match report.get("test_accuracy_interval"):
        case [float(low), float(high)]:
            interval = f"{100 * low:.2f} to {high:.2%}"
        case _:
            interval = ""
    return form.format(value), interval, f"{sum(seconds):,.1f}" if seconds else ""


def _unfinished(folder: Path, report: dict[str, Any]) -> str | None:
    """Return where training is or stopped, or None if the run is finished."""
    counts = _metadata(folder / WEIGHTS)
    step, steps = (counts.get(name) for name in ("step", "steps"))
    known = isinstance(step, str) and isinstance(steps, str)
    if report and not known:
        return None
    state = "is training," if is_training(folder) else "stopped"
    if known:
        return f"{state} after step {step} of {steps}"
    return f"{state} after step {_last_step(folder / 'metrics.jsonl')}"


def _metadata(path: Path) -> dict[str, Any]:
    """Read the metadata of a safetensors file, without the library, which takes time to import."""
    try:
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            content = json.loads(file.read(min(size, 2**26)))["__metadata__"]
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError):
        return {}


def _last_step(path: Path) -> int:
    """Return the last step in metrics.jsonl; 0 if there is none."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError):
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, RecursionError):  # half a line of a killed run
            continue
    return 0


def _read(path: Path) -> dict[str, Any]:
    """Read an object from a JSON file; return an empty one if the file has none."""
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _changed(folder: Path) -> float:
    """Return when a run last wrote its results or measurements."""
    times = [0.0]
    for name in ("options.json", "metrics.jsonl", "report.json"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format rows as lines in columns of equal width."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            (pad_left if name in RIGHT else pad_right)(cell, size)
            for name, cell, size in zip(HEADER, row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()
