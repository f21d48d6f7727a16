"""Curves of held-out accuracy, and the time at which they reach a bar.

A curve is a list of points {step, seconds, accuracy}. They are read from a log.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.runtime.errors import InputError


def seconds_until(points: Iterable[dict], accuracy: float) -> float | None:
    """Return the training seconds at which `accuracy` was first reached; None if it never was."""
    return next((point["seconds"] for point in points if point["accuracy"] >= accuracy), None)


def read_log(path: Path) -> tuple[dict, list[dict]]:
    """Read a log of `bench.tutorial_torch`; return its settings and its points.

    The run may still be in progress. Raises InputError if the file is not such a log.
    """
    try:
        # Text after the last newline is a line that is still being written.
        head, *lines = map(json.loads, path.read_text(encoding="utf-8").split("\n")[:-1])
        points = [
            {
                "step": line["step"],
                "seconds": line["seconds"],
                "validation_seconds": line["validation_seconds"],
                "accuracy": line["validation_accuracy"],
            }
            for line in lines
            if "validation_accuracy" in line
        ]
        return {name: head[name] for name in HEAD}, points
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a log of bench.tutorial_torch ({error!r})") from error


HEAD = (
    "command data train validation tokenizer attention dtype fused batch length seed torch device "
    "threads"
).split()  # fmt: skip
