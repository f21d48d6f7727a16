"""The figure of the architecture: from a text to a prediction, with the file of each part.

python -m docs.build.architecture       writes docs/figures/architecture.svg
"""

import argparse
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from bench.pages.plots import save, subplots

FILE = Path(__file__).parents[1] / "figures" / "architecture.svg"
BLUE, ORANGE, GREEN, GREY = "#cfe3f2", "#fbe3b8", "#cdebdf", "#eeeeee"

# Each step: its name, an example of what it gives, its file, its colour; from the bottom up.
STEPS = [
    ("text", '"A wonderful film."', "", GREY),
    ("tokens", "[2, 87, 1045, 31, 9]", "text/tokenizer.py", GREY),
    ("embedding + positions", "B T D", "nn/embeddings.py", BLUE),
    ("encoder", "B T D", "nn/encoder.py", ORANGE),
    ("pooling", "B D", "functional/pooling.py", GREEN),
    ("head", "B C", "models/text_classifier.py", GREEN),
    ("probabilities", "positive 0.98", "inference/classify.py", GREY),
]
# The parts of one encoder layer with pre-norm, from the bottom up.
LAYER = [
    ("norm", "functional/normalization.py", GREY),
    ("multi-head attention", "attention/multi_head.py", ORANGE),
    ("norm", "functional/normalization.py", GREY),
    ("feed-forward", "functional/feed_forward.py", ORANGE),
]


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m docs.build.architecture", description=__doc__.splitlines()[0]
    ).parse_args()
    with subplots(1, 2, (9.0, 5.6)) as (figure, (steps, layer)):
        for axes in (steps, layer):
            axes.set(xlim=(0, 10), ylim=(0, 14))
            axes.axis("off")
        _draw_steps(steps)
        _draw_layer(layer)
    save(figure, FILE)
    print(FILE.relative_to(Path.cwd()) if FILE.is_relative_to(Path.cwd()) else FILE)


def _draw_steps(axes: Axes) -> None:
    for i, (name, example, file, colour) in enumerate(STEPS):
        y = 0.4 + 1.95 * i
        _box(axes, 0.4, y, 5.2, name, colour)
        axes.text(5.9, y + 0.72, example, va="center", size=9)
        axes.text(5.9, y + 0.22, file, va="center", size=8, family="monospace", color="#0060a0")
        if i:
            _arrow(axes, 3.0, y - 0.99, y)


def _draw_layer(axes: Axes) -> None:
    axes.set(xlim=(-1, 10))
    axes.text(3.0, 13.3, "one of L encoder layers", ha="center", weight="bold")
    heights = (1.6, 4.2, 7.2, 9.8)
    for (name, file, colour), y in zip(LAYER, heights, strict=True):
        _box(axes, 0.4, y, 5.2, name, colour)
        axes.text(5.9, y + 0.48, file, va="center", size=8, family="monospace", color="#0060a0")
    arrows = ((0.3, 1.6), (2.56, 4.2), (5.16, 5.75), (6.2, 7.2), (8.16, 9.8), (10.76, 11.4))
    for start, end in (*arrows, (11.85, 12.9)):
        _arrow(axes, 3.0, start, end)
    for start, end in ((0.9, 5.97), (6.6, 11.62)):  # the residual connections
        axes.plot([3.0, -0.4, -0.4, 2.7], [start, start, end, end], color="#888888", lw=1.2)
        axes.text(3.0, end, "+", ha="center", va="center", size=14, weight="bold")


def _box(axes: Axes, x: float, y: float, width: float, text: str, colour: str) -> None:
    style = "round,pad=0,rounding_size=0.15"
    axes.add_patch(FancyBboxPatch((x, y), width, 0.96, style, fc=colour, ec="#555555", lw=0.9))
    axes.text(x + width / 2, y + 0.48, text, ha="center", va="center", size=10)


def _arrow(axes: Axes, x: float, start: float, end: float) -> None:
    axes.annotate("", (x, end), (x, start), arrowprops={"arrowstyle": "->", "color": "#555555"})


if __name__ == "__main__":
    main()
