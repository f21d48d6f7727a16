"""The one fit loop of every program: batches in, the best weights by validation out.

The model's state is split off once and donated to one jitted step, so Python walks no module while
it trains. Everything random comes from (seed, step) and every order from (seed, epoch): a state and
the number of its step are all it takes to go on, and going on gives the bits that not stopping
would have given.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tqdm import tqdm

from train.optim.optimizers import learning_rate_schedule, make_optimizer
from train.trainer import checkpoints
from train.trainer.checkpoints import Progress
from train.trainer.faults import TrainingError
from train.trainer.metrics_log import MetricsLog
from train.trainer.signals import Stopped, stop_wish
from train.trainer.step import FitConfig, TrainState, make_train_step
from transformer_jax.parallel.mesh import replicate, split_rows

LOG_EVERY = 10  # steps between lines of metrics.jsonl, and between reads of the loss
SKIPPED_LIMIT = 10  # steps in a row without a finite loss and gradient, after which the run stops


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

    After each epoch `validate(params)` gives metrics, of which `select` (higher is better) chooses
    the weights that `keep(params)` stores; it is called once at the start too. `batches(epoch)` is
    a sequence whose items are made when asked for. Every line of metrics.jsonl also goes to `log`.

    Raises Stopped after Ctrl-C or SIGTERM, with everything saved; TrainingError when SKIPPED_LIMIT
    steps in a row had no finite loss and gradient; CheckpointError and OSError when the disk does
    not take what is written.
    """
    steps_per_epoch = [len(batches(epoch)) for epoch in range(config.epochs)]
    total_steps = sum(steps_per_epoch)
    if config.max_steps is not None:
        total_steps = min(total_steps, config.max_steps)
    optimizer = make_optimizer(config.optimizer, total_steps)
    schedule = learning_rate_schedule(config.optimizer, total_steps)
    graph, params = nnx.split(model, nnx.Param)
    state = TrainState.first(params, optimizer)
    state, best = replicate((state, jax.tree.map(jnp.copy, params)))
    train_step = make_train_step(graph, loss, optimizer, config)

    folder, progress = run / "checkpoints", Progress()
    if resume and (loaded := checkpoints.load(folder, (state, best), warn=tqdm.write)):
        (state, best), progress = loaded
    keep(best)
    started = time.perf_counter() - progress.train_seconds
    saved = time.perf_counter()

    with (
        MetricsLog(run / "metrics.jsonl", progress.metrics_bytes, log) as metrics,
        tqdm(total=total_steps, initial=progress.step, unit="step", dynamic_ncols=True) as bar,
        stop_wish() as wish,
    ):
        if metrics.missing_bytes:
            bar.write(f"{run / 'metrics.jsonl'} lacks lines that were there at the last checkpoint")
        window, shown = Window(progress), {}

        def write_line(epoch: int) -> None:
            nonlocal progress, window
            window.read()
            finite = [value for value in window.losses if math.isfinite(value)]
            progress = _after(progress, window)
            rate = window.tokens / window.seconds
            line = {
                "step": progress.step,
                "epoch": epoch + 1,
                "loss": float(np.mean(finite)) if finite else None,
                "learning_rate": float(schedule(progress.step - progress.skipped - 1)),
                "tokens_per_second": round(rate),
            }
            if skipped := len(window.losses) - len(finite):
                line["skipped"] = skipped
                bar.write(
                    f"step {progress.step}: {skipped} without a finite loss and gradient skipped"
                )
            metrics.write(**line)
            if progress.skipped_in_a_row >= SKIPPED_LIMIT:
                raise TrainingError(
                    f"the loss or its gradient was NaN or infinite in {progress.skipped_in_a_row} steps in a row, "
                    f"up to step {progress.step}; the weights from before are kept. Try a new run with --dtype float32, "
                    "or with a lower learning rate in the recipe",
                    mendable=False,
                )
            if finite:
                shown["loss"] = f"{line['loss']:.3f}"
            bar.set_postfix(shown | {"tok/s": f"{rate:,.0f}"}, refresh=False)
            window = Window(Progress())  # an empty one

        def save() -> None:
            nonlocal progress, saved
            window.read()
            begun = time.perf_counter()
            progress = replace(
                progress,
                losses=tuple(window.losses),
                losses_tokens=window.tokens,
                losses_seconds=window.seconds,
                metrics_bytes=metrics.sync(),
                train_seconds=begun - started,
            )
            checkpoints.save(folder, (state, best), progress)
            saved = time.perf_counter()
            progress = replace(progress, save_seconds=progress.save_seconds + saved - begun)
            window.since = saved

        def stop_if_wished() -> None:
            if wish.number is not None:
                raise Stopped(wish.number)

        for epoch in range(progress.epoch, config.epochs):
            begins, ends = (sum(steps_per_epoch[:e]) for e in (epoch, epoch + 1))
            if begins >= total_steps:
                break
            for batch in batches(epoch)[progress.step - begins : total_steps - begins]:
                state, value = train_step(state, split_rows(batch))
                window.add(value, count_tokens(batch))
                progress = replace(progress, step=progress.step + 1)
                bar.update()
                if progress.step % LOG_EVERY == 0 or progress.step in (ends, total_steps):
                    write_line(epoch)
                if wish.number or time.perf_counter() - saved >= 60 * config.checkpoint_minutes:
                    save()
                    stop_if_wished()
            scores = validate(state.average)
            finite = {k: v if math.isfinite(v) else None for k, v in scores.items()}
            metrics.write(step=progress.step, epoch=epoch + 1, **finite)
            shown[select] = f"{scores[select]:.4f}"
            bar.set_postfix(shown)
            better = None not in finite.values() and (
                progress.best_score is None or scores[select] > progress.best_score
            )
            progress = replace(progress, epoch=epoch + 1)
            if better:
                best = jax.tree.map(jnp.copy, state.average)
                keep(best)
                progress = replace(
                    progress,
                    best_score=scores[select],
                    best_epoch=epoch + 1,
                    best_step=progress.step,
                    best_metrics=scores,
                )
            if better or wish.number or progress.step == total_steps:
                save()
                stop_if_wished()
        progress = replace(progress, train_seconds=time.perf_counter() - started)
    return FitResult(best, progress)


class Window:
    """The steps since the last line of metrics.jsonl: what the next line is made of."""

    def __init__(self, progress: Progress):
        self.losses: list[Any] = list(progress.losses)
        self.tokens, self.seconds = progress.losses_tokens, progress.losses_seconds
        self.since = time.perf_counter()

    def add(self, loss: jax.Array, tokens: int) -> None:
        self.losses.append(loss)
        self.tokens += tokens

    def read(self) -> None:
        """Waits for the device."""
        self.losses = [float(value) for value in jax.device_get(self.losses)]
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now


def _after(progress: Progress, window: Window) -> Progress:
    """The counts with those of a window that was read."""
    in_a_row = progress.skipped_in_a_row
    for value in window.losses:
        in_a_row = 0 if math.isfinite(value) else in_a_row + 1
    return replace(
        progress,
        tokens=progress.tokens + window.tokens,
        step_seconds=progress.step_seconds + window.seconds,
        skipped=progress.skipped + sum(not math.isfinite(value) for value in window.losses),
        skipped_in_a_row=in_a_row,
    )
