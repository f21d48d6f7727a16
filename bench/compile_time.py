"""Measure how long the programs trace, lower and compile, without and with their cache.

    python -m bench.compile_time            five minutes
    python -m bench.compile_time --page     measure nothing, write the page

Every program is a process of its own, called twice: with an empty cache of compiled programs, and
with what the first call left. Training programs make two updates of their default model on their
sample. The numbers are written to docs/results/compile_time.json, the table to
docs/benchmarks/compile-time.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.pages.markdown import how_measured, table
from bench.pages.program import Program
from transformer_jax.runtime.errors import InputError

ROOT = Path(__file__).parents[1]
# Each has a run folder of its name; a name in braces is that of the run folder of another one.
PROGRAMS = {
    "classifier": "train.imdb --data sample --no-baseline --max-steps 2",
    "tutorial": "train.imdb --data sample --recipe tutorial --tokenizer char --no-baseline"
    " --max-steps 2",
    "lm": "train.lm --data sample --max-steps 2",
    "mlm": "train.mlm --data sample --max-steps 2",
    "translator": "train.translate --data sample --max-steps 2",
    "predict": "transformer_jax predict {classifier} text",
    "generate": "transformer_jax generate {lm} text",
    "embed": "transformer_jax embed {mlm} {texts} -o {vectors}.npy",
    "translate": "transformer_jax translate {translator} text",
}
SMALL = {
    "lm": "train.lm --data sample --layers 1 --embed-dim 16 --heads 1 --max-steps 1",
    "generate": "transformer_jax generate {lm} text",
}
CALLS = {"cold": "an empty cache", "warm": "the cache of the first call"}
PARTS = ("trace", "lower", "compile", "seconds")


def clocked(command: str, run: Path, cache: Path) -> dict[str, float]:
    """Run a command; return the seconds of each part. Raises InputError if the command fails."""
    folder = run.parent
    words = [word.format_map(_Folders(folder)) for word in command.split()]
    if words[0].startswith("train."):
        words += ["--out", str(run)]
    clock = folder / "clock.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.measure.compile_clock", str(clock), *words],
        cwd=ROOT, env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise InputError(f"python -m {command} failed: {done.stderr.strip()[-300:]}")
    return json.loads(clock.read_text(encoding="utf-8"))


class _Folders(dict):
    """The paths that stand for the words in braces."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __missing__(self, name: str) -> str:
        return str(self.folder / name)


def measured(options: argparse.Namespace) -> dict:
    """Call every program with each cache, and return the results."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts").write_text("A text.\nAnother text.\n", encoding="utf-8")
        for program, command in (SMALL if options.small else PROGRAMS).items():
            row = {"name": program, "command": command}
            for call in CALLS:
                run = folder / (program if call == "cold" else f"{program}-{call}")
                row[call] = clocked(command, run, folder / "caches" / program)
            rows.append(row)
            print(f"{program}: {row['cold']['seconds']:.1f} s, then {row['warm']['seconds']:.1f} s")
    return PROGRAM.stamp(options) | {"small": options.small, "programs": rows}


def page(results: dict, shown: dict[str, str]) -> list[str]:
    """Return the lines of the page."""
    rows = results["programs"]
    lines = [
        "# What compiling costs",
        "",
        "This page has the seconds that the programs trace, lower to MLIR and compile, without and "
        "with their cache of compiled programs. It is for readers who wait for a first result.",
        "",
        "Training programs make two updates of their default model on their sample. `seconds` is "
        "the whole process after `import jax`: reading the data, computing and saving are in it. "
        "With a cache, compiling is reading it.",
    ]
    for call, says in CALLS.items():
        header = ["", *PARTS, "programs"]
        cells = (
            [row["name"], *(row[call].get(part, 0.0) for part in PARTS), row[call]["programs"]]
            for row in rows
        )
        lines += ["", f"## With {says}", "", *table(header, cells)]
    commands = [f"{results['command']}  # {results['date']}, {results['seconds']} s"]
    commands += [f"python -m {row['command']}" for row in rows]
    processor = f"- {results['machine']['processor']}, {results['machine']['cores']} cores"
    return lines + how_measured("compile_time.json", commands, [processor])


PROGRAM = Program(
    "compile_time", __doc__, "results/compile_time.json", "benchmarks/compile-time.md",
    ("machine", "programs"), page, has_small=True,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    options = PROGRAM.parse(PROGRAM.parser(), arguments)
    return PROGRAM.run(options, partial(measured, options))


if __name__ == "__main__":
    sys.exit(main())
