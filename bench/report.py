"""Run the benchmarks; write docs/benchmarks/benchmarks.md, its figures and docs/results/bench.json.

    python -m bench.report              ten minutes; --full: the longest lengths too
    python -m bench.report --json FILE  from the results of pytest --benchmark-json=FILE
    python -m bench.report --page       page and figures from docs/results/bench.json
    python -m bench.report --compare    against docs/results/bench.json, largest slowdown first

If a benchmark fails, the others are still written, and the exit code is 1. --compare writes
nothing.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.measure import records
from bench.measure.records import Run
from bench.pages.benchmarks import compared, figures, page, reduced
from bench.pages.program import Program
from transformer_jax.runtime.errors import InputError, one_line

ROOT = Path(__file__).parent.parent
PROGRAM = Program(
    "report", __doc__, "results/bench.json", "benchmarks/benchmarks.md",
    ("command", "date", "machine", "sizes", "records", "summaries"), page, figures,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="read these results, run nothing")
    add("--full", action="store_true", help="run with --bench-full")
    add("-k", metavar="NAMES", help="benchmarks to run, as for pytest -k")
    add("--compare", action="store_true", help=f"write nothing, compare with DOCS/{PROGRAM.file}")
    options = PROGRAM.parse(parser, arguments)
    if options.json and (options.full or options.k):
        parser.error("--json reads an earlier run: it goes with neither --full nor -k")
    if options.page and (options.json or options.full or options.k or options.compare):
        parser.error("--page runs nothing: it goes with --docs alone")
    failed = []
    if options.compare:
        code = PROGRAM.guard(options, partial(compare, options, failed))
    else:
        code = PROGRAM.run(options, lambda: reduced(measured(options, failed)))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return code or int(bool(failed))


def compare(options: argparse.Namespace, failed: list[str]) -> None:
    """Print both runs side by side, and how their machines differ."""
    before, now = records.kept(PROGRAM.read(options.docs)), measured(options, failed)
    for name in ("processor", "cores", "versions"):
        if (old := before.machine[name]) != (new := now.machine[name]):
            print(f"{name}: {old} before, {new} now")
    print("\n".join(compared(before.records, now.records)))


def measured(options: argparse.Namespace, failed: list[str]) -> Run:
    """Return the benchmark records of a run; append the names of failed benchmarks to `failed`."""
    run = from_file(options.json) if options.json else run_benchmarks(options.full, options.k)
    if not run.records:
        raise InputError("no benchmark of these has a subject; nothing was written")
    failed += run.failed
    return run


def run_benchmarks(full: bool, names: str | None) -> Run:
    """Run the benchmarks in a child process without a cache of compiled programs.

    Compile time is measured too. Raises InputError if pytest fails as a whole.
    """
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    words = ["pytest", "--benchmark-only", *(["--bench-full"] if full else [])]
    words += ["-k", names] if names else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "benchmarks.json"
        done = subprocess.run(
            [sys.executable, "-m", *words, f"--benchmark-json={file}", "bench"],
            cwd=ROOT,
            env=environment,
            check=False,
        )
        # 1: some benchmarks failed; the file holds the others.
        if done.returncode not in (0, 1) or not file.exists():
            raise InputError(f"`{shlex.join(words)}` failed; nothing was written")
        return from_file(file)


def from_file(path: Path) -> Run:
    try:
        return records.read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: {one_line(error)}") from None


if __name__ == "__main__":
    sys.exit(main())
