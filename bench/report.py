"""Runs the benchmarks and writes docs/benchmarks.md, its figures and docs/results/bench.json.

python -m bench.report                    # ten minutes; --full: the longest lengths too
python -m bench.report --json FILE        # from what pytest --benchmark-only --benchmark-json=FILE left
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.page import page, reduced
from bench.records import Run, read
from transformer_jax.errors import InputError, one_line

ROOT = Path(__file__).parent.parent


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="run nothing, read this")
    parser.add_argument("--full", action="store_true", help="run with --bench-full")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where to write (docs)")
    parser.add_argument("-k", metavar="NAMES", help="run only these, as pytest has it")
    options = parser.parse_args(arguments)
    if options.json and (options.full or options.k):
        parser.error("--json reads what was run: it goes with neither --full nor -k")
    try:
        run = from_file(options.json) if options.json else measure(options.full, options.k)
        for path in write(run, options.docs):
            print(os.path.relpath(path))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


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
        if done.returncode:
            raise InputError(f"`{shlex.join(words)}` failed; nothing was written")
        return from_file(file)


def from_file(path: Path) -> Run:
    """What a run left; raises InputError where the file is not that."""
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: {one_line(error)}") from None


def write(run: Run, docs: Path) -> list[Path]:
    """The figures, the page and the records; the paths that were written."""
    from bench.figures import draw

    if not run.records:
        raise InputError("no benchmark of these has a subject; nothing was written")
    figures = draw(run.records, docs / "figures")
    results = docs / "results" / "bench.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(reduced(run), indent=1) + "\n", encoding="utf-8")
    text = docs / "benchmarks.md"
    text.write_text(page(run, figures, docs), encoding="utf-8")
    return [text, *figures, results]


if __name__ == "__main__":
    main()
