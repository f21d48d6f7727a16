"""Show what the attention heads of a trained classifier attend to in a text.

    python -m transformer_jax attention RUN "A wonderful film, not dull."
    python -m transformer_jax attention RUN "A wonderful film, not dull." --html maps.html
    python -m transformer_jax attention RUN "A wonderful film." --png maps.png --pca points.png

prints a line for every head with these scores. All but the last are attention weights, averaged
over the query tokens.

    previous    weight on the token before the query
    next        weight on the token after the query
    itself      weight on the query token itself
    first       weight on the first token
    separator   weight on the last token, [SEP]
    fixed       weight on the token at offset k, for the k in -T..T with the largest average
                ("-2: 0.41"); offsets that fewer than half of the queries have are left out
    broad       entropy of the weights, divided by its maximum: 1 is uniform attention

A query with no token before it does not count for `previous`, and likewise for the other scores.
Padding never counts. "pattern" is "broad" if broad is 0.9 or more; else it names the highest of the
other scores if that is 0.5 or more, and is "other" if it is not. "most on" is the token that gets
the largest part of all weight, with its share. The row "uniform" has the scores of uniform weights,
which a head that ignores its input would have. If the model reads patches of neighbouring tokens,
the scores are about patches instead of tokens, and [SEP] is in the last patch.

--html writes the attention maps of all heads, and plots the tokens in two dimensions (PCA, the two
directions of largest variance) before and after the encoder. Before the encoder, a word is the same
point in every context; after it, each context has its own point.
"""

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.cli import html
from transformer_jax.cli.matrix_text import clip
from transformer_jax.cli.terminal import writable, write_page
from transformer_jax.interpret.head_patterns import head_name, head_scores, pca, weight_received
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.files import write
from transformer_jax.serialization.folder_files import CLASSIFIER_PROGRAMS, check_run_folder

if TYPE_CHECKING:
    from transformer_jax.interpret.activations import Activations

HELP = __doc__ or ""
SCORES = ("previous", "next", "itself", "first", "separator", "fixed", "broad")


@dataclass(frozen=True)
class Head:
    layer: str
    head: str
    name: str
    scores: dict[str, float]
    most: str  # the row that receives the most weight
    share: float  # of all weight that this row receives

    @property
    def cells(self) -> list[str]:
        shown = [f"{self.scores[name]:.2f}" for name in SCORES]
        shown[SCORES.index("fixed")] = (
            f"{int(self.scores['offset']):+d}: {self.scores['fixed']:.2f}"
        )
        return [
            self.layer,
            self.head,
            *shown,
            self.name,
            self.most and f"{clip(self.most, 12)} {self.share:.2f}",
        ]


HEADER = ["layer", "head", *SCORES, "pattern", "most on"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="run folder of train.classify or train.imdb")
    parser.add_argument("text", metavar="TEXT", help="text to read")
    parser.add_argument(
        "--html", metavar="FILE", help="write the table, the maps and the PCA plots as HTML"
    )
    parser.add_argument("--png", metavar="FILE", help="write the attention maps as PNG")
    parser.add_argument("--pca", metavar="FILE", help="write the PCA plots as PNG")


def run(options: argparse.Namespace) -> None:
    check_run_folder(options.folder, CLASSIFIER_PROGRAMS)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.interpret.activations import read_activations
    from transformer_jax.serialization.run_folder import load_model

    classifier = load_model(options.folder, "TextClassifier")
    inside = read_activations(classifier, options.text)
    if not inside.maps:
        raise InputError(f"{options.folder} has no attention layers: there is nothing to show")
    heads = score_heads(inside)
    if options.html is not None:
        patch_width = classifier.spec.config.patch_width
        write_page(options.html, _page(options, inside, heads, patch_width))
    if options.png is not None:
        _write_picture(options.png, lambda: _draw_maps(inside, heads))
    if options.pca is not None:
        _write_picture(options.pca, lambda: _draw_points(inside))
    for line in _table(heads):
        print(writable(line))
    if inside.cut:
        print(f"{inside.cut} tokens of the text were not read: it exceeds the model's max_length")


def score_heads(inside: "Activations") -> list[Head]:
    """Compute the scores of every head of every layer, and of a head with uniform weights."""
    size = len(inside.rows)
    is_token = jnp.ones((1, size), bool)
    uniform = np.full((1, size, size), 1 / size, np.float32)
    heads = []
    for layer, maps in enumerate([*inside.maps, uniform]):
        scores, received = jax.tree.map(
            np.asarray, _scored(maps[None], is_token, inside.separators[None])
        )
        for n in range(len(maps)):
            one = {name: float(values[n]) for name, values in scores.items()}
            most = int(received[n].argmax())
            heads.append(
                Head("", "", "uniform", one, "", 0.0)
                if layer == len(inside.maps)
                else Head(
                    str(layer),
                    str(n),
                    head_name(one),
                    one,
                    inside.rows[most],
                    float(received[n, most]),
                )
            )
    return heads


@jax.jit
def _scored(weights, is_token, is_separator):
    return head_scores(weights, is_token, is_separator), weight_received(weights, is_token)[0]


_pca = jax.jit(pca)


def points(inside: "Activations") -> list[tuple[str, np.ndarray, Sequence[str]]]:
    """Return title, PCA coordinates and labels of the plots before and after the encoder."""
    found = []
    if inside.token_vectors is not None:
        found.append(("before the encoder: embeddings", inside.token_vectors, inside.tokens))
    else:
        found.append(("before the encoder: patches + positions", inside.inputs[0], inside.rows))
    found.append(("after the encoder", inside.output, inside.rows))
    return [(title, np.asarray(_pca(x)), labels) for title, x, labels in found]


def _table(heads: list[Head]) -> list[str]:
    rows = [HEADER, *(head.cells for head in heads)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _page(
    options: argparse.Namespace, inside: "Activations", heads: list[Head], patch_width: int
) -> str:
    definitions = HELP[HELP.index("prints a line") :].partition("\n\n--html")[0]
    sections = [
        html.paragraph(_shortened(options.text)),
        html.paragraph(f"{options.folder}, layers: {len(inside.maps)}", "soft"),
        html.heading("Patterns of the heads"),
        html.text_table(HEADER, [head.cells for head in heads]),
        html.details("What the columns mean", definitions),
        html.heading("Attention maps"),
        html.paragraph("Rows are queries, columns are keys. Each row sums to 1."),
    ]
    if patch_width:
        note = (
            f"This model reads patches of {patch_width} neighbouring tokens: a row or column of a "
            "map is a patch. There are no attention weights of single tokens."
        )
        sections.append(html.paragraph(note))
    for layer, maps in enumerate(inside.maps):
        for n, weights in enumerate(maps):
            (head,) = (h for h in heads if (h.layer, h.head) == (str(layer), str(n)))
            title = f"layer {layer}, head {n}: {head.name}"
            sections.append(html.heat_map(weights, inside.rows, title))
    sections += [
        html.heading("Tokens in two dimensions"),
        html.paragraph(
            "PCA: the two directions of largest variance. Equal points are drawn once. A label "
            "that would cover another one is left out; hover over the point to see it."
        ),
        *(html.scatter(xy, labels, title) for title, xy, labels in points(inside)),
    ]
    return html.page("What the attention heads attend to", *sections)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 400 else text[:399] + "…"


def _write_picture(file: str, draw) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = draw()
    try:
        with warnings.catch_warnings(record=True) as missing:
            warnings.simplefilter("always")
            write(Path(file), lambda beside: figure.savefig(beside, format="png", dpi=120))
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)
    print(writable(f"wrote {file}"))
    if missing:  # matplotlib warns of each character that its font lacks
        print("the font of the picture lacks characters of the text; use --html to see them")


def _draw_maps(inside: "Activations", heads: list[Head]):
    from matplotlib import pyplot

    layers, across, size = len(inside.maps), len(inside.maps[0]), len(inside.rows)
    side = min(max(2.5, 0.22 * size), 8)
    figure, axes = pyplot.subplots(
        layers,
        across,
        squeeze=False,
        figsize=(across * side + 1, layers * side + 1),
        layout="constrained",
    )
    names = iter(heads)
    for layer, maps in enumerate(inside.maps):
        for n, weights in enumerate(maps):
            ax = axes[layer, n]
            ax.imshow(weights, cmap="Blues", vmin=0)
            ax.set_title(f"layer {layer}, head {n}: {next(names).name}", fontsize=9)
            places = range(0, size, max(1, size // 40))
            labels = [_drawable(inside.rows[i]) for i in places]
            ax.set_xticks(places, labels, rotation=90, fontsize=7)
            ax.set_yticks(places, labels, fontsize=7)
    return figure


def _draw_points(inside: "Activations"):
    from matplotlib import pyplot

    pictures = points(inside)
    figure, axes = pyplot.subplots(1, len(pictures), figsize=(13, 5.5), layout="constrained")
    for ax, (title, xy, labels) in zip(axes, pictures, strict=True):
        ax.scatter(*xy.T, s=12)
        # Rounded, so that points that differ by float rounding alone are drawn once.
        places = xy.round(4 - int(np.log10(max(np.abs(xy).max(), 1e-6))))
        for point, label in dict.fromkeys(zip(map(tuple, places.tolist()), labels, strict=True)):
            ax.annotate(
                _drawable(label), point, xytext=(3, 3), textcoords="offset points", fontsize=7
            )
        ax.set_title(title, fontsize=10)
    return figure


def _drawable(text: str) -> str:
    """Shorten a label and escape $, which matplotlib reads as mathematics."""
    return (text if len(text) <= 14 else text[:13] + "…").replace("$", r"\$")
