"""Figures in one style, in which an implementation has one colour everywhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bench.measure.records import Record
from bench.pages.analysis import names, power_law, series

matplotlib.use("agg")
import matplotlib.pyplot as plt

COLOURS = {
    "transformer_jax": "#0072b2",
    "reference": "#7b4ab5",
    "blockwise": "#332288",
    "Python loops": "#000000",
    "NumPy, loop over queries": "#8c564b",
    "NumPy": "#e69f00",
    "eager": "#56b4e9",
    "jax.nn": "#009e73",
    "flax.nnx": "#cc79a7",
    "PyTorch": "#d55e00",
    "PyTorch, written out": "#e69f00",
    "jax.nn, cuDNN": "#4d9221",
    "head axis": "#0072b2",
    "split weights": "#7b4ab5",
    "loop over heads": "#777777",
    "self-attention": "#0072b2",
    "LSTM": "#b2182b",
    "convolution": "#4d9221",
    "dilated stack": "#a6761d",
    "attention": "#0072b2",
    "projections": "#b2182b",
    "all but attention": "#a6761d",
    "whole layer": "#333333",
}
STYLE = {
    "figure.dpi": 100,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "svg.hashsalt": "benchmarks",  # the same numbers give the same file
}


@dataclass(frozen=True)
class Panel:
    """A line for each implementation of a subject against the length, both axes logarithmic."""

    title: str
    ylabel: str
    records: Sequence[Record]
    subject: str
    value: Callable[[Record], float | None]
    unit: float = 1.0  # factor of the values
    slopes: bool = True  # show the exponent of the fitted law at the end of each line
    marks: Sequence[tuple[float | None, str]] = ()  # lengths of vertical lines, and their colours


def plot(panels: Sequence[Sequence[Panel]], height: float = 5.0) -> Figure:
    """Draw a figure with rows of panels."""
    size = (6.2 * len(panels[0]), height * len(panels))
    with subplots(len(panels), len(panels[0]), size, squeeze=False) as (figure, grid):
        for row, axes in zip(panels, grid, strict=True):
            for panel, axis in zip(row, axes, strict=True):
                _draw(panel, axis)
    return figure


@contextmanager
def subplots(rows: int, columns: int, size: tuple[float, float], **options) -> Iterator:
    """Yield a figure and its axes, to be drawn in the common style."""
    with plt.rc_context(STYLE):
        yield plt.subplots(rows, columns, figsize=size, layout="constrained", **options)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure; the same numbers give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    return path


def _draw(panel: Panel, axis) -> None:
    columns = {
        name: series(panel.records, panel.subject, name, panel.value)
        for name in names(panel.records, panel.subject)
    }
    columns = {name: values for name, values in columns.items() if values}
    longest = max((max(values) for values in columns.values()), default=0)
    ends, drawn = [], []
    for name, values in columns.items():
        colour = COLOURS.get(name, "#555555")
        lengths, y = list(values), [panel.unit * value for value in values.values()]
        under = sum(_coincide(values, other) for other in drawn)
        drawn.append(values)
        dashes = "-" if not under else (0, (3, 3 * under))
        axis.plot(lengths, y, marker="o", linestyle=dashes, color=colour, markersize=4)
        law = power_law(values) if panel.slopes else None
        text = f"{name}  T^{law.exponent:.2f}" if law else name
        if lengths[-1] == longest:
            ends.append((lengths[-1], y[-1], text, colour))
        else:
            axis.annotate(
                text, (lengths[-1], y[-1]), xytext=(-6, 4), textcoords="offset points",
                ha="right", color=colour, fontsize=9,
            )  # fmt: skip
    axis.set(yscale="log", xlabel="T")
    axis.set_xscale("log", base=2)
    plain(axis.xaxis)
    axis.margins(x=0.03, y=0.08)
    write_ends(axis, ends)
    axis.set_title(panel.title, loc="left", fontsize=11)
    axis.set_ylabel(panel.ylabel)
    for row, (T, colour) in enumerate(panel.marks):
        if T is not None:
            _mark(axis, T, colour, row)


def _coincide(one: dict[int, float], other: dict[int, float]) -> bool:
    """Return whether one line would hide the other; it is then dashed."""
    both = one.keys() & other.keys()
    return bool(both) and all(abs(one[T] / other[T] - 1) < 0.1 for T in both)


def write_ends(axis, ends: list[tuple]) -> None:
    """Write the names in a column right of the axes, in the order of the line ends.

    Names that would touch are moved apart.
    """
    if not ends:
        return
    ends = sorted(ends, key=lambda end: end[1])
    bottom, top = np.log(axis.get_ylim())
    places = [(np.log(y) - bottom) / (top - bottom) for _, y, _, _ in ends]
    gap = 0.052
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    over = max(0.0, places[-1] - 1)
    for i in reversed(range(len(places))):
        limit = 1 if i == len(places) - 1 else places[i + 1] - gap
        places[i] = min(places[i], limit) if over else places[i]
    for (x, y, text, colour), place in zip(ends, places, strict=True):
        axis.annotate(
            text, (x, y), xytext=(1.04, place), textcoords="axes fraction", va="center",
            color=colour, fontsize=9, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.5},
        )  # fmt: skip


def _mark(axis, T: float, colour: str, row: int) -> None:
    axis.axvline(T, color=colour, linestyle=":", linewidth=1.2)
    axis.annotate(
        f"T = {T:.0f}", (T, 0.02 + 0.05 * row), xycoords=("data", "axes fraction"), xytext=(3, 0),
        textcoords="offset points", color=colour, fontsize=9,
    )  # fmt: skip


def plain(axis) -> None:
    """Show numbers instead of powers of ten."""
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
