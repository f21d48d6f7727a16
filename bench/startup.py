"""Measure how long programs take to answer: help, mistakes, and a short command.

    python -m bench.startup                 help and mistakes, beside `import jax`
    python -m bench.startup RUN             predict too: without a cache of compiled programs,
                                            with an empty one, and with what that run left

prints the median of CPU and wall-clock seconds over the rounds, and nothing is written. In each
round every command is called once, in its own process, so that a busy machine slows all of them.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST = "import jax"  # what the others are compared with
ANSWERS = (
    "train.imdb --help",
    "train.imdb --no-such-option",
    "train.imdb --data no/such/file.csv",
    "train.lm --help",
    "transformer_jax --help",
    "transformer_jax predict --help",
    "transformer_jax predict --no-such-option",
    "transformer_jax predict no/such/run text",
)
OWN = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE")


def main(arguments: list[str] | None = None) -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.startup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="run folder of train.imdb")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(default: 5)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be 1 or more; got {options.rounds}")
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for name, seconds in one_round(options.run):
            found.setdefault(name, []).append(seconds)
    first = statistics.median(cpu for cpu, _ in found[FIRST])
    print(f"{'':<42}{'CPU s':>8}{'wall s':>8}  CPU / {FIRST}")
    for name, pairs in found.items():
        cpu, wall = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name:<42}{cpu:>8.2f}{wall:>8.2f}  {cpu / first:.2f}")
    return 0


def one_round(run: str | None):
    """Yield the name of each command, and its CPU and wall-clock seconds."""
    with tempfile.TemporaryDirectory() as caches:
        environment = {k: v for k, v in os.environ.items() if k not in OWN}
        environment["XDG_CACHE_HOME"] = caches
        yield FIRST, seconds_of(["-c", FIRST], environment)
        for words in ANSWERS:
            yield words, seconds_of(["-m", *words.split()], environment)
        if run is not None:
            predict = ["-m", "transformer_jax", "predict", str(Path(run).resolve()), "A fine film."]
            off = environment | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
            yield "predict without a cache", seconds_of(predict, off)
            yield "predict, the first time", seconds_of(predict, environment)
            yield "predict, the second time", seconds_of(predict, environment)


def seconds_of(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return the CPU and wall-clock seconds of a Python process, whatever its exit code."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, check=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


if __name__ == "__main__":
    sys.exit(main())
