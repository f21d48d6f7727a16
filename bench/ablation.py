"""What each part of the default recipe of `train.imdb` brings: each is taken away, over several seeds.

    python -m bench.ablation --data PATH        as train.imdb takes it

A fifth of the training reviews, whole movies, is held out; a seed draws these, the weights, the batches and the dropout,
so that a variant differs from the whole by its change alone. The test split is not read. What is done is kept
after every run and not done again: stop it and go on. Numbers go to docs/results/ablation.json, the page to
docs/ablation.md.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.memory import keep_freed_memory

    keep_freed_memory()

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev

import jax
import numpy as np
from flax import nnx
from tqdm import tqdm

from bench import machine
from bench.tables import table
from train.calibration import temperature_of
from train.classification import make_loss
from train.corpus import DataError, Dataset
from train.data import load, split_validation
from train.imdb import shapes
from train.optimizers import make_optimizer
from train.recipes import FAST, Recipe
from train.scores import score
from train.step import TrainState, make_train_step
from transformer_jax.batching import Batches, epoch_plans
from transformer_jax.files import write_text
from transformer_jax.models import TextClassifier
from transformer_jax.predict import Scorer
from transformer_jax.tokenizers import train_tokenizer

PROGRAM = "python -m bench.ablation"
WHOLE = "the whole recipe"
HELD_OUT = 0.2
SEEDS = 3


def _model(recipe: Recipe, **changes) -> Recipe:
    return replace(recipe, model=replace(recipe.model, **changes))


def _rates(recipe: Recipe, *names: str) -> Recipe:
    """Without the larger steps of the parameters of these names."""
    optimizer = recipe.fit.optimizer
    faster = tuple((name, times) for name, times in optimizer.rates.faster if name not in names)
    rates = replace(optimizer.rates, faster=faster)
    return replace(recipe, fit=replace(recipe.fit, optimizer=replace(optimizer, rates=rates)))


VARIANTS = {
    WHOLE: lambda recipe: recipe,
    "attention removed: a patch sees itself alone": lambda r: _model(r, attends=False),
    "cross-entropy instead of the squared hinge": lambda r: replace(r, margin=False),
    "the encoder as loud as its norm makes it": lambda r: _model(r, encoder_scale=1.0),
    "the head at the rate of the encoder": lambda r: _rates(r, "head"),
    "the words at the rate of the encoder": lambda r: _rates(r, "regions.region"),
    "in bfloat16, not float32": lambda r: replace(r, dtype="bfloat16"),
    "no word hidden": lambda r: replace(r, token_dropout=0.0),
    "regions of one word": lambda r: _model(r, region_width=1),
    "the first 300 words and the last, instead of 600": lambda r: _model(r, max_length=300),
}


@dataclass(frozen=True)
class Fold:
    """What a seed draws of the data, as a recipe reads it."""

    train: list[np.ndarray]
    held_out: list[np.ndarray]
    train_labels: np.ndarray
    held_out_labels: np.ndarray
    tokenizer: object
    buckets: tuple[int, ...]
    batch_tokens: int


def fold_of(data: Dataset, recipe: Recipe, seed: int) -> Fold:
    train, held_out, _ = split_validation(data.train, HELD_OUT, seed)
    tokenizer = train_tokenizer(recipe.tokenizer, train.texts)
    encoded = [
        tokenizer.encode(split.texts, recipe.model.max_length, recipe.truncate)
        for split in (train, held_out)
    ]
    return Fold(*encoded, train.labels, held_out.labels, tokenizer, *shapes(encoded, recipe, None))


def scores_by_epoch(fold: Fold, recipe: Recipe, seed: int, classes) -> Iterator[dict]:
    """Trains as the program does; after every epoch what the averaged weights say of the held-out reviews."""
    config = replace(recipe.model, vocab_size=fold.tokenizer.vocab_size, num_classes=len(classes))
    model = TextClassifier(config, rngs=nnx.Rngs(seed))
    lengths = [len(ids) for ids in fold.train]

    def batches(epoch: int) -> Batches:
        plans = epoch_plans(lengths, fold.buckets, fold.batch_tokens, seed=seed, epoch=epoch)
        return Batches(plans, fold.train, fold.train_labels, fold.tokenizer.pad_id, 1)

    epochs = recipe.fit.epochs
    optimizer = make_optimizer(recipe.fit.optimizer, sum(len(batches(e)) for e in range(epochs)))
    loss = make_loss(
        fold.tokenizer,
        token_dropout=recipe.token_dropout,
        smoothing=recipe.label_smoothing,
        margin=recipe.margin,
    )
    graph, params = nnx.split(model, nnx.Param)
    config = replace(recipe.fit, seed=seed, dtype=recipe.dtype or "float32")
    step = make_train_step(graph, loss, optimizer, config)
    state = TrainState.first(params, optimizer)
    scorer = Scorer(model, fold.tokenizer.pad_id, fold.buckets, fold.batch_tokens)
    seconds = 0.0
    for epoch in range(epochs):
        begun = time.perf_counter()
        values = []
        for batch in tqdm(batches(epoch), desc=f"epoch {epoch + 1}", unit="step", leave=False):
            state, value = step(state, batch)
            values.append(value)
        values = jax.device_get(values)
        seconds += time.perf_counter() - begun
        probabilities = scorer(fold.held_out, state.average)
        found = score(probabilities, fold.held_out_labels, classes)
        yield {
            "accuracy": round(found["accuracy"], 5),
            "loss": round(float(np.mean(values)), 4),
            "temperature": round(temperature_of(probabilities, fold.held_out_labels), 3),
            "seconds": round(seconds, 1),
        }


def page(results: dict) -> Iterator[str]:
    """The results as a page: what stands behind every number is in the JSON."""
    runs = results["runs"]
    yield "# What each part of the recipe brings\n"
    yield (
        f"`{results['command']}` trained the default recipe of `train.imdb` and variants of it, each without one of its "
        f"parts, on {results['data']}. A fifth of the training reviews, whole movies, is held out: a seed draws them, the "
        "weights and the batches, the same for all rows. Accuracy after the last epoch, by the averaged "
        "weights; nothing is chosen on it, and the test split is not read. One accuracy is good to about +-0.8 points; "
        "differences of runs with one seed are better known, since they judge the same reviews.\n"
    )
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
                str(len(own)),
            ]
        )
    header = ["", "accuracy", "against the whole, points", "after one epoch", "seconds", "seeds"]
    yield from table(header, rows)
    yield ""
    yield (
        "Behind +- stands the standard error over the seeds. Seconds are those of the training steps, on a machine that "
        f"may have had other work: {results['machine']['processor']}, {results['machine']['cores']} cores, "
        f"{results['date']}."
    )


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:+.2f}"
    return f"{mean(values):+.2f} +- {stdev(values) / len(values) ** 0.5:.2f}"


def main(arguments: list[str] | None = None, recipe: Recipe = FAST) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", default="imdb", help="as train.imdb takes it (default: imdb)")
    add("--seeds", type=int, default=SEEDS, help=f"how many (default: {SEEDS})")
    add("--only", action="append", metavar="WORDS", help="variants that begin so; again for more")
    add("--docs", type=Path, default=Path("docs"), help="where to write (docs)")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    chosen = {
        name: change
        for name, change in VARIANTS.items()
        if not options.only or name.startswith(tuple(options.only))
    }
    if not chosen:
        parser.error(f"--only: the variants are {'; '.join(VARIANTS)}")
    try:
        data = load(options.data)
    except DataError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    path = options.docs / "results/ablation.json"
    named = "PATH" if Path(options.data).exists() else options.data
    words = [*PROGRAM.split(), *(named if a == options.data else a for a in arguments)]
    results = {
        "command": shlex.join(words),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "data": data.source,
        "machine": machine.describe(),
        "runs": _kept(path, recipe),
    }
    done = {(run["variant"], run["seed"]) for run in results["runs"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        for variant, change in chosen.items():
            if (variant, seed) in done:
                continue
            changed = change(recipe)
            fold = fold_of(data, changed, seed)
            epochs = list(scores_by_epoch(fold, changed, seed, data.classes))
            print(f"seed {seed}  {epochs[-1]['accuracy']:.4f}  {variant}", flush=True)
            results["runs"].append(
                {"variant": variant, "seed": seed, "recipe": repr(changed), "epochs": epochs}
            )
            write_text(path, json.dumps(results, indent=1) + "\n")
            write_text(options.docs / "ablation.md", "\n".join(page(results)) + "\n")
    return 0


def _kept(path: Path, recipe: Recipe) -> list[dict]:
    """The runs of before that this recipe would repeat."""
    if not path.exists():
        return []
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    asked = {variant: repr(change(recipe)) for variant, change in VARIANTS.items()}
    return [run for run in runs if asked.get(run["variant"]) == run["recipe"]]


if __name__ == "__main__":
    sys.exit(main())
