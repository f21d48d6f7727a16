"""The files in docs/results, and the text of the numbers that pages quote from them."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

DOCS = Path(__file__).parents[1]


_names_read: set[str] = set()


def results(name: str) -> Any:
    """Return the contents of a results file."""
    _names_read.add(name)
    return _contents(name)


@cache
def _contents(name):
    return json.loads((DOCS / f"results/{name}.json").read_text(encoding="utf-8"))


def read_by(make: Callable[[], Any]) -> set[str]:
    """Return the names of the results files that a table or a text is made from."""
    _names_read.clear()
    for part in make():
        list(part)  # the rows of a table may be made when they are asked for
    return set(_names_read)


def seeds(name: str) -> list[dict]:
    """Return the reports of three seeds."""
    return [results(name), *(results(f"{name}-seed-{seed}") for seed in (1, 2))]


def short(value: float | None) -> str:
    """Format four digits without the zero before the point: .9134."""
    return "" if value is None else f"{value:.4f}"[value < 1 :]


def accuracy(run: dict) -> str:
    return f"{run['test_accuracy']:.2%}"


def interval(run: dict) -> str:
    low, high = run["test_accuracy_interval"]
    return f"{100 * low:.2f} to {high:.2%}"


def fitting_seconds(run: dict) -> float:
    """Return the seconds of all fitted parts: steps, solver for n-grams, vectors."""
    return sum(run.get(part, 0) for part in ("train_seconds", "evidence_seconds", "guess_seconds"))


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}"


def epochs(values: Sequence[float], number: int) -> list[str]:
    """Return a cell for each of `number` epochs; cells after the last are empty."""
    return [*map(short, values), *[""] * (number - len(values))]


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes(seconds)} min"


def mean_accuracy(runs: Sequence[dict]) -> str:
    return f"{mean(run['test_accuracy'] for run in runs):.2%}"


def where(run: dict) -> str:
    machine = run["machine"]
    return (
        f"{machine['cores']} cores of {machine['processor']}, jax {run['versions']['jax']}, "
        f"{run['date']}"
    )


def ngrams(run: dict) -> dict:
    """Return the scores of the n-grams of a run without its network."""
    return run["alone"]["evidence"]


def listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def earlier_run(name: str) -> dict:
    """Return the stored part of the report of an earlier run."""
    return next(run for run in results("earlier-runs") if run["name"] == name)
