"""The race to a good classifier of reviews: seconds of training until validation first passes a
bar.

    python -m bench.imdb_race --data PATH --tutorial LOG        as train.imdb takes it; LOG by bench.tutorial_torch
    python -m bench.imdb_race --page                            nothing is trained: page and figure from the numbers

Ours is the default recipe of `train.imdb`, scored by the averaged weights on the way, over several
seeds. Beside it stand linear models, fitted once, so one point each, and the tutorial's program,
which is not run here but read from the logs of `python -m bench.tutorial_torch --data PATH --log
LOG --validate-every N`. A seed draws the reviews to validate on, whole movies, the same for all.
The test split is not read. What is done is kept after every run and not done again: stop it and go
on; logs are read anew where they are named. Numbers go to docs/results/race.json, the page to
docs/research/race.md.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import jax

from bench.measure import machine
from bench.measure.command_line import without_paths
from bench.pages.race import BARS, NETWORK, OURS, TUTORIAL, draw, page
from bench.pages.results import add_output, rewrite, write_page, write_results
from bench.peers import nb_svm
from bench.peers.curves import read_log, seconds_until
from bench.peers.recipe_runs import fold_of, looks
from train.data.dataset import DataError, Dataset
from train.data.load import load, split_validation
from train.evaluation import baseline
from train.evaluation.metrics import score
from train.recipes.imdb import FAST, Recipe
from transformer_jax.runtime.errors import InputError

PROGRAM = "python -m bench.imdb_race"
SEEDS = 5
EVERY = 5  # steps
LATER = 20  # from EVERY * LATER steps on, a LATER-th of the steps done

# Each is called as `linear_baseline` is, and says `probabilities` and `seconds`.
LINEAR: dict[str, Callable] = {
    baseline.NAME: baseline.linear_baseline,
    nb_svm.NAME: nb_svm.nb_svm,
}


def schedule(every: int, steps: list[int]) -> list[int]:
    """Steps to look after: the clock is known to `every` steps at first, then to a twentieth of
    what it shows.
    """
    found, step, total = [], 0, sum(steps)
    while step < total:
        step = min(step + max(every, step // LATER), total)
        found.append(step)
    return found


def ours(
    data: Dataset, recipe: Recipe, seed: int, every: int, limit: float | None
) -> dict[str, dict]:
    """Whole, and the network without its n-grams: one training, for neither learns from the other.

    What is done before the clock starts is in `prepare_seconds`; then the points.
    """
    begun = time.perf_counter()
    fold = fold_of(data, recipe, seed, recipe.validation_fraction)
    prepared = round(time.perf_counter() - begun, 3)
    found = {OURS: [], NETWORK: []}
    for look in looks(fold, recipe, seed, partial(schedule, every), parts=("head",)):
        said = {OURS: (look.probabilities, 0.0)}
        if "head" in look.alone:
            said[NETWORK] = (look.alone["head"], look.solver_seconds)
        for name, (probabilities, spared) in said.items():
            accuracy = score(probabilities, fold.held_out_labels, fold.classes)["accuracy"]
            found[name].append(
                {
                    "step": look.step,
                    "seconds": round(look.seconds - spared, 3),
                    "compile_seconds": round(look.compile_seconds, 3),
                    "validation_seconds": round(look.validation_seconds, 3),
                    "accuracy": round(accuracy, 5),
                }
            )
        if limit is not None and look.seconds >= limit:
            break
    return {
        name: {"prepare_seconds": prepared, "points": points}
        for name, points in found.items()
        if points
    }


def linear(data: Dataset, name: str, seed: int, fraction: float) -> dict:
    train, held_out, _ = split_validation(data.train, fraction, seed)
    classes = len(data.classes)
    fitted = LINEAR[name](train.texts, train.labels, held_out.texts, classes=classes, seed=seed)
    accuracy = score(fitted.probabilities, held_out.labels, data.classes)["accuracy"]
    return {"points": [{"seconds": round(fitted.seconds, 3), "accuracy": round(accuracy, 5)}]}


def tutorial(log: Path, data: Dataset) -> dict:
    """The run that a log tells of; as the tutorial has it, or its name says what is not."""
    head, points = read_log(log)
    if head["data"] != data.name or head["train"] + head["validation"] != len(data.train):
        raise InputError(
            f"{log} is of other data: {head['data']}, {head['train'] + head['validation']:,} training texts; "
            f"here {data.name}, {len(data.train):,}"
        )
    if not points:
        raise InputError(f"{log} has no validation yet; wait, or write it with --validate-every N")
    changes = {
        f"{head['attention']} attention": head["attention"] != "eager",
        head["dtype"]: head["dtype"] != "float32",
        "fused AdamW": head["fused"],
        f"batches of {head['batch']}": head["batch"] != 16,
        f"{head['length']} tokens": head["length"] != 256,
        head["tokenizer"]: head["tokenizer"] != "gpt2",
        head["device"]: head["device"] != "cpu",
    }
    name = ", ".join([TUTORIAL, *(words for words, changed in changes.items() if changed)])
    return {"contender": name, "seed": head["seed"], "log": head, "points": points}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", default="imdb", help="as train.imdb takes it (default: imdb)")
    add("--seeds", type=int, default=SEEDS, help=f"how many (default: {SEEDS})")
    add("--every", type=int, default=EVERY, metavar="N", help=f"steps between scores at first (default: {EVERY})")  # fmt: skip
    add("--seconds", type=float, metavar="S", help="of training, then a run of ours ends (default: the whole recipe)")  # fmt: skip
    add("--tutorial", type=Path, action="append", default=[], metavar="LOG", help="of bench.tutorial_torch; again for more")  # fmt: skip
    add_output(parser)
    return parser


def main(arguments: list[str] | None = None, recipe: Recipe = FAST) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = make_parser()
    options = parser.parse_args(arguments)
    for name in ("seeds", "every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be 1 or more")
    if options.seconds is not None and not options.seconds > 0:
        parser.error(f"--seconds must be above 0; got {options.seconds:g}")
    path = options.docs / "results/race.json"
    if options.page:
        names = ("command", "data", "machine", "runs")
        return rewrite(path, PROGRAM, names, lambda results: write(results, options.docs))
    try:
        data = load(options.data)
        logs = [tutorial(log, data) for log in options.tutorial]
    except (DataError, InputError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    results = {
        "command": without_paths([*PROGRAM.split(), *arguments]),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "data": data.source,
        "machine": machine.describe(),
        "every": options.every,
        "seconds": options.seconds,
    }
    fraction = recipe.validation_fraction
    setting = f"every {options.every} steps, {options.seconds or 'all'} seconds: {recipe!r}"
    settings = dict.fromkeys([OURS, *([NETWORK] if recipe.model.ngrams else [])], setting)
    settings |= {name: f"{fraction} held out" for name in LINEAR}
    kept = [
        run
        for run in _kept(path, results)
        if settings.get(run["contender"]) == run.get("setting")
        and not (logs and run["contender"].startswith(TUTORIAL))
    ]
    results["runs"] = logs + kept
    if results["runs"]:
        write_results(path, results)
        write(results, options.docs)
    done = {(run["contender"], run["seed"]) for run in kept}
    for seed in range(options.seeds):
        for name in (OURS, *LINEAR):
            if (name, seed) in done:
                continue
            if name == OURS:
                runs = ours(data, recipe, seed, options.every, options.seconds)
            else:
                runs = {name: linear(data, name, seed, fraction)}
            for contender, run in runs.items():
                results["runs"].append(
                    {
                        "contender": contender,
                        "seed": seed,
                        "setting": settings[contender],
                        "load_average": machine.load_average(),
                        **run,
                    }
                )
                passed = {bar: seconds_until(run["points"], bar) for bar in BARS}
                times = (
                    f"{100 * bar:g}% {'-' if s is None else f'{s:.1f} s'}"
                    for bar, s in passed.items()
                )
                print(f"seed {seed}  {'  '.join(times)}  {contender}", flush=True)
            write_results(path, results)
            write(results, options.docs)
    return 0


def write(results: dict, docs: Path) -> list[Path]:
    """The page and its figure; their paths."""
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    figure = draw(results, docs / "figures/race.svg")
    return [write_page(docs / "research/race.md", page(results)), figure]


def _kept(path: Path, results: dict) -> list[dict]:
    """The runs of before on the same data; times of another machine would be another race."""
    if not path.exists():
        return []
    before = json.loads(path.read_text(encoding="utf-8"))
    same = before["data"] == results["data"] and all(
        before["machine"][name] == results["machine"][name] for name in ("processor", "cores")
    )
    return before["runs"] if same else []


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)  # every run compiles its step
    sys.exit(main())
