"""A computation told step by step: what `walk` prints and the worked examples are made of."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Step:
    """One array of a computation, and how it came about."""

    name: str  # how later equations call it: "scores"
    equation: str  # "Q K^T / sqrt(H)"
    array: np.ndarray
    axes: str  # a letter or word an axis: "T S"
    rows: tuple[str, ...] = ()  # labels of the second to last axis, tokens for instance
    columns: tuple[str, ...] = ()  # labels of the last axis
    note: str = ""  # one sentence for a student
