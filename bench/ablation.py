"""Measure what each part of the default recipe of `train.imdb` contributes.

    python -m bench.ablation --data PATH        data as train.imdb takes them
    python -m bench.ablation --small --docs DIR a few features, some reviews of the sample
    python -m bench.ablation --page             measure nothing, write the page

Each part is removed in turn, over several seeds. A fifth of the training reviews, whole movies, is
held out. A seed draws the held-out movies, the weights, the batches and the dropout, so a variant
differs from the whole recipe only by its change. The test split is not read. Results are stored
after every run, and a new start skips the finished runs. Numbers are written to
docs/results/ablation.json, the page to docs/research/ablation.md.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, stdev

from bench.measure import machine
from bench.pages.markdown import how_measured, table
from bench.pages.program import Program
from bench.peers.recipe_runs import Fold, ends_of_epochs, fold_of, looks
from train.classifier.calibration import log_probabilities, smoothed_targets, weights_of
from train.data.load import load
from train.data.sample_reviews import sample
from train.evaluation.metrics import score
from train.recipes.imdb import FAST, Recipe

WHOLE = "the whole recipe"
NO_ATTENTION = "attention removed: a patch sees itself only"
HELD_OUT = 0.2
SEEDS = 3


# The recipe of --small: every part, with few features.
SMALL = replace(
    FAST,
    tokenizer="word:200",
    model=replace(
        FAST.model,
        max_length=20,
        region_features=4,
        ngram_bits=10,
        encoder=replace(FAST.model.encoder, embed_dim=8, hidden_dim=8),
    ),
    fit=replace(FAST.fit, epochs=1),
    buckets=1,
)


def _model(recipe: Recipe, **changes) -> Recipe:
    return replace(recipe, model=replace(recipe.model, **changes))


def _rates(recipe: Recipe, *names: str) -> Recipe:
    """Remove the larger learning rates of the named parameters."""
    optimizer = recipe.fit.optimizer
    faster = tuple((name, times) for name, times in optimizer.rates.faster if name not in names)
    rates = replace(optimizer.rates, faster=faster)
    return replace(recipe, fit=replace(recipe.fit, optimizer=replace(optimizer, rates=rates)))


VARIANTS = {
    WHOLE: lambda recipe: recipe,
    NO_ATTENTION: lambda r: _model(r, attends=False),
    "cross-entropy instead of the squared hinge": lambda r: replace(r, margin=False),
    "the encoder as its norm scales it": lambda r: _model(r, encoder_scale=1.0),
    "the head at the rate of the encoder": lambda r: _rates(r, "head"),
    "the words at the rate of the encoder": lambda r: _rates(r, "regions.region"),
    "in bfloat16, not float32": lambda r: replace(r, dtype="bfloat16"),
    "no word masked": lambda r: replace(r, token_dropout=0.0),
    "regions of one word": lambda r: _model(r, region_width=1),
    "the first 300 words and the last, instead of 600": lambda r: _model(r, max_length=300),
}


def scores_by_epoch(fold: Fold, recipe: Recipe, seed: int) -> Iterator[dict]:
    """Yield the scores of the averaged weights on the held-out reviews after every epoch."""
    for look in looks(fold, recipe, seed, ends_of_epochs, parts=("head", "evidence")):
        found = score(look.probabilities, fold.held_out_labels, fold.classes)
        targets = smoothed_targets(fold.held_out_labels, len(fold.classes))
        (weight,) = weights_of([log_probabilities(look.probabilities)], targets)
        yield {
            "accuracy": round(found["accuracy"], 5),
            "loss": round(look.loss, 4),
            "temperature": round(1 / weight, 3),
            "seconds": round(look.seconds, 1),
            "alone": {
                part: round(score(said, fold.held_out_labels, fold.classes)["accuracy"], 5)
                for part, said in look.alone.items()
            },
        }


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page from the contents of the JSON file."""
    runs = results["runs"]
    yield "# What each part of the recipe contributes\n"
    yield (
        "This page shows how the accuracy of the default recipe of `train.imdb` changes when one "
        "of its parts is removed. It is for readers who want to simplify or to change the recipe.\n"
    )
    runs = [*runs, *_by_parts(runs)]
    whole = {run["seed"]: run for run in runs if run["variant"] == WHOLE}
    rows = []
    for variant in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == variant]
        accuracies = [100 * run["epochs"][-1]["accuracy"] for run in own]
        apart = [
            100 * (run["epochs"][-1]["accuracy"] - whole[run["seed"]]["epochs"][-1]["accuracy"])
            for run in own
            if run["seed"] in whole
        ]
        rows.append(
            [
                variant,
                f"{mean(accuracies):.2f}%",
                "" if variant == WHOLE or not apart else _spread(apart),
                f"{100 * mean(run['epochs'][0]['accuracy'] for run in own):.2f}%",
                f"{mean(run['epochs'][-1]['seconds'] for run in own):.0f}",
                len(own),
            ]
        )
    header = ["", "accuracy", "against the whole, points", "after one epoch", "seconds", "seeds"]
    yield from table(header, rows)
    yield ""
    yield (
        "The accuracy is the mean over the seeds, after the last epoch and with the averaged "
        "weights. A fifth of the training reviews, whole movies, is held out for it. The seed "
        "draws the held-out movies, the weights and the batches, the same for all rows. Nothing "
        "is selected on this accuracy, and the test split is not read.\n"
    )
    yield (
        "The standard error over the seeds follows +-. One accuracy is known to about +-0.8 "
        "points. Differences between runs of one seed are known better, since both are evaluated "
        "on the same reviews."
    )
    yield from how_measured(
        "ablation.json",
        [f"{results['command']}  # {results['date']}"],
        [
            f"- Data: {results['data']}",
            "- Seconds are those of the training steps, on machines that may have had other work: "
            f"{_machines(results['runs'])}",
        ],
    )


def _by_parts(runs: list[dict]) -> Iterator[dict]:
    """Yield runs that score single parts of the trained models; nothing more is trained."""
    for variant, part, name in (
        (WHOLE, "evidence", "the n-grams alone"),
        (WHOLE, "head", "n-grams removed: the network alone"),
        (NO_ATTENTION, "head", "both removed: the network alone, without attention"),
    ):
        for run in runs:
            if run["variant"] == variant and run["epochs"][-1].get("alone"):
                epochs = [epoch | {"accuracy": epoch["alone"][part]} for epoch in run["epochs"]]
                yield run | {"variant": name, "epochs": epochs}


def _machines(runs: list[dict]) -> str:
    """Return the processors, and how many runs each made."""
    made = Counter(
        f"{run['machine']['processor']}, {run['machine']['cores']} cores" for run in runs
    )
    return "; ".join(f"{processor} ({count} runs)" for processor, count in made.most_common())


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:+.2f}"
    return f"{mean(values):+.2f} +- {stdev(values) / len(values) ** 0.5:.2f}"


PROGRAM = Program(
    "ablation", __doc__, "results/ablation.json", "research/ablation.md",
    ("command", "data", "runs"), page, has_small=True,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None, recipe: Recipe = FAST) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--data", help="data as train.imdb takes them (default: imdb)")
    add("--seeds", type=int, help=f"number of seeds (default: {SEEDS})")
    add("--only", action="append", metavar="WORDS", help="variants that begin so; repeatable")
    options = PROGRAM.parse(parser, arguments)
    if options.small:
        recipe = SMALL
    if options.seeds is None:
        options.seeds = 1 if options.small else SEEDS
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    chosen = {
        name: change
        for name, change in VARIANTS.items()
        if not options.only or name.startswith(tuple(options.only))
    }
    if not chosen:
        parser.error(f"--only: the variants are {'; '.join(VARIANTS)}")
    return PROGRAM.run(options, partial(measured, options, recipe, chosen))


def measured(
    options: argparse.Namespace, recipe: Recipe, chosen: dict[str, Callable[[Recipe], Recipe]]
) -> dict:
    """Train every variant with every seed and return all runs.

    Each run is stored when it ends; stored runs are not repeated.
    """
    if options.small and options.data is None:
        data = sample(train=400, test=2)
    else:
        data = load(options.data or "imdb")
    results = {"data": data.source, "runs": _kept(options, recipe)}
    done = {(run["variant"], run["seed"]) for run in results["runs"]}
    here = machine.describe()  # stored with every run, since runs may be made on several machines
    for seed in range(options.seeds):
        for variant, change in chosen.items():
            if (variant, seed) in done:
                continue
            changed = change(recipe)
            epochs = list(scores_by_epoch(fold_of(data, changed, seed, HELD_OUT), changed, seed))
            print(f"seed {seed}  {epochs[-1]['accuracy']:.4f}  {variant}", flush=True)
            run = {"variant": variant, "seed": seed, "recipe": repr(changed), "machine": here}
            results["runs"].append(run | {"epochs": epochs})
            PROGRAM.write(PROGRAM.stamp(options) | results, options.docs)
    return PROGRAM.stamp(options) | results


def _kept(options: argparse.Namespace, recipe: Recipe) -> list[dict]:
    """Return the stored runs that this recipe would repeat."""
    if not PROGRAM.path(options.docs).exists():
        return []
    asked = {variant: repr(change(recipe)) for variant, change in VARIANTS.items()}
    runs = PROGRAM.read(options.docs)["runs"]
    return [run for run in runs if asked.get(run["variant"]) == run["recipe"]]


if __name__ == "__main__":
    sys.exit(main())
