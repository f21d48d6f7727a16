"""`python -m bench.claims`: measures every claim and writes docs/claims.md, its figures and docs/results/claims.json."""

import argparse
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tqdm import tqdm

from bench.claims import context, depth, masking, norms, positions, probe, scores, surface
from bench.claims.page import Claim, figure, page
from bench.machine import describe
from transformer_jax.files import write, write_text

# In the order of the page: scores, masks, positions, blocks, meaning.
THEMES = (scores, masking, positions, probe, norms, depth, surface, context)


def publish(claims: Sequence[Claim], docs: Path, origin: str, facts: dict) -> None:
    """The page, the figures and the numbers, below `docs`."""
    for folder in ("figures", "results"):
        (docs / folder).mkdir(parents=True, exist_ok=True)
    for claim in claims:
        if claim.draw is not None:
            drawn = figure(claim)
            path = docs / "figures" / f"claims-{claim.name}.png"
            write(path, lambda beside, drawn=drawn: drawn.savefig(beside, format="png"))
    write_text(docs / "claims.md", page(claims, origin))
    numbers = {
        claim.name: {"title": claim.title, "header": claim.header, "rows": claim.rows}
        for claim in claims
    }
    text = json.dumps({**facts, "claims": numbers}, indent=1, ensure_ascii=False)
    write_text(docs / "results" / "claims.json", text + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.claims", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of every random number (0)")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where to write (docs)")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    claims = [
        claim
        for theme in tqdm(THEMES, unit="theme", disable=None)
        for claim in theme.claims(options.seed)
    ]
    seconds = round(time.perf_counter() - start)
    command, date, machine = (
        f"{parser.prog} --seed {options.seed}",
        f"{datetime.now(UTC):%Y-%m-%d}",
        describe(),
    )
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("jax", "flax", "numpy"))
    origin = (
        f"`{command}` in {seconds} s on {date}: {versions}, Python {machine['python']}, "
        f"{', '.join(machine['devices'])}, {machine['cores']} cores. The numbers are also in `results/claims.json`."
    )
    facts = {"command": command, "date": date, "seconds": seconds, "machine": machine}
    publish(claims, options.docs, origin, facts)


if __name__ == "__main__":
    main()
