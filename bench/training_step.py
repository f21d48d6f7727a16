"""Compare training steps and inference of the tutorial's classifier with PyTorch, interleaved.

    python -m bench.training_step
    python -m bench.training_step --small --docs DIR    every subject once, with a few features
    python -m bench.training_step --page                measure nothing, write the page

The model is `train.imdb --recipe tutorial` in its full size, and the step is
`train.trainer.step.make_train_step` as the training program runs it. PyTorch's versions are those
of bench/peers/tutorial_model.py: eager as in the tutorial, with PyTorch's own attention (sdpa), and
tuned (sdpa, autocast to bfloat16, fused AdamW). All begin with the same weights. They are timed
only after their logits, and the losses of two steps without dropout, agree with those of eager
PyTorch. Tokens are random, and about a third is padding. Each contestant runs in its own process:
ours with the memory settings of transformer_jax/runtime/malloc.py, PyTorch's with and without. The
numbers are written to docs/results/training_step.json, the tables to
docs/benchmarks/training-step.md.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bench.measure import machine
from bench.measure.harness import Disagreement
from bench.measure.turns import summary, take_turns
from bench.pages.markdown import milliseconds, origin, quotient, table
from bench.pages.program import Program
from bench.peers.contender import sizes, start
from bench.peers.tutorial_classifier import BATCHES, CONTESTANTS, OURS, batches
from train.recipes.imdb import TUTORIAL, Recipe
from transformer_jax.runtime.errors import InputError

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for child processes

# Largest difference of logits or losses over the largest one. bfloat16 keeps three digits of every
# activation.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}


# The recipe of --small.
SMALL = replace(
    TUTORIAL,
    model=replace(
        TUTORIAL.model,
        vocab_size=50,
        max_length=8,
        encoder=replace(
            TUTORIAL.model.encoder, num_layers=1, embed_dim=16, num_heads=2, hidden_dim=16
        ),
    ),
)
TRAINED = (
    OURS,
    f"{OURS}, bfloat16",
    f"{OURS}, memory given back",
    "eager",
    "eager, memory kept",
    "sdpa",
    "tuned",
)
# Rows, length, dropout rate (None: inference) and contestants of each subject.
SUBJECTS = {
    "step": (16, 256, 0.1, TRAINED),
    "step without dropout": (16, 256, 0.0, (OURS, "eager", "eager, memory kept")),
    "inference of one short text": (1, 32, None, (OURS, "eager")),
    "inference of one text": (1, 256, None, (OURS, "eager")),
    "inference of a batch": (64, 256, None, (OURS, f"{OURS}, bfloat16", "eager", "sdpa, bfloat16")),
}  # fmt: skip


def check(calls: dict[str, Callable[[], Any]], count: int) -> dict[str, float]:
    """Return how far each contestant is from eager PyTorch, in `count` calls.

    Raises Disagreement if one computes other values.
    """
    values = {name: np.stack([call() for _ in range(count)]) for name, call in calls.items()}
    expected = values["eager"]
    errors = {}
    for name, value in values.items():
        worst = float(np.abs(value - expected).max() / np.abs(expected).max())
        errors[name] = worst
        if not worst <= TOLERANCE[CONTESTANTS[name].dtype]:  # NaN too
            raise Disagreement(f"{name} computes something else: off by {worst:.2g} of the largest")
    return errors


def measure(recipe: Recipe, subject: str, *, rounds: int, seconds: float, seed: int) -> dict:
    """Check all contestants without dropout, then time them with it, interleaved."""
    rows, length, dropout, names = SUBJECTS[subject]
    found = batches(recipe, rows, min(length, recipe.model.max_length), seed)
    settings = {
        "rows": rows,
        "length": found[0].tokens.shape[1],
        "seed": seed,
        "sizes": sizes(recipe),
    }
    with ExitStack() as stack:
        without = None if dropout is None else 0.0
        calls = start(stack, names, settings | {"dropout": without})
        errors = check(calls, BATCHES if dropout is None else 2)
        if dropout:
            stack.close()
            calls = start(stack, names, settings | {"dropout": dropout})
            first = {name: [float(call()), float(call())] for name, call in calls.items()}
            if not np.isfinite(list(first.values())).all():
                raise Disagreement(f"a loss is not finite: {first}")
        times = take_turns(calls, seconds, least=rounds)
        kept = [name for name, call in calls.items() if call.kept]
    tokens = sum(int(batch.is_token.sum()) for batch in found)
    by = {name: summary(times, name) for name in names if CONTESTANTS[name].attention is None}
    return {
        "subject": subject,
        "rows": rows,
        "length": found[0].tokens.shape[1],
        "dropout": dropout,
        "padding": 1 - tokens / (BATCHES * found[0].tokens.size),
        "errors": errors,
        "freed_memory_kept": kept,
        "rounds": by[OURS]["rounds"],
        "seconds": by[OURS]["seconds"],
        # The time of the outer name over that of the inner name.
        "ratios": {name: found["ratios"] for name, found in by.items()},
        "load_average": machine.load_average(),
    }


def main_number(subjects: Sequence[dict]) -> list[str]:
    found = next((each for each in subjects if each["subject"] == "step"), None)
    if found is None:
        return []
    return [
        "",
        f"In float32 a training step takes {milliseconds(found['seconds'][OURS])} ms, "
        f"{quotient(found['ratios'][OURS].get('eager'))} of the time of the tutorial's own PyTorch "
        "program (median and quartiles).",
    ]


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page."""
    size = "with a few features" if results["small"] else "in its full size"
    yield from (
        "# A training step compared with PyTorch",
        "",
        "This page compares the time of a training step, and of inference, with PyTorch. It is for "
        "readers who train or run a classifier on a CPU.",
        *main_number(results["subjects"]),
        "",
        f"The model is the tutorial's classifier {size} (`train.imdb --recipe tutorial`). `eager` "
        "is the tutorial's own PyTorch program, `sdpa` uses PyTorch's fused attention, and `tuned` "
        "adds autocast to bfloat16 and fused AdamW. All begin with the same weights, and their "
        "results were checked to agree before timing.",
        "",
        "Each runs in its own process. Ours keeps freed memory "
        "(`transformer_jax/runtime/malloc.py`), as `train.imdb` does; PyTorch does so only where "
        "the row says `memory kept`. Calls are interleaved. A ratio is the time of ours over that "
        "of the other within a round, as median and quartiles; below 1 ours is faster.",
    )
    for found in results["subjects"]:
        ratios = found["ratios"]
        dropout = "" if found["dropout"] is None else f", dropout {found['dropout']}"
        yield from (
            "",
            f"## {found['subject'].capitalize()}",
            "",
            f"{found['rows']} x {found['length']} tokens, {100 * found['padding']:.0f}% of them "
            f"padding{dropout}; {found['rounds']} rounds.",
            "",
        )
        yield from table(
            ["", "ms", *(f"{one} ÷ this" for one in ratios)],
            (
                [name, milliseconds(seconds), *(quotient(of.get(name)) for of in ratios.values())]
                for name, seconds in found["seconds"].items()
            ),
        )
    yield from origin("training_step.json", [results])


PROGRAM = Program(
    "training_step", __doc__, "results/training_step.json", "benchmarks/training-step.md",
    ("small", "subjects"), page, has_small=True,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--subjects", nargs="+", choices=SUBJECTS, default=tuple(SUBJECTS), help="default: all")
    add("--rounds", type=int, default=9, help="minimum number of rounds (default: 9)")
    add("--seconds", type=float, default=2.0, help="per contestant and subject (default: 2)")
    add("--seed", type=int, default=0, help="of weights and tokens (default: 0)")
    options = PROGRAM.parse(parser, arguments)
    if options.rounds < 1 or not options.seconds >= 0:
        parser.error("--rounds must be 1 or more, --seconds 0 or more")
    if options.small:
        options.rounds, options.seconds = 1, 0.0
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("needs PyTorch to compare with: pip install torch==2.13.0") from None
    how = {"rounds": options.rounds, "seconds": options.seconds, "seed": options.seed}
    subjects = []
    for subject in options.subjects:
        subjects.append(measure(SMALL if options.small else TUTORIAL, subject, **how))
        times = [f"{name} {1e3 * s:.4g} ms" for name, s in subjects[-1]["seconds"].items()]
        print(f"{subject}: {', '.join(times)}", flush=True)
    return PROGRAM.stamp(options) | {
        "seed": options.seed,
        "small": options.small,
        "subjects": subjects,
    }


if __name__ == "__main__":
    sys.exit(main())
