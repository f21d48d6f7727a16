"""Measure the training time until a classifier of reviews first reaches a held-out accuracy.

    python -m bench.imdb_race --data PATH --tutorial LOG    LOG is of bench.tutorial_torch
    python -m bench.imdb_race --page                        measure nothing, write the page

Ours is the default recipe of `train.imdb`, evaluated with the averaged weights during training,
over several seeds. It is compared with linear models, which are fitted once and so give one point
each, and with the tutorial's program. The latter is not run here but read from logs of `python -m
bench.tutorial_torch --data PATH --log LOG --validate-every N`. A seed draws the held-out reviews,
whole movies, the same for all. The test split is not read. Results are stored after every run, and
a new start skips the finished runs; the named logs are read again. Numbers are written to
docs/results/race.json, the page to docs/research/race.md.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax

from bench.measure import machine
from bench.pages.program import Program
from bench.pages.race import BARS, NETWORK, OURS, TUTORIAL, figures, page
from bench.peers import nb_svm
from bench.peers.curves import read_log, seconds_until
from bench.peers.recipe_runs import fold_of, looks
from train.data.dataset import Dataset
from train.data.load import load, split_validation
from train.evaluation import baseline
from train.evaluation.metrics import score
from train.recipes.imdb import FAST, Recipe
from transformer_jax.runtime.errors import InputError

SEEDS = 5
EVERY = 5  # steps between evaluations at first
LATER = 20  # from EVERY * LATER steps on, evaluate each time after a LATER-th more steps

# Each has the signature of `linear_baseline` and returns `probabilities` and `seconds`.
LINEAR: dict[str, Callable] = {
    baseline.NAME: baseline.linear_baseline,
    nb_svm.NAME: nb_svm.nb_svm,
}


def schedule(every: int, steps: list[int]) -> list[int]:
    """Return the steps to evaluate after.

    The distance is `every` steps at first, and later a twentieth of the steps done.
    """
    found, step, total = [], 0, sum(steps)
    while step < total:
        step = min(step + max(every, step // LATER), total)
        found.append(step)
    return found


def ours(
    data: Dataset, recipe: Recipe, seed: int, every: int, limit: float | None
) -> dict[str, dict]:
    """Train the recipe once; return the points of the whole and of its network without n-grams.

    One training gives both, because neither part learns from the other. `prepare_seconds` is the
    time before the clock starts.
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
    """Read a run of the tutorial's program from its log.

    Its name lists every setting that differs from the tutorial's. Raises InputError for a log of
    other data and for one without a validation.
    """
    head, points = read_log(log)
    if head["data"] != data.name or head["train"] + head["validation"] != len(data.train):
        raise InputError(
            f"{log} is of other data: {head['data']}, {head['train'] + head['validation']:,} "
            f"training texts; here {data.name}, {len(data.train):,}"
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


PROGRAM = Program(
    "imdb_race", __doc__, "results/race.json", "research/race.md",
    ("command", "data", "machine", "runs"), page, figures,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None, recipe: Recipe = FAST) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--data", default="imdb", help="data as train.imdb takes them (default: imdb)")
    add("--seeds", type=int, default=SEEDS, help=f"number of seeds (default: {SEEDS})")
    add(
        "--every",
        type=int,
        default=EVERY,
        metavar="N",
        help=f"steps between evaluations at first (default: {EVERY})",
    )
    add(
        "--seconds",
        type=float,
        metavar="S",
        help="training time after which a run of ours ends (default: the whole recipe)",
    )
    add(
        "--tutorial",
        type=Path,
        action="append",
        default=[],
        metavar="LOG",
        help="log of bench.tutorial_torch; repeatable",
    )
    options = PROGRAM.parse(parser, arguments)
    for name in ("seeds", "every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be 1 or more")
    if options.seconds is not None and not options.seconds > 0:
        parser.error(f"--seconds must be above 0; got {options.seconds:g}")
    return PROGRAM.run(options, partial(measured, options, recipe))


def measured(options: argparse.Namespace, recipe: Recipe) -> dict:
    """Run every contender with every seed and return all runs.

    Each run is stored when it ends; stored runs are not repeated.
    """
    data = load(options.data)
    logs = [tutorial(log, data) for log in options.tutorial]
    of_run = {"data": data.source, "every": options.every, "seconds": options.seconds}
    settings = settings_of(options, recipe)
    kept = [
        run
        for run in _kept(options, data)
        if settings.get(run["contender"]) == run.get("setting")
        and not (logs and run["contender"].startswith(TUTORIAL))
    ]
    done = {(run["contender"], run["seed"]) for run in kept}
    runs = logs + kept
    for seed in range(options.seeds):
        for name in (OURS, *LINEAR):
            if (name, seed) in done:
                continue
            if name == OURS:
                found = ours(data, recipe, seed, options.every, options.seconds)
            else:
                found = {name: linear(data, name, seed, recipe.validation_fraction)}
            for contender, run in found.items():
                setting = {"contender": contender, "seed": seed, "setting": settings[contender]}
                runs.append(setting | {"load_average": machine.load_average(), **run})
                print(f"seed {seed}  {times(run['points'])}  {contender}", flush=True)
            PROGRAM.write(PROGRAM.stamp(options) | of_run | {"runs": runs}, options.docs)
    return PROGRAM.stamp(options) | of_run | {"runs": runs}


def settings_of(options: argparse.Namespace, recipe: Recipe) -> dict[str, str]:
    """Return the settings of each contender; a stored run with other settings is repeated."""
    setting = f"every {options.every} steps, {options.seconds or 'all'} seconds: {recipe!r}"
    names = [OURS, *([NETWORK] if recipe.model.ngrams else [])]
    held_out = f"{recipe.validation_fraction} held out"
    return dict.fromkeys(names, setting) | dict.fromkeys(LINEAR, held_out)


def times(points: Sequence[dict]) -> str:
    """Format the times of a run for the terminal: `80.74% 44.1 s  88% -`."""
    passed = {bar: seconds_until(points, bar) for bar in BARS}
    return "  ".join(
        f"{100 * bar:g}% {'-' if s is None else f'{s:.1f} s'}" for bar, s in passed.items()
    )


def _kept(options: argparse.Namespace, data: Dataset) -> list[dict]:
    """Return the stored runs on the same data and machine; other machines have other times."""
    if not PROGRAM.path(options.docs).exists():
        return []
    before, here = PROGRAM.read(options.docs), machine.describe()
    same = before["data"] == data.source and all(
        before["machine"][name] == here[name] for name in ("processor", "cores")
    )
    return before["runs"] if same else []


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)  # every run compiles its step
    sys.exit(main())
