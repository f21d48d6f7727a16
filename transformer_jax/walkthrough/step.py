"""The step of a computation, which `walk` prints and worked examples consist of."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Step:
    """An array of a computation, with the equation that it was computed by."""

    name: str  # its name in later equations, such as "scores"
    equation: str  # such as "Q K^T / sqrt(H)"
    array: np.ndarray
    axes: str  # a letter or word for each axis, such as "T S"
    rows: tuple[str, ...] = ()  # labels of the second to last axis, such as tokens
    columns: tuple[str, ...] = ()  # labels of the last axis
    note: str = ""  # one sentence for a student
