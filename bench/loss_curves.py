"""Compare the loss of the tutorial's classifier in float32 and bfloat16 over its first steps.

    python -m bench.loss_curves --data PATH     as train.imdb takes it; default: the sample
    python -m bench.loss_curves --page          measure nothing, write the page

All runs have the same weights, batches and dropout bits; only the rounding of numbers differs. A
fourth run, in float32 with other dropout bits, is the yardstick: rounding may move the loss by no
more than chance does. *Short products* multiply in bfloat16, on machines that support it. Other
CPUs compute the same numbers with converted operands, so no time is measured. The numbers are
written to docs/results/loss_curves.json, page and picture to docs/benchmarks/loss-curves.md.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

import numpy as np
from flax import nnx
from matplotlib.figure import Figure
from tqdm import tqdm

from bench.measure.harness import Disagreement
from bench.pages.markdown import origin, table
from bench.pages.plots import subplots
from bench.pages.program import Program
from train.data.load import load
from train.evaluation.curves import smooth
from train.objectives.classification import make_loss
from train.optim.optimizers import make_optimizer
from train.recipes.imdb import TUTORIAL, Recipe
from train.trainer.step import TrainState, make_train_step
from transformer_jax.functional import precision
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.text.batching import Batch, Plan, make_batch
from transformer_jax.text.tokenizer import train_tokenizer

WINDOW = 30  # steps of the running mean that is compared
PLAIN, OTHER_BITS = "float32", "float32, other dropout bits"


@dataclass(frozen=True)
class Run:
    dtype: str
    colour: str
    seed: int = 0  # of the dropout bits
    short: bool = False  # bfloat16 products, forward and backward


RUNS = {
    PLAIN: Run("float32", "#0072b2"),
    "bfloat16": Run("bfloat16", "#009e73"),
    "bfloat16, short products": Run("bfloat16", "#d55e00", short=True),
    OTHER_BITS: Run("float32", "#999999", seed=1),
}


def losses(recipe: Recipe, tokenizer, found: list[Batch], run: Run, name: str) -> list[float]:
    """Train on the batches with the step of the training program; return the loss of each."""
    graph, params = nnx.split(TextClassifier(recipe.model, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = make_optimizer(recipe.fit.optimizer, len(found))
    loss = make_loss(tokenizer, token_dropout=0.0, smoothing=recipe.label_smoothing)
    step = make_train_step(
        graph, loss, optimizer, replace(recipe.fit, dtype=run.dtype, seed=run.seed)
    )
    state = TrainState.first(params, optimizer)
    values = []
    # A processor without short products computes them by conversion.
    with mock.patch.object(precision, "processor_has", lambda flag: run.short):
        for batch in tqdm(found, desc=name, unit="step"):
            state, value = step(state, batch)
            values.append(float(value))
    return values


def batches(recipe: Recipe, data: str, steps: int, rows: int, length: int):
    """Return the tokenizer and `steps` batches of the training split, in an order drawn once."""
    train = load(data).train
    tokenizer = train_tokenizer("word:20000", train.texts)
    epochs = range(1 + steps * rows // len(train))
    order = np.concatenate([np.random.default_rng(i).permutation(len(train)) for i in epochs])
    found = []
    for chosen in order[: steps * rows].reshape(steps, rows):
        encoded = tokenizer.encode([train.texts[i] for i in chosen], length, recipe.truncate)
        plan = Plan(rows, length, np.arange(rows, dtype=np.int32))
        found.append(make_batch(plan, encoded, np.asarray(train.labels)[chosen], tokenizer.pad_id))
    return tokenizer, found


def distances(curves: dict[str, list[float]]) -> dict[str, float]:
    """Return the largest distance of each running mean from that of float32."""
    means = {name: np.convolve(c, np.ones(WINDOW) / WINDOW, "valid") for name, c in curves.items()}
    return {
        name: float(np.abs(mean - means[PLAIN]).max())
        for name, mean in means.items()
        if name != PLAIN
    }


def figures(results: dict) -> dict[str, Figure]:
    """Draw the loss by step, and its distance from that of float32."""
    curves = {name: np.array(values) for name, values in results["losses"].items()}
    with subplots(1, 2, (10, 3.6)) as (figure, (left, right)):
        for name, values in curves.items():
            colour = RUNS[name].colour
            left.plot(smooth(values, WINDOW), color=colour, label=name)
            if name != PLAIN:
                right.plot(smooth(values - curves[PLAIN], WINDOW), color=colour)
        left.set(xlabel="step", ylabel=f"loss, mean of {WINDOW} steps")
        left.legend(frameon=False)
        right.set(xlabel="step", ylabel="loss minus that of float32")
    return {"loss-curves": figure}


def page(results: dict, shown: dict[str, str]) -> list[str]:
    """Return the lines of the page."""
    steps = len(results["losses"][PLAIN])
    header = ["", f"largest distance of the mean of {results['window']} steps from float32"]
    rows = ([name, f"{apart:.4f}"] for name, apart in results["largest_distance"].items())
    return [
        "# What rounding does to the loss",
        "",
        "This page shows that training in bfloat16 follows the loss of training in float32. It is "
        "for readers who want to train in bfloat16.",
        "",
        f"![loss by step, and its distance from float32]({shown['loss-curves']})",
        "",
        *table(header, rows),
        "",
        f"The tutorial's classifier is trained for {steps} steps by the training program's step, "
        "with the same weights, batches and dropout bits. *Short products* have bfloat16 operands "
        "forward and in both gradients, and are summed in float32. The yardstick is float32 with "
        "other dropout bits: rounding may move the loss by no more than chance does.",
        *origin("loss_curves.json", [results]),
    ]


PROGRAM = Program(
    "loss_curves", __doc__, "results/loss_curves.json", "benchmarks/loss-curves.md",
    ("window", "largest_distance", "losses"), page, figures,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None, recipe: Recipe = TUTORIAL) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--data", default="sample", help="data as train.imdb takes them (default: sample)")
    add("--steps", type=int, default=300, help="training steps (default: 300)")
    add("--rows", type=int, default=16, help="texts in a batch (default: 16)")
    add("--length", type=int, default=64, help="tokens of a text (default: 64)")
    options = PROGRAM.parse(parser, arguments)
    if options.steps < WINDOW:
        parser.error(f"--steps must be {WINDOW} or more")
    if options.rows < 1 or not 1 <= options.length <= recipe.model.max_length:
        parser.error(f"--rows must be 1 or more, --length 1 to {recipe.model.max_length}")
    return PROGRAM.run(options, partial(measured, options, recipe))


def measured(options: argparse.Namespace, recipe: Recipe) -> dict:
    """Train every run and return the results.

    Raises Disagreement if rounding moves the loss by more than other dropout bits do.
    """
    tokenizer, found = batches(recipe, options.data, options.steps, options.rows, options.length)
    recipe = replace(recipe, model=replace(recipe.model, vocab_size=tokenizer.vocab_size))
    curves = {name: losses(recipe, tokenizer, found, run, name) for name, run in RUNS.items()}
    apart = distances(curves)
    results = PROGRAM.stamp(options) | {
        "seed": 0,
        "window": WINDOW,
        "largest_distance": {name: round(d, 4) for name, d in apart.items()},
        "losses": {name: [round(x, 5) for x in curve] for name, curve in curves.items()},
    }
    for name, distance in apart.items():
        print(f"{name}: at most {distance:.4f} from float32")
    too_far = [name for name in apart if not apart[name] <= apart[OTHER_BITS]]
    if too_far:
        PROGRAM.write(results, options.docs)
        raise Disagreement(f"{', '.join(too_far)}: further from float32 than other dropout bits")
    return results


if __name__ == "__main__":
    sys.exit(main())
