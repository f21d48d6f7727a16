"""Points of a curve, {step, seconds, accuracy} on what is held out: the log they come from, and
when they passed a bar.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.runtime.errors import InputError


def seconds_until(points: Iterable[dict], accuracy: float) -> float | None:
    """Seconds of training until the accuracy was first so high; None where it never was."""
    return next((point["seconds"] for point in points if point["accuracy"] >= accuracy), None)


def read_log(path: Path) -> tuple[dict, list[dict]]:
    """What ran and its points, from a log of `bench.tutorial_torch`; it may be of a run that goes
    on.
    """
    try:
        # A line is whole once its end is there: what stands behind the last end is being written.
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
