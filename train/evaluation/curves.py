"""A plot of a training run: the loss by step, and the validation score by epoch."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    Formatter,
    MaxNLocator,
    PercentFormatter,
    ScalarFormatter,
    StrMethodFormatter,
)

from transformer_jax.runtime.files import write


class Score(NamedTuple):
    """A validation metric that can be plotted, and its format."""

    key: str
    title: str
    formatter: Callable[[], Formatter]
    text: str
    higher_is_better: bool


SCORES = (
    Score(
        "validation_accuracy", "Validation accuracy", partial(PercentFormatter, 1.0), "{:.2%}", True
    ),
    Score("validation_bits_per_byte", "Held-out bits per byte", ScalarFormatter, "{:.4f}", False),
    Score("validation_bleu", "Validation BLEU", ScalarFormatter, "{:.2f}", True),
)
RAW, LINE, MARK, INK = "#9fc2e8", "#1f5fa8", "#d1495b", "#444444"
GRID, FRAME = "#e6e6e6", "#555555"


def draw_curves(metrics_jsonl: Path, png: Path) -> None:
    """Plot `metrics.jsonl` to `png`: the loss on the left, the validation score on the right.

    A run that was killed and resumed writes some steps twice and may leave half a line: the last
    line of a step counts, and lines that are not JSON objects are skipped.
    """
    figure = Figure(figsize=(11, 4.2), dpi=144, layout="constrained")  # not pyplot: no global state
    panels = figure.subplots(1, 2, gridspec_kw={"wspace": 0.06})
    for (_, draw), axes in zip(curves(metrics_jsonl), panels, strict=True):
        draw(axes)
        style(axes)
    write(png, lambda beside: figure.savefig(beside, format="png"))


def curves(metrics_jsonl: Path) -> list[tuple[str, Callable[[Axes], None]]]:
    """Return the title of each plot of `metrics.jsonl`, and the function that draws it."""
    records = _read(Path(metrics_jsonl))
    score = next((s for s in SCORES if len(_series(records, s.key))), SCORES[0])
    loss, validation = (_series(records, key) for key in ("loss", "validation_loss"))
    evaluations = _series(records, score.key)
    return [
        ("Loss by step", lambda axes: _draw_loss(axes, loss, validation)),
        (f"{score.title} by epoch", lambda axes: _draw_score(axes, score, evaluations)),
    ]


def style(axes: Axes) -> None:
    """Set the grid and the colours that all plots share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FRAME)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Return the centred moving average over `window` values, over fewer at the ends."""
    kernel = np.ones(min(window, len(values)))
    count = np.convolve(np.ones(len(values)), kernel, mode="same")
    return np.convolve(values, kernel, mode="same") / count


def _read(path: Path) -> list[dict[str, Any]]:
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and "step" in record:
            records.append(record)
    return records


def _series(records: list[dict[str, Any]], key: str) -> np.ndarray:
    """Return [n, 3] of (step, epoch, value) of the records with a number under `key`, by step."""
    rows = {r["step"]: r for r in records if r.get(key) is not None}
    points = [(step, rows[step].get("epoch") or 0, rows[step][key]) for step in sorted(rows)]
    points = np.array(points, dtype=float).reshape(-1, 3)
    return points[np.isfinite(points[:, 2])]


def _draw_loss(axes: Axes, training: np.ndarray, validation: np.ndarray) -> None:
    axes.set_title("Loss", loc="left", color=INK, fontweight="bold")
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if len(training):
        step, _, loss = training.T
        window = max(3, len(loss) // 20)
        axes.plot(step, loss, color=RAW, linewidth=0.8, alpha=0.7, label="training")
        label = f"training, mean of {window} points"
        axes.plot(step, smooth(loss, window), color=LINE, linewidth=2, label=label)
    if len(validation):
        axes.plot(
            validation[:, 0],
            validation[:, 2],
            "o-",
            color=MARK,
            label="validation",
            linewidth=1.2,
            markersize=4.5,
        )
    if len(training) or len(validation):
        axes.legend(frameon=False)
    else:
        _say(axes, "no training step yet")


def _draw_score(axes: Axes, score: Score, evaluations: np.ndarray) -> None:
    axes.set_title(score.title, loc="left", color=INK, fontweight="bold")
    axes.set_xlabel("epoch")
    axes.yaxis.set_major_formatter(score.formatter())
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    if not len(evaluations):
        _say(axes, "no evaluation yet")
        return
    _, epoch, value = evaluations.T
    # The first of equal scores, like the training loop.
    best = int((value if score.higher_is_better else -value).argmax())
    axes.plot(epoch, value, "o-", color=LINE, linewidth=2, markersize=5)
    axes.plot(epoch[best], value[best], "o", color=MARK, markersize=10, zorder=3)
    text = f"best: {score.text.format(value[best])} (epoch {epoch[best]:g})"
    axes.set_title(text, loc="right", color=MARK, fontsize="medium")
    if len(evaluations) == 1:  # matplotlib would zoom in to a range of a tenth of an epoch
        axes.set_xlim(epoch[0] - 1, epoch[0] + 1)


def _say(axes: Axes, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)
