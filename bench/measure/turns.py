"""Calls in turns, A B C, B C A, ...: what slows the machine for a while slows them all."""

import math
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

from bench.measure.harness import clock


def take_turns(
    calls: dict[str, Callable[[], Any]], seconds: float, *, least: int = 5, most: int = 201
) -> dict[str, list[float]]:
    """Seconds of every call in every round; rounds until `seconds` a call have gone by, `least` of
    them anyhow.
    """
    found = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    for done in range(most):
        if done >= least and time.perf_counter() > end:
            break
        # Each begins a round in its turn: nobody always follows the same one.
        order = list(calls)[done % len(calls) :] + list(calls)[: done % len(calls)]
        for name in order:
            found[name].append(clock(calls[name])[0])
    return found


def summary(times: dict[str, list[float]], of: str) -> dict[str, Any]:
    """Median seconds of each, and the time of `of` over that of each other within a round: median
    and quartiles.
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
