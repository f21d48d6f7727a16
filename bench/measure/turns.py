"""Interleaved calls (A B C, B C A, ...), so that a slowdown of the machine affects all of them."""

import math
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

from bench.measure.harness import clock


def take_turns(
    calls: dict[str, Callable[[], Any]], seconds: float, *, least: int = 5, most: int = 201
) -> dict[str, list[float]]:
    """Time interleaved calls; return the seconds of every call in every round, by name.

    Rounds are repeated until `seconds` per call have passed, at least `least` and at most `most`
    times.
    """
    found = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    for done in range(most):
        if done >= least and time.perf_counter() > end:
            break
        # Each round begins with the next call, so that no call always follows the same one.
        order = list(calls)[done % len(calls) :] + list(calls)[: done % len(calls)]
        for name in order:
            found[name].append(clock(calls[name])[0])
    return found


def summary(times: dict[str, list[float]], of: str) -> dict[str, Any]:
    """Compute the median seconds of each call, and the ratios of `of` to each other one.

    A ratio divides times of the same round; its median and quartiles are returned.
    """
    return {
        "rounds": len(times[of]),
        "seconds": {name: median(seconds) for name, seconds in times.items()},
        "ratios": {
            name: ratio(times[of], seconds) for name, seconds in times.items() if name != of
        },
    }


def ratio(one: list[float], other: list[float]) -> dict[str, Any]:
    quotients = [a / b for a, b in zip(one, other, strict=True)]
    ends = quantiles(quotients, n=4)[::2] if len(quotients) > 1 else [math.nan] * 2
    return {"median": median(quotients), "quartiles": ends}
