"""Runs the benchmarks and writes docs/benchmarks/benchmarks.md, its figures and
docs/results/bench.json.

python -m bench.report                    # ten minutes; --full: the longest lengths too
python -m bench.report --json FILE        # from what pytest --benchmark-only --benchmark-json=FILE left
python -m bench.report --page             # page and figures from docs/results/bench.json
python -m bench.report --compare          # beside docs/results/bench.json, the largest slowdown first; writes nothing

Where a benchmark fails the others are written all the same, and the exit code is 1.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.measure import records
from bench.measure.records import Run
from bench.pages import tables
from bench.pages.benchmarks import page, reduced
from bench.pages.results import add_output, write_results
from transformer_jax.runtime.errors import InputError, one_line

ROOT = Path(__file__).parent.parent
RESULTS = "results/bench.json"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="run nothing, read this")
    parser.add_argument("--full", action="store_true", help="run with --bench-full")
    parser.add_argument("-k", metavar="NAMES", help="run only these, as pytest has it")
    parser.add_argument(
        "--compare", action="store_true", help=f"write nothing, compare with DOCS/{RESULTS}"
    )
    add_output(parser)
    parser.set_defaults(docs=ROOT / "docs")
    options = parser.parse_args(arguments)
    if options.json and (options.full or options.k):
        parser.error("--json reads what was run: it goes with neither --full nor -k")
    if options.page and (options.json or options.full or options.k or options.compare):
        parser.error("--page runs nothing: it goes with --docs alone")
    file = options.docs / RESULTS
    try:
        before = from_file(file, records.kept) if options.page or options.compare else None
        if options.page:
            run = before
        elif options.json:
            run = from_file(options.json, records.read)
        else:
            run = measure(options.full, options.k)
        if options.compare:
            show(before, run)
        else:
            for path in write(run, options.docs):
                print(os.path.relpath(path))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if run.failed and not options.page:
        print(f"failed: {', '.join(run.failed)}", file=sys.stderr)
        return 1
    return 0


def measure(full: bool, names: str | None) -> Run:
    """In a child, without a cache of compiled programs: compiling is measured too."""
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
        # 1: some failed; the file has the others.
        if done.returncode not in (0, 1) or not file.exists():
            raise InputError(f"`{shlex.join(words)}` failed; nothing was written")
        return from_file(file, records.read)


def from_file(path: Path, read: Callable[[dict], Run]) -> Run:
    """What a run left; raises InputError where the file is not that."""
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: {one_line(error)}") from None


def show(before: Run, now: Run) -> None:
    """Print both runs side by side, and where they ran if that is not the same."""
    for name in ("processor", "cores", "versions"):
        if (old := before.machine[name]) != (new := now.machine[name]):
            print(f"{name}: {old} before, {new} now")
    print("\n".join(tables.compared(before.records, now.records)))


def write(run: Run, docs: Path) -> list[Path]:
    """The figures, the page and the records; the paths that were written."""
    from bench.pages.figures import draw

    if not run.records:
        raise InputError("no benchmark of these has a subject; nothing was written")
    results = docs / RESULTS
    write_results(results, reduced(run))
    run = from_file(results, records.kept)  # page and figures say what the file holds
    figures = draw(run.records, docs / "figures")
    text = docs / "benchmarks/benchmarks.md"
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(page(run, figures, docs), encoding="utf-8")
    return [text, *figures, results]


if __name__ == "__main__":
    sys.exit(main())
