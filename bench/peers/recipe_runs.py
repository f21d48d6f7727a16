"""Training by a recipe of `train.imdb` with evaluations on the way, for the ablation and the race.

It uses the split, batches, loss, optimizer and step of the training program, and evaluates the
averaged weights. There is no run folder: the caller decides what to keep of the evaluations.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float
from tqdm import tqdm

from train.classifier.build import FromScratch, batch_shapes
from train.classifier.calibration import only
from train.data.dataset import Dataset
from train.data.load import split_validation
from train.objectives.classification import make_loss
from train.optim.optimizers import make_optimizer
from train.recipes.imdb import Recipe
from train.trainer.step import TrainState, make_train_step
from transformer_jax.inference.classify import Scorer
from transformer_jax.text.batching import Batches, epoch_plans
from transformer_jax.text.tokenizer import train_tokenizer


@dataclass(frozen=True)
class Fold:
    """The data of one seed, split and tokenized as a recipe reads it."""

    train: list[np.ndarray]
    held_out: list[np.ndarray]
    train_labels: np.ndarray
    held_out_labels: np.ndarray
    classes: tuple[str, ...]
    tokenizer: object
    buckets: tuple[int, ...]
    batch_tokens: int


@dataclass(frozen=True)
class Look:
    """The held-out evaluation of the averaged weights after a step, and its cost so far."""

    step: int
    probabilities: Float[np.ndarray, "n C"]
    loss: float  # mean of the steps since the previous look
    seconds: float  # of training: solver and compile time included, evaluations excluded
    compile_seconds: float  # part of `seconds`: compiling the step for every shape of a batch
    validation_seconds: float  # not in `seconds`: all evaluations so far
    solver_seconds: float  # part of `seconds`: fitting the n-grams
    alone: dict[str, Float[np.ndarray, "n C"]]  # probabilities by single parts of the model


def fold_of(data: Dataset, recipe: Recipe, seed: int, fraction: float) -> Fold:
    train, held_out, _ = split_validation(data.train, fraction, seed)
    tokenizer = train_tokenizer(recipe.tokenizer, train.texts)
    encoded = [
        tokenizer.encode(split.texts, recipe.model.max_length, recipe.truncate)
        for split in (train, held_out)
    ]
    labels = (train.labels, held_out.labels)
    return Fold(*encoded, *labels, data.classes, tokenizer, *batch_shapes(encoded, recipe, None))


def ends_of_epochs(steps: list[int]) -> list[int]:
    """Return the last step of every epoch, given the number of steps of each epoch."""
    return list(accumulate(steps))


def looks(
    fold: Fold,
    recipe: Recipe,
    seed: int,
    schedule: Callable[[list[int]], Collection[int]],
    *,
    parts: Collection[str] = (),
) -> Iterator[Look]:
    """Train all epochs; yield an evaluation after each step that `schedule` names.

    `schedule(steps of each epoch)` returns steps counted from 1. Each of `parts` is also evaluated
    on its own if the model has more than one part.
    """
    start = FromScratch(recipe, seed)
    classifier = start.make(fold.tokenizer, fold.classes, "", fold.train, fold.train_labels)
    lengths = [len(ids) for ids in fold.train]

    def batches(epoch: int) -> Batches:
        plans = epoch_plans(lengths, fold.buckets, fold.batch_tokens, seed=seed, epoch=epoch)
        return Batches(plans, fold.train, fold.train_labels, fold.tokenizer.pad_id)

    epochs = range(recipe.fit.epochs)
    steps = [len(batches(epoch)) for epoch in epochs]
    optimizer = make_optimizer(recipe.fit.optimizer, sum(steps))
    loss = make_loss(
        fold.tokenizer,
        token_dropout=recipe.token_dropout,
        smoothing=recipe.label_smoothing,
        margin=recipe.margin,
    )
    graph, params = nnx.split(classifier.trained, nnx.Param)
    config = replace(recipe.fit, seed=seed, dtype=recipe.dtype or "float32")
    train_step = make_train_step(graph, loss, optimizer, config)
    state = TrainState.first(params, optimizer)
    scorer = Scorer(classifier.model, fold.tokenizer.pad_id, fold.buckets, fold.batch_tokens)

    wanted, compiled, values = set(schedule(steps)), {}, []
    compiling = validating = 0.0
    solving = classifier.solver.seconds if classifier.solver else 0.0
    stream = (batch for epoch in epochs for batch in batches(epoch))
    started = time.perf_counter()
    for step, batch in enumerate(tqdm(stream, total=sum(steps), unit="step", leave=False), 1):
        shape = jax.tree.map(np.shape, batch)
        if shape not in compiled:
            jax.block_until_ready(state)  # else earlier steps would run while the compiler does
            begun = time.perf_counter()
            compiled[shape] = train_step.lower(state, batch).compile()
            compiling += time.perf_counter() - begun
        state, value = compiled[shape](state, batch)
        values.append(value)
        if step in wanted:
            mean = float(np.mean(jax.device_get(values)))  # waits
            values.clear()
            begun = time.perf_counter()
            seconds = begun - started - validating
            kept = classifier.kept(state.average)
            probabilities = scorer(fold.held_out, kept)
            took = time.perf_counter() - begun
            alone = {
                part: scorer(fold.held_out, only(kept, part, classifier.parts))
                for part in classifier.parts
                if part in parts and len(classifier.parts) > 1
            }
            times = (seconds + solving, compiling, validating + took, solving)
            yield Look(step, probabilities, mean, *times, alone)
            validating += time.perf_counter() - begun  # the caller's time is excluded too
