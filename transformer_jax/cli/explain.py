"""Show which words moved a trained classifier's decision.

    python -m transformer_jax explain RUN "A wonderful film, not dull."
    python -m transformer_jax explain RUN "A wonderful film, not dull." --html words.html
    python -m transformer_jax explain RUN - --class negative < review.txt

prints the text, in a terminal with colours: green behind what speaks for the class, red behind what
speaks against it, underlined what the vocabulary does not know. Then the strongest words of both
kinds with their numbers.

The numbers are integrated gradients (Sundararajan et al., 2017, https://arxiv.org/abs/1703.01365):
shares in the log odds of the class, log(p / (1 - p)), on the way from nothing to the text. Nothing
is as many places without words, [CLS] and [SEP] among them; what these two carry is "the frame".
All together they must add up to the difference of the log odds. The last line says what is missing,
the gap; where it stays above 1% it says that too. The nodes of the integral are doubled until the
gap is closed; each is a pass through the model and back, so --steps bounds the time.

A word that counts only beside another ("not" with "good") shares what both do. A number says what
the model computes, not what is so: another baseline would give other numbers.
"""

import argparse
import os
import sys
from collections.abc import Iterator

from transformer_jax.cli import html
from transformer_jax.cli.arguments import warn_of_sample
from transformer_jax.cli.matrix_text import clip, pad_right, width
from transformer_jax.cli.terminal import read_lines, writable, write_page
from transformer_jax.interpret.attribution import NODES
from transformer_jax.interpret.explain import Explanation, explain
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.run_folder import load_classifier
from transformer_jax.text.words import Piece

HELP = __doc__ or ""
# Of the 256 colours of a terminal, from pale to full; the ink on them is black, on a light terminal
# and on a dark one.
GREENS, REDS = (194, 157, 120, 83, 46), (224, 217, 210, 203, 196)
BLACK, PLAIN, UNDERLINED = "\x1b[38;5;16m", "\x1b[0m", "\x1b[4m"
MOST_NODES = 4096  # of more the nodes alone take longer than most texts
WORD = 30  # columns of a word in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="a run folder, the --out of train.imdb")
    parser.add_argument("text", metavar="TEXT", help="the text; - is standard input")
    parser.add_argument(
        "--class", dest="name", metavar="NAME", help="the class to explain (the predicted one)"
    )
    parser.add_argument("--html", metavar="FILE", help="the text and the table as a page")
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="words for and against (10)"
    )
    parser.add_argument(
        "--steps", type=int, default=512, metavar="N", help="nodes of the integral, at most (512)"
    )


def run(options: argparse.Namespace) -> None:
    if options.top < 1:
        raise InputError(f"--top must be 1 or more; got {options.top}")
    if not NODES <= options.steps <= MOST_NODES:
        raise InputError(f"--steps must be {NODES} to {MOST_NODES}; got {options.steps}")
    text = "\n".join(read_lines("-")) if options.text == "-" else options.text
    classifier = load_classifier(options.folder)
    found = explain(classifier, text, name=options.name, limit=options.steps)
    if options.html:
        write_page(options.html, _page(options, found))
    warn_of_sample(classifier)
    for line in report(found, options.top, in_colour=wants_colour()):
        print(writable(line))


def wants_colour() -> bool:
    """On a terminal that has colours, where nobody asked for none (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def report(found: Explanation, top: int, *, in_colour: bool) -> Iterator[str]:
    """The lines that are printed."""
    yield from statement(found)
    if in_colour:
        yield ""
        yield from coloured(found).split("\n")
    elif found.tokens_cut:
        yield (
            f"{found.tokens_cut} tokens of the text were not read: "
            "it is longer than the model reads"
        )
    yield ""
    yield from table(found, top)
    yield ""
    yield from account(found)


def table(found: Explanation, top: int) -> Iterator[str]:
    """The strongest words for the class and beside them those against it."""
    if not found.largest:
        yield "no word moved it"
        return
    left, right = (
        [f"{side} {found.name}", *map(_row, some)]
        for side, some in zip(("for", "against"), found.strongest(top), strict=True)
    )
    wide = max(map(width, left)) + 4
    for i in range(max(len(left), len(right))):
        one, other = (side[i] if i < len(side) else "" for side in (left, right))
        yield f"{pad_right(one, wide)}{other}".rstrip()


def statement(found: Explanation) -> Iterator[str]:
    """What was predicted, and what is explained where it is another class."""
    yield f"{found.label:<10} {found.probabilities[found.label]:6.1%}"
    if found.name != found.label:
        yield f"{found.name:<10} {found.probabilities[found.name]:6.1%}  (explained)"


def account(found: Explanation) -> Iterator[str]:
    """The frame, the log odds at both ends and whether the numbers add up."""
    a = found.attribution
    if found.frame:
        parts = ", ".join(f"{clip(token, 12)} {value:+.3f}" for token, value in found.frame)
        yield f"the frame: {parts}"
    yield (
        f"log odds of {found.name}: {a.f_of_all:+.3f} of the text, "
        f"{a.f_of_nothing:+.3f} of nothing; all numbers add up to {a.total:+.3f} of "
        f"{a.difference:+.3f} (gap {a.gap:+.1e}, {a.nodes} nodes)"
    )
    if not a.is_complete:
        yield (
            f"NOT COMPLETE: the gap is above {a.tolerance:.0%} after {a.nodes} nodes; "
            f"the numbers are rough. --steps {min(4 * a.nodes, MOST_NODES)} may close it"
        )


def coloured(found: Explanation) -> str:
    """The text with colours behind its words, in escapes of a terminal; its own are taken out."""
    return "".join(_painted(piece, found.largest) for piece in found.pieces)


def _painted(piece: Piece, largest: float) -> str:
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in piece.text)
    style = UNDERLINED if piece.is_unknown else ""
    if piece.value and (level := round(5 * abs(piece.value) / largest)):
        colours = GREENS if piece.value > 0 else REDS
        style += f"{BLACK}\x1b[48;5;{colours[level - 1]}m"
    if not style:
        return text
    return "\n".join(f"{style}{line}{PLAIN}" if line else "" for line in text.split("\n"))


def _row(piece: Piece) -> str:
    unknown = " (unknown)" if piece.is_unknown else ""
    return f"{piece.value:+8.3f}  {clip(piece.text, WORD)}{unknown}"


def _page(options: argparse.Namespace, found: Explanation) -> str:
    definitions = HELP[HELP.index("The numbers are") :]
    strongest = sorted(
        (piece for side in found.strongest(options.top) for piece in side),
        key=lambda piece: -(piece.value or 0.0),
    )
    cells = [
        [f"{piece.value:+.3f}", clip(piece.text, WORD), "unknown" if piece.is_unknown else ""]
        for piece in strongest
    ]
    return html.page(
        "Which words moved the decision",
        *map(html.paragraph, statement(found)),
        html.paragraph(f"{options.folder}; explained: {found.name}", "soft"),
        html.marked_text([(p.text, p.value, p.is_unknown) for p in found.pieces]),
        html.paragraph(
            f"Blue speaks for {found.name}, orange against it; "
            "a dotted line is below what the vocabulary does not know.",
            "soft",
        ),
        html.heading("The strongest words"),
        html.text_table(["log odds", "word", ""], cells),
        html.heading("Do the numbers add up?"),
        *map(html.paragraph, account(found)),
        html.details("What the numbers mean", definitions),
    )
