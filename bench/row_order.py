"""Measure how many held-out texts have their movie in training, where no movie is known.

    python -m bench.row_order --data PATH   IMDb with the movie of each review
    python -m bench.row_order --page        measure nothing, write the page

The movies are removed, and a tenth of the texts is held out, for several seeds and three orders of
the rows. Then the movies of the two parts are compared. Test texts only serve to drop their copies.
Numbers are written to docs/results/row_order.json, the page to docs/research/row-order.md.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from bench.pages.markdown import how_measured, table
from bench.pages.program import Program
from train.data import splits
from train.data.dataset import Split
from train.data.load import load
from transformer_jax.runtime.errors import InputError

FRACTION = 0.1


def orders(split: Split) -> dict[str, np.ndarray]:
    """Return the rows in each of the orders that are compared."""
    return {
        "by class, then as listed": np.argsort(split.labels, kind="stable"),
        "by movie": np.argsort(split.groups, kind="stable"),
        "shuffled": np.random.default_rng(0).permutation(len(split)),
    }


def compare(split: Split, draws: int) -> dict:
    """Return what the parts have in common that are held out without the groups."""
    groups, unknown = np.array(split.groups), Split(split.texts, split.labels, None)
    shared, sizes, balance, seconds = [], [], [], []
    for seed in range(draws):
        start = time.perf_counter()
        rows, rule = splits.draw(unknown, FRACTION, seed, "validation")
        seconds.append(time.perf_counter() - start)
        known = set(np.delete(groups, rows))
        shared.append(np.mean([group in known for group in groups[rows] if group]))
        sizes.append(len(rows))
        balance.append(split.labels[rows].mean())
    return {
        "rule": rule.partition(" (")[0],
        "shared": shared,
        "sizes": sizes,
        "balance": balance,
        "seconds": float(np.median(seconds)),
    }


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page from the contents of the JSON file."""
    yield "# Validation without movie ids\n"
    yield (
        "Reviews of one movie resemble each other. If a movie has reviews in the training part and "
        "in the validation part, validation rewards memorization. IMDb as the Hugging Face Hub has "
        "it names no movies. This page shows how well the order of the rows replaces movie ids. It "
        "is for readers who hold out texts of their own that are listed by author, product or "
        "thread.\n"
    )
    yield (
        "Texts of one movie share rare words, such as names. If neighbouring rows share them much "
        "more often than shuffled rows do, a few stretches of neighbouring rows are held out, and "
        "not single texts. IMDb lists the same movies once for each class, so the two lists are "
        "merged by the rare words that a negative and a positive review share. The stretches begin "
        "and end where few words are shared.\n"
    )
    yield (
        f"The table has {results['draws']} draws of a tenth of {results['texts']:,} texts, whose "
        "movies are only used to compare the parts.\n"
    )
    header = ["order of the rows", "held out", "their movie is in training", "at most"]
    header += ["texts held out", "positive texts", "seconds"]
    yield from table(
        header,
        [
            [
                name,
                found["rule"],
                f"{100 * np.mean(found['shared']):.1f}%",
                f"{100 * max(found['shared']):.1f}%",
                f"{min(found['sizes']):,} to {max(found['sizes']):,}",
                f"{100 * min(found['balance']):.0f} to {100 * max(found['balance']):.0f}%",
                f"{found['seconds']:.1f}",
            ]
            for name, found in results["orders"].items()
        ],
    )
    yield from how_measured("row_order.json", [f"{results['command']}  # {results['date']}"])


PROGRAM = Program(
    "row_order", __doc__, "results/row_order.json", "research/row-order.md",
    ("command", "orders"), page,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--data", default="imdb", help="data with movies, as train.imdb takes them (default: imdb)")
    add("--draws", type=int, default=20, help="held-out parts of each order (default: 20)")
    options = PROGRAM.parse(parser, arguments)
    if options.draws < 1:
        parser.error("--draws must be 1 or more")
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    """Compare the parts for every order of the rows."""
    split = load(options.data).train
    if split.groups is None:
        raise InputError(f"{options.data} names no movies; pass a table with the column movie")
    found = {}
    for name, rows in orders(split).items():
        found[name] = compare(split.take(rows), options.draws)
        print(f"{name}: {100 * np.mean(found[name]['shared']):.2f}%", flush=True)
    counts = {"draws": options.draws, "texts": len(split)}
    return PROGRAM.stamp(options) | counts | {"orders": found}


if __name__ == "__main__":
    sys.exit(main())
