"""The figures of docs/benchmarks/benchmarks.md. An implementation has one colour in all of them."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np

from bench.measure.records import Record
from bench.pages.analysis import Crossing, cross, names, power_law, seconds, series, timed
from bench.pages.tables import digits

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


def draw(records: list[Record], folder: Path) -> list[Path]:
    """Every figure that the records are enough for, as benchmarks-NAME.svg in `folder`."""
    figures = {
        "attention": time_of_attention,
        "ratios": ratios,
        "memory": memory,
        "parts": parts,
        "sequences": sequences,
    }
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        for name, make in figures.items():
            figure = make(records)
            if figure is None:
                continue
            written.append(save(figure, folder / f"benchmarks-{name}.svg"))
    return written


def save(figure, path: Path) -> Path:
    """The same numbers give the same file."""
    with plt.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    return path


def time_of_attention(records: list[Record]):
    if not names(timed(records), "attention"):
        return None
    subjects = [s for s in ("attention", "attention with its gradient") if names(timed(records), s)]
    figure, axes = plt.subplots(
        1, len(subjects), figsize=(6.2 * len(subjects), 5), squeeze=False, layout="constrained"
    )
    for axis, subject in zip(axes[0], subjects, strict=True):
        lines(axis, records, subject, seconds, 1e3)
        label(axis, subject, "milliseconds")
    return figure


def ratios(records: list[Record]):
    """How many times the time of transformer_jax, measured in turns."""
    chosen = [r for r in records if r.subject == "attention" and r.ratio is not None]
    if not chosen:
        return None
    found = names(chosen, "attention")
    markers = dict(zip(sorted({r.length for r in chosen}), "osD^vPX*", strict=False))
    figure, axis = plt.subplots(figsize=(7.5, 1.3 + 0.6 * len(found)), layout="constrained")
    axis.axvline(1, color=COLOURS["transformer_jax"])
    for r in chosen:
        of_this = [other for other in chosen if other.implementation == r.implementation]
        shift = 0.34 * (of_this.index(r) - (len(of_this) - 1) / 2)
        y = len(found) - found.index(r.implementation) - shift
        low, high = r.ratio_quartiles
        axis.errorbar(
            r.ratio, y, xerr=[[r.ratio - low], [high - r.ratio]], marker=markers[r.length],
            color=COLOURS[r.implementation], markersize=6,
        )  # fmt: skip
        axis.annotate(
            digits(r.ratio), (high, y), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    for T, marker in markers.items():
        axis.plot([], [], marker, color="#555555", label=f"T = {T}")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    axis.set(
        xscale="log", yticks=range(len(found), 0, -1), yticklabels=found,
        xlabel="times as long as transformer_jax, called in turns (median, quartiles)",
    )  # fmt: skip
    plain(axis.xaxis)
    axis.margins(x=0.12)
    return figure


def memory(records: list[Record]):
    subject = "resident memory of attention"
    planned = [r for r in records if r.subject == "attention" and r.how == "compiled"]
    if not planned and not names(records, subject):
        return None
    figure, axes = plt.subplots(1, 2, figsize=(12.4, 5), layout="constrained")
    lines(axes[0], planned, "attention", lambda r: r.peak_bytes, 2**-20)
    label(axes[0], "planned by the compiler", "MiB beside the arguments")
    lines(axes[1], records, subject, lambda r: r.resident_bytes, 2**-20)
    label(axes[1], "taken by the process", "MiB of resident memory")
    return figure


def by_kind(records: list[Record], kinds: list[str]):
    """Time against length: a row for each kind of mask, without and with the gradient."""
    with plt.rc_context(STYLE):
        kinds = [kind for kind in kinds if any(r.subject.startswith(kind) for r in records)]
        figure, axes = plt.subplots(
            len(kinds), 2, figsize=(12.4, 4.2 * len(kinds)), squeeze=False, layout="constrained"
        )
        for row, kind in zip(axes, kinds, strict=True):
            for axis, subject in zip(row, (kind, f"{kind}, with its gradient"), strict=True):
                lines(axis, records, subject, seconds, 1e3)
                label(axis, subject, "milliseconds")
    return figure


def resident(records: list[Record]):
    """Memory that the process took against length, a panel for each subject."""
    with plt.rc_context(STYLE):
        subjects = list(dict.fromkeys(r.subject for r in records))
        figure, axes = plt.subplots(
            1, len(subjects), figsize=(6.2 * len(subjects), 5), squeeze=False, layout="constrained"
        )
        for axis, subject in zip(axes[0], subjects, strict=True):
            lines(axis, records, subject, lambda r: r.resident_bytes, 2**-20, slopes=False)
            label(axis, subject, "MiB of resident memory")
    return figure


def parts(records: list[Record]):
    """Where attention overtakes the projections, and all the rest of the layer."""
    subject = "parts of an encoder layer"
    if not names(records, subject):
        return None
    figure, axes = plt.subplots(1, 2, figsize=(12.4, 5), layout="constrained")
    lines(axes[0], records, subject, lambda r: r.flops, 1e-9)
    label(axes[0], "counted", "GFLOP")
    lines(axes[1], records, subject, seconds, 1e3)
    label(axes[1], "by the clock", "milliseconds")
    for row, other in enumerate(("projections", "all but attention")):
        found = cross(records, subject, "attention", other)
        if found:
            mark(axes[0], found, found.counted, COLOURS[other], row)
            mark(axes[1], found, found.clock, COLOURS[other], row)
    return figure


def sequences(records: list[Record]):
    subject = "layers that read a sequence"
    if not names(records, subject):
        return None
    figure, axes = plt.subplots(1, 2, figsize=(12.4, 5), layout="constrained")
    lines(axes[0], records, subject, seconds, 1e3)
    label(axes[0], "one layer of each", "milliseconds")
    for row, other in enumerate(("convolution", "dilated stack", "LSTM")):
        found = cross(records, subject, "self-attention", other)
        if found:
            mark(axes[0], found, found.clock, COLOURS[other], row)
    lines(axes[1], records, subject, lambda r: r.path_length, 1, slopes=False)
    label(axes[1], "path from the first token to the last", "layers or steps")
    return figure


def lines(
    axis, records: list[Record], subject: str, of: Callable, unit: float, slopes: bool = True
) -> None:
    """A line an implementation, with its name and the exponent of its law at its end."""
    columns = {name: series(records, subject, name, of) for name in names(records, subject)}
    columns = {name: values for name, values in columns.items() if values}
    longest = max((max(values) for values in columns.values()), default=0)
    ends, drawn = [], []
    for name, values in columns.items():
        colour = COLOURS.get(name, "#555555")
        lengths, y = list(values), [unit * value for value in values.values()]
        under = sum(coincide(values, other) for other in drawn)
        drawn.append(values)
        dashes = "-" if not under else (0, (3, 3 * under))
        axis.plot(lengths, y, marker="o", linestyle=dashes, color=colour, markersize=4)
        law = power_law(values) if slopes else None
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


def coincide(one: dict[int, float], other: dict[int, float]) -> bool:
    """Whether one line would hide the other: then it is dashed."""
    both = one.keys() & other.keys()
    return bool(both) and all(abs(one[T] / other[T] - 1) < 0.1 for T in both)


def write_ends(axis, ends: list[tuple]) -> None:
    """The names in a column right of the axes, in the order of the line ends, pushed apart where
    they would touch.
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


def mark(axis, found: Crossing, T: float | None, colour: str, row: int) -> None:
    """A vertical line where attention overtakes; none where it always or never takes longer."""
    if T is not None and found.shortest < T:
        axis.axvline(T, color=colour, linestyle=":", linewidth=1.2)
        axis.annotate(
            f"T = {T:.0f}", (T, 0.02 + 0.05 * row), xycoords=("data", "axes fraction"), xytext=(3, 0),
            textcoords="offset points", color=colour, fontsize=9,
        )  # fmt: skip


def label(axis, title: str, y: str) -> None:
    axis.set_title(title, loc="left", fontsize=11)
    axis.set_ylabel(y)


def plain(axis) -> None:
    """Numbers instead of powers."""
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
