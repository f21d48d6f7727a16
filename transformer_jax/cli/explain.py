"""Show which words moved the decision of a trained classifier.

    python -m transformer_jax explain RUN "A wonderful film, not dull."
    python -m transformer_jax explain RUN "A wonderful film, not dull." --html words.html
    python -m transformer_jax explain RUN - --class negative < review.txt

prints the words with the largest attributions for the class and against it. In a terminal with
colours it first prints the text: blue marks words that support the class, orange marks words
against it, and out-of-vocabulary words are underlined. The page of --html has the same colours.

The numbers are integrated gradients (Sundararajan et al., 2017, https://arxiv.org/abs/1703.01365):
the share of each word in the log odds of the class, log(p / (1 - p)). The baseline is an empty text
of the same length: it has positions, but neither words nor the special tokens [CLS] and [SEP]. The
special tokens have attributions of their own.

All attributions together should sum to the log odds of the text minus those of the baseline. The
last line gives the error of this sum, the gap, and warns if it stays above 1%. The number of
integration nodes is doubled until the gap is small enough. Each node costs a forward and a backward
pass, so --steps bounds the time.

Words that have an effect only together ("not" with "good") share that effect. The attributions
describe what the model computes, not what is true, and they depend on the baseline.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from transformer_jax.cli import html
from transformer_jax.cli.arguments import (
    warn_of_blank,
    warn_of_paths,
    warn_of_sample,
    warn_of_unknown,
)
from transformer_jax.cli.matrix_text import clip, pad_right, width
from transformer_jax.cli.terminal import read_lines, writable, write_page
from transformer_jax.cli.word_colours import colour_of
from transformer_jax.interpret.attribution import NODES
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.folder_files import CLASSIFIER_PROGRAMS, check_run_folder

if TYPE_CHECKING:
    from transformer_jax.interpret.explain import Explanation
    from transformer_jax.text.words import Piece

HELP = __doc__ or ""
BLACK, PLAIN, UNDERLINED = "\x1b[38;5;16m", "\x1b[0m", "\x1b[4m"
MOST_NODES = 4096  # computing more nodes than this takes longer than explaining most texts
WORD = 30  # width of a word in the table, in columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="run folder of train.classify or train.imdb")
    parser.add_argument("text", metavar="TEXT", help="text to explain; - is standard input")
    parser.add_argument(
        "--class", dest="name", metavar="NAME", help="class to explain (default: the predicted one)"
    )
    parser.add_argument("--html", metavar="FILE", help="write the text and the table as HTML")
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="words for and against (default: 10)"
    )
    parser.add_argument(
        "--steps", type=int, default=512, metavar="N",
        help="maximum number of integration nodes (default: 512)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    if options.top < 1:
        raise InputError(f"--top must be 1 or more; got {options.top}")
    if not NODES <= options.steps <= MOST_NODES:
        raise InputError(f"--steps must be {NODES} to {MOST_NODES}; got {options.steps}")
    check_run_folder(options.folder, CLASSIFIER_PROGRAMS)
    warn_of_paths([options.text])
    text = "\n".join(read_lines("-")) if options.text == "-" else options.text
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.interpret.explain import explain
    from transformer_jax.serialization.run_folder import load_classifier

    classifier = load_classifier(options.folder)
    found = explain(classifier, text, name=options.name, limit=options.steps)
    if options.html is not None:
        write_page(options.html, _page(options, found))
    warn_of_sample(classifier)
    warn_of_blank(int(not text.strip()), 1)
    warn_of_unknown(int(found.is_mostly_unknown), 1)
    for line in report(found, options.top, in_colour=wants_colour()):
        print(writable(line))


def wants_colour() -> bool:
    """Return whether to print colours: to a colour terminal, unless NO_COLOR is set.

    See https://no-color.org.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def report(found: "Explanation", top: int, *, in_colour: bool) -> Iterator[str]:
    """Format an explanation as the printed lines."""
    yield from statement(found)
    if in_colour:
        yield ""
        yield from coloured(found).split("\n")
    elif found.tokens_cut:
        yield (
            f"{found.tokens_cut} tokens of the text were not read: "
            "it exceeds the model's max_length"
        )
    yield ""
    yield from table(found, top)
    yield ""
    yield from account(found)


def table(found: "Explanation", top: int) -> Iterator[str]:
    """Format two columns: the strongest words for the class and those against it."""
    if not found.largest:
        yield "no word has a nonzero attribution"
        return
    left, right = (
        [f"{side} {found.name}", *map(_row, some)]
        for side, some in zip(("for", "against"), found.strongest(top), strict=True)
    )
    wide = max(map(width, left))
    for i in range(max(len(left), len(right))):
        one, other = (side[i] if i < len(side) else "" for side in (left, right))
        yield f"{pad_right(one, wide)}  |  {other}".rstrip()


def statement(found: "Explanation") -> Iterator[str]:
    """Format the predicted class and, if it is another one, the explained class."""
    yield f"{found.label:<10} {found.probabilities[found.label]:6.1%}"
    if found.name != found.label:
        yield f"{found.name:<10} {found.probabilities[found.name]:6.1%}  (explained)"


def account(found: "Explanation") -> Iterator[str]:
    """Format the special tokens, both log odds, and the completeness check of the attributions."""
    a = found.attribution
    if found.frame:
        parts = ", ".join(f"{clip(token, 12)} {value:+.3f}" for token, value in found.frame)
        yield f"special tokens: {parts}"
    yield (
        f"log odds of {found.name}: text {a.f_of_all:.3f}, "
        f"empty baseline {a.f_of_nothing:.3f}; attributions sum to {a.total:.3f} of "
        f"{a.difference:.3f} (gap {a.gap:+.1e}, {a.nodes} nodes)"
    )
    if not a.is_complete:
        yield (
            f"NOT COMPLETE: the gap is above {a.tolerance:.0%} after {a.nodes} nodes, so the "
            f"attributions are inaccurate; try --steps {min(4 * a.nodes, MOST_NODES)}"
        )


def coloured(found: "Explanation") -> str:
    """Format the text with coloured words for a terminal, without the escapes of the text."""
    return "".join(_painted(piece, found.largest) for piece in found.pieces)


def _painted(piece: "Piece", largest: float) -> str:
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in piece.text)
    style = UNDERLINED if piece.is_unknown else ""
    if (colour := colour_of(piece.value, largest)) is not None:
        style += f"{BLACK}\x1b[48;5;{colour}m"
    if not style:
        return text
    return "\n".join(f"{style}{line}{PLAIN}" if line else "" for line in text.split("\n"))


def _row(piece: "Piece") -> str:
    unknown = " (unknown)" if piece.is_unknown else ""
    return f"{piece.value:+8.3f}  {clip(piece.text, WORD)}{unknown}"


def _page(options: argparse.Namespace, found: "Explanation") -> str:
    definitions = HELP[HELP.index("The numbers are") :]
    sides = zip(("for", "against"), found.strongest(options.top), strict=True)
    return html.page(
        "Which words moved the decision",
        *map(html.paragraph, statement(found)),
        html.paragraph(f"{options.folder}; explained: {found.name}", "soft"),
        html.marked_text([(p.text, p.value, p.is_unknown) for p in found.pieces]),
        html.paragraph(
            f"Blue supports {found.name}, orange is against it; "
            "a dotted underline marks an out-of-vocabulary word.",
            "soft",
        ),
        html.heading("The strongest words"),
        *(_side(f"{side} {found.name}", pieces) for side, pieces in sides if pieces),
        html.heading("Completeness"),
        *map(html.paragraph, account(found)),
        html.details("What the numbers mean", definitions),
    )


def _side(title: str, pieces: Sequence["Piece"]) -> str:
    """Format the strongest words for the class, or those against it, as a table of a page."""
    cells = [
        [f"{piece.value:+.3f}", clip(piece.text, WORD), "unknown" if piece.is_unknown else ""]
        for piece in pieces
    ]
    return html.text_table(["log odds", title, ""], cells)
