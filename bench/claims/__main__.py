"""Measure every claim; write docs/research/claims.md, its figures and docs/results/claims.json.

    python -m bench.claims
    python -m bench.claims --page

With --page nothing is measured: the page is written from stored numbers, and the figures stay as
they are.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from tqdm import tqdm

from bench.claims import context, depth, masking, norms, positions, probe, scores, surface
from bench.pages.claims import Claim, entry, figure, page
from bench.pages.program import Program
from transformer_jax.runtime.files import write

# In the order of the page: scores, masks, positions, blocks, meaning.
THEMES = (scores, masking, positions, probe, norms, depth, surface, context)
PROGRAM = Program(
    "claims", __doc__, "results/claims.json", "research/claims.md",
    ("command", "seconds", "machine", "claims"), page,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    parser.add_argument("--seed", type=int, default=0, help="seed of every random number (0)")
    options = PROGRAM.parse(parser, arguments)
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    claims = [
        claim
        for theme in tqdm(THEMES, unit="theme", disable=None)
        for claim in theme.claims(options.seed)
    ]
    return results_of(claims, options)


def results_of(claims: Sequence[Claim], options: argparse.Namespace) -> dict:
    """Write the figures of the claims; return what the JSON file keeps."""
    folder = options.docs / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for claim in claims:
        if claim.draw is not None:
            drawn = figure(claim)
            path = folder / f"claims-{claim.name}.png"
            write(path, lambda beside, drawn=drawn: drawn.savefig(beside, format="png"))
    return PROGRAM.stamp(options) | {"claims": {claim.name: entry(claim) for claim in claims}}


if __name__ == "__main__":
    sys.exit(main())
