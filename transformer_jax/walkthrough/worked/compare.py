"""Comparison of the numbers that a document prints with the numbers computed here."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.walkthrough.step import Step
from transformer_jax.walkthrough.worked.examples import EXAMPLES
from transformer_jax.walkthrough.worked.registry import steps

# Printed values that no step computes: settings, results of days of training, formulas, and the
# inputs of `kid_smiles`.
NOT_COMPUTED = {
    "epochs", "batch", "lr", "test_accuracy", "formula", "training_flops", "weights_head1", "final",
    "final_row0",
}  # fmt: skip


class Compared(NamedTuple):
    """A printed array and the computed one. `wrong` marks the printed numbers that are wrong."""

    printed: Any  # as in the JSON
    computed: np.ndarray
    wrong: np.ndarray
    step: Step  # that computed it


def compare(name: str) -> dict[str, Compared]:
    """Compare every printed array of an example with the computed one, by name.

    A printed number is right if it is within the example's tolerance or correctly rounded to its
    last printed digit. Without a tolerance, it is right within one unit of its last digit, so that
    truncated digits are not wrong.
    """
    example, told = EXAMPLES[name], steps(name)
    tolerance = example["tolerance"].get("printed")
    compared = {}
    for key, printed in flat(example["printed"]).items():
        if key in NOT_COMPUTED:
            continue
        step, computed = find(told, key)
        decimals = example.get("decimals", {}).get(key)  # given if trailing zeros are printed
        if is_labels(printed):
            wrong = np.array(step.columns[: len(printed)]) != np.array(printed)
        else:
            value = _each(as_number, printed)
            place = _each(partial(unit, decimals=decimals), printed)
            if isinstance(tolerance, dict):
                limit = tolerance["rtol"] * np.abs(value)
            else:
                limit = place if tolerance is None else np.maximum(tolerance, place / 2)
            wrong = np.abs(computed - value) > limit * (1 + 1e-6)
        compared[key] = Compared(printed, computed, wrong, step)
    return compared


def beside_the_document(id: str) -> list[str]:
    """Format the printed numbers, with a ! after wrong ones, and the correct numbers, as lines."""
    example, told = EXAMPLES[id], compare(id)
    wrong = {key: compared.wrong for key, compared in told.items()}
    marked = any(array.any() for array in wrong.values())
    after = [f"The document prints{' (! = wrong)' if marked else ''}:"]
    after += [
        f"{key}: {_marked(printed, wrong.get(key, False))}"
        for key, printed in flat(example["printed"]).items()
    ]
    if example["agrees"]:
        after.append("All numbers agree.")
    else:
        after.append("It should print:")
        after += [f"{key}: {_marked(value)}" for key, value in flat(example["recomputed"]).items()]
    if example.get("note"):
        after.append(f"Note: {example['note']}")
    return after


def _marked(tree: Any, wrong: Any = False) -> str:
    """Format nested lists with a ! after each wrong number."""
    wrong = np.asarray(wrong)
    if isinstance(tree, list):
        wrongs = np.broadcast_to(wrong, (len(tree), *wrong.shape[1:]))
        return f"[{', '.join(map(_marked, tree, wrongs))}]"
    return f"{tree}{'!' if wrong.any() else ''}"


def flat(numbers: dict[str, Any]) -> dict[str, Any]:
    """Flatten nested dictionaries by one level."""
    entries = {}
    for key, value in numbers.items():
        entries |= value if isinstance(value, dict) else {key: value}
    return entries


def find(told: list[Step], name: str) -> tuple[Step, np.ndarray]:
    """Find a step and its array by the name of a printed array.

    The name is that of a step, of a row of a step (`Q_row0`), or the label of a column or row.
    Raises ValueError if there is none.
    """
    row = re.fullmatch(r"(.+)_row(\d+)", name)
    for step in told:
        if step.name == name:
            return step, step.array
        if row and step.name == row[1]:
            return step, step.array[int(row[2])]
    for step in told:
        if name in step.columns:
            return step, step.array[..., step.columns.index(name)]
        if name in step.rows:
            return step, step.array[step.rows.index(name)]
    raise ValueError(f"no step, column or row is called {name!r}")


def is_labels(printed: Any) -> bool:
    """Return whether a printed value is a list of tokens rather than of numbers."""
    return isinstance(printed, list) and all(
        isinstance(x, str) and not re.match(r"-?[0-9]|-?inf", x) for x in printed
    )


def as_number(printed: str | int | float) -> float:
    """Convert a printed number to a float: 0.5, "-inf", "2pi*2.15" or "110M"."""
    if not isinstance(printed, str):
        return float(printed)
    if printed.startswith("2pi*"):
        return 2 * math.pi * float(printed.removeprefix("2pi*"))
    scale = {"M": 1e6, "B": 1e9}.get(printed[-1])
    return float(printed) if scale is None else scale * float(printed[:-1])


def unit(printed: str | int | float, decimals: int | None = None) -> float:
    """Return one unit in the last printed digit, or 0 for a whole number, which is exact."""
    if isinstance(printed, str):
        return 2 * math.pi * unit(float(printed[4:])) if printed.startswith("2pi*") else 0.0
    if isinstance(printed, int):
        return 0.0
    text = repr(printed)
    return 10.0 ** -(len(text.partition(".")[2]) if decimals is None else decimals)


def _each(function: Callable, printed: Any) -> np.ndarray:
    # As objects, because NumPy would convert [12, "110M"] or 0.5 and lose how it was printed.
    return np.vectorize(function, otypes=[float])(np.array(printed, dtype=object))
