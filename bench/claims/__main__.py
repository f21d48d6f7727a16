"""Measures every claim and writes docs/research/claims.md, its figures and
docs/results/claims.json.

python -m bench.claims
python -m bench.claims --page       nothing is measured: docs/research/claims.md from the numbers, the figures as they are
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tqdm import tqdm

from bench.claims import context, depth, masking, norms, positions, probe, scores, surface
from bench.claims.page import Claim, entry, figure, page
from bench.measure.machine import describe
from bench.pages.results import add_output, rewrite
from transformer_jax.runtime.files import write, write_text

PROGRAM = "python -m bench.claims"
# In the order of the page: scores, masks, positions, blocks, meaning.
THEMES = (scores, masking, positions, probe, norms, depth, surface, context)


def publish(claims: Sequence[Claim], docs: Path, facts: dict) -> None:
    """The page, the figures and the numbers, below `docs`."""
    for folder in ("figures", "results"):
        (docs / folder).mkdir(parents=True, exist_ok=True)
    for claim in claims:
        if claim.draw is not None:
            drawn = figure(claim)
            path = docs / "figures" / f"claims-{claim.name}.png"
            write(path, lambda beside, drawn=drawn: drawn.savefig(beside, format="png"))
    results = {**facts, "claims": {claim.name: entry(claim) for claim in claims}}
    text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    write_text(docs / "results" / "claims.json", text)
    (docs / "research").mkdir(parents=True, exist_ok=True)
    write_text(docs / "research/claims.md", page(results))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of every random number (0)")
    add_output(parser)
    options = parser.parse_args(arguments)

    def write_claims(results: dict) -> Path:
        (options.docs / "research").mkdir(parents=True, exist_ok=True)
        write_text(options.docs / "research/claims.md", page(results))
        return options.docs / "research/claims.md"

    if options.page:
        path = options.docs / "results/claims.json"
        return rewrite(path, PROGRAM, ("command", "seconds", "machine", "claims"), write_claims)
    start = time.perf_counter()
    claims = [
        claim
        for theme in tqdm(THEMES, unit="theme", disable=None)
        for claim in theme.claims(options.seed)
    ]
    facts = {
        "command": f"{PROGRAM} --seed {options.seed}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seconds": round(time.perf_counter() - start),
        "machine": describe(),
    }
    publish(claims, options.docs, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
