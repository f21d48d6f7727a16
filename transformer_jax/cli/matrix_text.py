"""Arrays as text: matrices with row and column labels that fit the width of a terminal."""

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from transformer_jax.walkthrough.step import Step

LABEL, CELL, GAP = 12, 9, "…"  # a cell is wide enough for -1.2e-05 and a space
ROWS, COLUMNS = 12, 9  # shown at most; a larger matrix shows its first and last ones


def show_step(step: Step) -> Iterator[str]:
    """Format a step as lines of text: name, equation and axes; the matrix; the note."""
    shape = " x ".join(map(str, step.array.shape)) or "a number"
    yield (
        f"{step.name} = {step.equation}   [{step.axes}]  {shape}"
        if step.axes
        else (f"{step.name} = {step.equation}   {shape}")
    )
    for title, matrix in matrices(step):
        if title:
            yield f"  {title}"
        yield from (f"  {line}" for line in show_matrix(matrix, step.rows, step.columns))
        if note := elision(matrix.shape, ROWS, COLUMNS):
            yield f"  ({note})"
    if step.note:
        yield from (f"  {line}" for line in wrap(step.note, 96))


def matrices(step: Step) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the array of a step as titled matrices, one for each index of its leading axes.

    The title names the index by the letters of the axes, such as "N = 0". An array of at most two
    axes is one matrix without a title.
    """
    array = np.asarray(step.array)
    if array.ndim <= 2:
        yield "", np.atleast_2d(array)
        return
    letters = step.axes.split()
    for index in np.ndindex(array.shape[:-2]):
        named = zip(letters, index, strict=False)
        yield ", ".join(f"{letter} = {i}" for letter, i in named), array[index]


def show_matrix(
    matrix: np.ndarray, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> Iterator[str]:
    """Format a matrix as lines of text. `…` marks rows and columns that are left out."""
    down, across = shown(matrix.shape[0], ROWS), shown(matrix.shape[1], COLUMNS)
    labels = [label(rows, i) for i in down]
    left = max((width(name) for name in labels), default=0)
    if columns:
        names = [GAP if j is None else clip(label(columns, j), CELL - 1) for j in across]
        yield " " * left + "".join(pad_left(name, CELL) for name in names)
    for i, name in zip(down, labels, strict=True):
        cells = (GAP if i is None or j is None else number(matrix[i, j]) for j in across)
        yield pad_right(name, left) + "".join(pad_left(cell, CELL) for cell in cells)


def shown(size: int, most: int) -> list[int | None]:
    """Return the indices that are shown of an axis of length `size`.

    If it is longer than `most`, they are the first and last ones, with None between them.
    """
    if size <= most:
        return list(range(size))
    half = most // 2
    return [*range(half), None, *range(size - half, size)]


def elision(shape: tuple[int, ...], rows: int, columns: int) -> str:
    """Describe which rows and columns of a large matrix are shown; return "" if all are."""
    parts = [
        f"the first and last {most // 2} of {size} {name}"
        for size, most, name in zip(shape, (rows, columns), ("rows", "columns"), strict=True)
        if size > most
    ]
    return f"shown: {' and '.join(parts)}" if parts else ""


def label(labels: Sequence[str], i: int | None) -> str:
    if i is None:
        return GAP if labels else ""
    return clip(labels[i], LABEL) if i < len(labels) else ""


def number(value) -> str:
    """Format a number in at most 8 columns.

    Integers are printed as they are, booleans as 0 or 1. Other numbers have up to three decimals,
    and an exponent with two or three digits if they are very small or large.
    """
    if isinstance(value, bool | np.bool_):
        return "1" if value else "0"
    if isinstance(value, int | np.integer):
        return str(value)
    value = float(value)
    if not np.isfinite(value):
        return {np.inf: "∞", -np.inf: "-∞"}.get(value, "nan")
    size = abs(value)
    decimals = 3 if size < 1e3 else 1 if size < 1e5 else 0
    plain = size == 0 or 9.995e-4 <= size < 1e7
    text = f"{value:.{decimals}f}" if plain else f"{value:.{2 if value > 0 else 1}e}"
    return "0.000" if text == "-0.000" else text


def width(text: str) -> int:
    """Count the terminal columns of a text: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def clip(text: str, most: int) -> str:
    """Clip a text to one line of at most `most` terminal columns."""
    text = "".join(c if c.isprintable() else " " for c in text)
    if width(text) <= most:
        return text
    ends = list(accumulate(map(width, text)))  # in linear time: a word may have 100,000 letters
    return text[: bisect_right(ends, most - 1)] + GAP


def pad_left(text: str, size: int) -> str:
    return " " * (size - width(text)) + text


def pad_right(text: str, size: int) -> str:
    return text + " " * (size - width(text))


def wrap(text: str, most: int) -> Iterator[str]:
    """Wrap a text at spaces into lines of at most `most` columns. Longer words stay whole."""
    line = ""
    for word in text.split():
        if line and width(line) + 1 + width(word) > most:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield line
