"""Training by a recipe of `train.imdb`, looked at on the way: what the ablation and the race have
in common.

It trains as the program does: its split, batches, loss, optimizer and step, and what is scored are
the averaged weights. There is no run folder: what is kept of a run is what the caller makes of the
looks.
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
    """What a seed draws of the data, as a recipe reads it."""

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
    """What the averaged weights say of the held-out texts after a step, and what it took to get
    there.
    """

    step: int
    probabilities: Float[np.ndarray, "n C"]
    loss: float  # mean of the steps since the look before
    seconds: (
        float  # of training, the solver's for n-grams first; compiling counts, looking does not
    )
    compile_seconds: float  # of these: the step, once for every shape of a batch
    validation_seconds: float  # beside these, all looks so far
    solver_seconds: float  # of `seconds`: the n-grams
    alone: dict[str, Float[np.ndarray, "n C"]]  # what parts of the model say by themselves


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
    """The schedule that looks after every epoch; `steps` are those of each epoch."""
    return list(accumulate(steps))


def looks(
    fold: Fold,
    recipe: Recipe,
    seed: int,
    schedule: Callable[[list[int]], Collection[int]],
    *,
    parts: Collection[str] = (),
) -> Iterator[Look]:
    """Trains all epochs and looks after the steps that `schedule(steps of each epoch)` names, from
    1 on.

    What each of `parts` says alone is looked at too, where the model has more than one.
    """
    start = FromScratch(recipe, seed)
    classifier = start.make(fold.tokenizer, fold.classes, "", fold.train, fold.train_labels)
    lengths = [len(ids) for ids in fold.train]

    def batches(epoch: int) -> Batches:
        plans = epoch_plans(lengths, fold.buckets, fold.batch_tokens, seed=seed, epoch=epoch)
        return Batches(plans, fold.train, fold.train_labels, fold.tokenizer.pad_id, 1)

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
            jax.block_until_ready(state)  # or the steps before would run beside the compiler
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
            validating += time.perf_counter() - begun  # nor does what the caller makes of it count
