"""The one fit loop of every program: batches in, the best weights by validation out.

The model's state is split off once and donated to one jitted step, so Python walks no module while it trains.
Everything random comes from (seed, step) and every order from (seed, epoch): a state and the number of its
step are all it takes to go on.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

from train import checkpoints
from train.checkpoints import Progress
from train.optimizers import OptimizerConfig, learning_rate_schedule, make_optimizer

LOG_EVERY = (
    10  # steps between lines of metrics.jsonl, and between reads of the loss from the device
)


class TrainState(NamedTuple):
    step: jax.Array
    params: Any
    average: Any  # exponential moving average of the parameters: what is validated and kept
    optimizer: Any


@dataclass(frozen=True)
class FitConfig:
    epochs: int = 10
    max_steps: int | None = None  # stop earlier; the schedule ends where the run ends
    seed: int = 0
    dtype: str = "float32"  # of activations and products; parameters stay float32
    average_decay: float = 0.999
    optimizer: OptimizerConfig = OptimizerConfig()


@dataclass(frozen=True)
class FitResult:
    params: Any  # the best by validation
    progress: Progress


def fit(
    model: nnx.Module,
    loss: Callable[[nnx.Module, Any, nnx.Rngs], jax.Array],
    batches: Callable[[int], Sequence[Any]],
    validate: Callable[[Any], dict[str, float]],
    *,
    config: FitConfig,
    run: Path,
    select: str,
    count_tokens: Callable[[Any], int],
    keep: Callable[[Any], None] = lambda params: None,
    log: Callable[[dict], None] = lambda line: None,
    resume: bool = False,
) -> FitResult:
    """Minimises loss(model, batch, rngs) over the batches of every epoch.

    After each epoch `validate(params)` gives metrics, of which `select` (higher is better) chooses the weights
    that `keep(params)` stores. `batches(epoch)` is a sequence whose items are made when asked for. Every line
    of metrics.jsonl also goes to `log`.
    """
    steps_per_epoch = [len(batches(epoch)) for epoch in range(config.epochs)]
    total_steps = sum(steps_per_epoch)
    if config.max_steps is not None:
        total_steps = min(total_steps, config.max_steps)
    optimizer = make_optimizer(config.optimizer, total_steps)
    schedule = learning_rate_schedule(config.optimizer, total_steps)
    graph, params = nnx.split(model, nnx.Param)
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        average=jax.tree.map(jnp.copy, params),  # donated beside params, so not the same buffers
        optimizer=optimizer.init(params),
    )
    train_step = make_train_step(graph, loss, optimizer, config)

    progress = Progress()
    best = params
    metrics_file = run / "metrics.jsonl"
    if resume and (loaded := checkpoints.load(run / "checkpoints", (state, best))):
        (state, best), progress = loaded
    kept = _first_lines(metrics_file, progress.metrics_lines)
    started = time.perf_counter() - progress.train_seconds

    with (
        open(metrics_file, "w", encoding="utf-8") as metrics,
        tqdm(total=total_steps, initial=progress.step, unit="step", dynamic_ncols=True) as bar,
    ):
        metrics.writelines(kept)

        def write(**line):
            nonlocal progress
            metrics.write(json.dumps(line) + "\n")
            metrics.flush()
            progress = replace(progress, metrics_lines=progress.metrics_lines + 1)
            log(line)

        shown = {}
        for epoch in range(progress.epoch, config.epochs):
            losses, since = [], time.perf_counter()
            tokens_since = 0
            for batch in batches(epoch):
                if progress.step >= total_steps:
                    break
                state, value = train_step(state, batch)
                losses.append(value)
                tokens_since += count_tokens(batch)
                progress = replace(progress, step=progress.step + 1)
                last_of_epoch = progress.step == sum(steps_per_epoch[: epoch + 1])
                if progress.step % LOG_EVERY and not last_of_epoch and progress.step < total_steps:
                    continue
                mean = float(np.mean(jax.device_get(losses)))  # waits for the device
                seconds = time.perf_counter() - since
                progress = replace(
                    progress,
                    tokens=progress.tokens + tokens_since,
                    step_seconds=progress.step_seconds + seconds,
                )
                write(
                    step=progress.step,
                    epoch=epoch + 1,
                    loss=mean,
                    learning_rate=float(schedule(progress.step - 1)),
                    tokens_per_second=round(tokens_since / seconds),
                )
                shown |= {"loss": f"{mean:.3f}", "tok/s": f"{tokens_since / seconds:,.0f}"}
                bar.set_postfix(shown, refresh=False)
                bar.update(progress.step - bar.n)
                losses, since, tokens_since = [], time.perf_counter(), 0
            scores = validate(state.average)
            write(step=progress.step, epoch=epoch + 1, **scores)
            shown |= {select: f"{scores[select]:.4f}"}
            bar.set_postfix(shown)
            if progress.best_score is None or scores[select] > progress.best_score:
                best = jax.tree.map(jnp.copy, state.average)
                keep(best)
                progress = replace(
                    progress, best_score=scores[select], best_epoch=epoch + 1, best_metrics=scores
                )
            progress = replace(
                progress, epoch=epoch + 1, train_seconds=time.perf_counter() - started
            )
            checkpoints.save(run / "checkpoints", (state, best), progress)
            if progress.step >= total_steps:
                break
    return FitResult(best, progress)


def make_train_step(
    graph: Any, loss: Callable, optimizer: optax.GradientTransformation, config: FitConfig
) -> Callable[[TrainState, Any], tuple[TrainState, jax.Array]]:
    """One jitted update; the state that goes in is overwritten."""
    key = jax.random.key(config.seed)

    def objective(params, batch, step):
        # Parameters are float32; what is computed with them is cast once, here.
        cast = jax.tree.map(lambda p: p.astype(config.dtype), params)
        rngs = nnx.Rngs(dropout=jax.random.fold_in(key, step))
        return loss(nnx.merge(graph, cast), batch, rngs)

    def train_step(state, batch):
        value, gradient = jax.value_and_grad(objective)(state.params, batch, state.step)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        # A short memory at first: the average forgets the random start.
        decay = jnp.minimum(config.average_decay, (1 + state.step) / (10 + state.step))
        average = optax.incremental_update(params, state.average, 1 - decay)
        return TrainState(state.step + 1, params, average, optimizer_state), value

    return jax.jit(train_step, donate_argnums=0)


def _first_lines(path: Path, count: int) -> list[str]:
    """What a resumed run keeps of its log: the lines that the checkpoint knows of."""
    if not count:
        return []
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line for _, line in zip(range(count), file, strict=False)]
