"""The training loop of every program: it trains on batches and keeps the best validated weights.

The model's state is extracted once and donated to one jitted step, so Python traverses no module
during training. Random numbers depend on (seed, step) only, and the order of the batches on
(seed, epoch). So the state and its step number are all that resuming needs, and a resumed run is
bit-identical to an uninterrupted one.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from train.optim.optimizers import learning_rate_schedule, make_optimizer
from train.trainer import checkpoints
from train.trainer.checkpoints import Progress
from train.trainer.config import FitConfig
from train.trainer.exchange import exchange, from_first, largest
from train.trainer.faults import TrainingError
from train.trainer.metrics_log import MetricsLog
from train.trainer.signals import Stopped, stop_wish
from train.trainer.step import LossSum, TrainState, copied, make_train_step
from train.trainer.together import agreed_stop
from transformer_jax.parallel.mesh import current_sizes, place, split_rows
from transformer_jax.parallel.processes import are_several, count
from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.progress import ProgressBar

LOG_EVERY = 10  # steps between lines of metrics.jsonl, and between reads of the loss
SKIPPED_LIMIT = 10  # the run stops after so many consecutive non-finite losses or gradients


class Objective(Protocol):
    """The loss to minimise, and the validation metric that selects the weights."""

    trained: nnx.Module
    loss: LossSum  # of a batch
    select: str  # the metric that selects the weights; higher is better

    def batches(self, epoch: int) -> Sequence[Any]:
        """Return the batches of an epoch, each made on access."""

    def count_tokens(self, batch: Any) -> int:
        """Return the number of tokens in a batch, without padding."""

    def validate(self, params: nnx.State) -> dict[str, float]:
        """Return the validation metrics after an epoch."""

    def keep(self, params: nnx.State, after: tuple[int, int] | None) -> None:
        """Save weights. `after` are the steps so far and in all; None at the end of training."""


@dataclass(frozen=True)
class FitResult:
    """The best weights by validation, and the progress of training."""

    params: Any
    progress: Progress


def fit(
    objective: Objective,
    config: FitConfig,
    run: Path,
    *,
    log: Callable[[dict], None] = lambda line: None,
    resume: bool = False,
) -> FitResult:
    """Train by minimising the objective over the batches of every epoch, in a run folder.

    Every line of metrics.jsonl is also passed to `log`. Raises Stopped after Ctrl-C or SIGTERM,
    once everything is saved; TrainingError when SKIPPED_LIMIT consecutive steps had a loss or
    gradient that is not finite; CheckpointError and OSError when writing to disk fails.
    """
    with agreed_stop():
        loop = _Loop(objective, config, run, resume)
    with (
        MetricsLog(run / "metrics.jsonl", loop.progress.metrics_bytes, log) as loop.metrics,
        ProgressBar(total=loop.total_steps, initial=loop.progress.step, unit="step") as loop.bar,
        stop_wish() as loop.wish,
    ):
        loop.run()
    with agreed_stop():
        objective.keep(loop.best, None)
    return FitResult(loop.best, loop.progress)


class _Loop:
    """The state of a training run, and the steps that advance it."""

    metrics: MetricsLog
    bar: ProgressBar
    wish: Any

    def __init__(self, objective: Objective, config: FitConfig, run: Path, resume: bool):
        self.objective, self.config, self.folder = objective, config, run / "checkpoints"
        # The cumulative number of steps at the end of each epoch.
        self.ends = list(accumulate(len(objective.batches(e)) for e in range(config.epochs)))
        steps = self.ends[-1] if self.ends else 0
        self.total_steps = steps if config.max_steps is None else min(steps, config.max_steps)
        optimizer = make_optimizer(config.optimizer, self.total_steps)
        self.schedule = learning_rate_schedule(config.optimizer, self.total_steps)
        graph, params = nnx.split(objective.trained, nnx.Param)
        params = place(params)
        self.state, self.best = TrainState.first(params, optimizer), copied(params)
        self.train_step = make_train_step(graph, objective.loss, optimizer, config)
        self.progress = Progress()
        if resume:
            state = self.state, self.best
            if loaded := checkpoints.load(self.folder, state, warn=ProgressBar.write):
                (self.state, self.best), self.progress = loaded
        self.progress = self.progress.on_mesh(current_sizes(), count())
        self.shown: dict[str, str] = {}
        self.compiled: set[tuple[int, ...]] = set()  # shapes of batches
        self.saved = time.perf_counter()
        self.started = self.saved - self.progress.train_seconds

    def run(self) -> None:
        """Train and validate for each remaining epoch."""
        self._keep()
        if self.metrics.missing_bytes:
            self.bar.write(f"{self.metrics.path} lacks lines that it had at the last checkpoint")
        self.window = Window(self.progress)
        for epoch in range(self.progress.epoch, self.config.epochs):
            begins = self.ends[epoch - 1] if epoch else 0
            if begins >= self.total_steps:
                break
            batches = self.objective.batches(epoch)
            for batch in batches[self.progress.step - begins : self.total_steps - begins]:
                self._take_step(batch, epoch)
            self._validate(epoch)
        self._update(train_seconds=time.perf_counter() - self.started)

    def _update(self, **changes: Any) -> None:
        self.progress = replace(self.progress, **changes)

    def _take_step(self, batch: Any, epoch: int) -> None:
        with self._compiling(batch):
            rows = split_rows(batch, self.config.accumulate)
            self.state, loss = self.train_step(self.state, rows)
        self.window.add(loss, self.objective.count_tokens(batch))
        step = self.progress.step + 1
        self._update(step=step)
        self.bar.update()
        if is_logged := step % LOG_EVERY == 0 or step in (self.ends[epoch], self.total_steps):
            self._log(epoch)
        # Several processes ask each other only now and then, and all after the same steps.
        if (is_logged or not are_several()) and self._is_due():
            self._save()

    def _is_due(self) -> bool:
        """Return whether a signal or the clock of any process asks for a checkpoint."""
        minutes = (time.perf_counter() - self.saved) / 60
        due = self.wish.number is not None or minutes >= self.config.checkpoint_minutes
        return bool(largest(int(due)))

    def _signal(self) -> int | None:
        """Return the number of the signal that any process received."""
        return largest(self.wish.number or 0) or None

    def _compiling(self, batch: Any) -> AbstractContextManager[None]:
        """Return a context that says that the step is compiled, if this batch has a new shape."""
        shape = np.shape(jax.tree.leaves(batch)[0])
        if shape in self.compiled:
            return nullcontext()
        self.compiled.add(shape)
        size = " x ".join(map(str, shape))
        return self.bar.uncounted(f"compiling the training step for batches of {size}")

    def _log(self, epoch: int) -> None:
        """Write a line of metrics for the steps since the last line."""
        self.window.read()
        self.progress = self.window.added_to(self.progress)
        step, losses = self.progress.step, self.window.losses
        finite = [value for value in losses if math.isfinite(value)]
        rate = self.window.tokens / self.window.seconds
        line = {
            "step": step,
            "epoch": epoch + 1,
            "loss": float(np.mean(finite)) if finite else None,
            "learning_rate": float(self.schedule(step - self.progress.skipped - 1)),
            "tokens_per_second": round(rate),
        }
        if skipped := len(losses) - len(finite):
            line["skipped"] = skipped
            self.bar.write(
                f"step {step}: skipped {counted(skipped, 'step')} with NaN or infinite values"
            )
        self.metrics.write(**line)
        if (in_a_row := self.progress.skipped_in_a_row) >= SKIPPED_LIMIT:
            raise TrainingError(
                f"the loss or its gradient was NaN or infinite in {in_a_row} steps in a row, up "
                f"to step {step}; the weights from before are kept. Start a new run with --dtype "
                "float32 or a lower learning rate (--learning-rate)",
                mendable=False,
            )
        if finite:
            self.shown["loss"] = f"{line['loss']:.3f}"
        self.bar.set_postfix(self.shown | {"tok/s": f"{rate:,.0f}"}, refresh=False)
        self.window = Window(Progress())  # empty

    def _validate(self, epoch: int) -> None:
        """Keep the averaged weights if they are the best so far."""
        with self.bar.uncounted("validating"):
            scores, select = self.objective.validate(self.state.average), self.objective.select
        if are_several():  # hosts may differ in the last digit, but must keep the same weights
            scores = json.loads(from_first(json.dumps({k: float(v) for k, v in scores.items()})))
        finite = {k: v if math.isfinite(v) else None for k, v in scores.items()}
        step = self.progress.step
        self.metrics.write(step=step, epoch=epoch + 1, **finite)
        self.shown[select] = f"{scores[select]:.4f}"
        self.bar.set_postfix(self.shown)
        best = self.progress.best_score
        better = None not in finite.values() and (best is None or scores[select] > best)
        self._update(epoch=epoch + 1)
        if better:
            self.best = copied(self.state.average)
            self._update(
                best_score=scores[select],
                best_epoch=epoch + 1,
                best_step=step,
                best_metrics=scores,
            )
        if self._signal() or better or step == self.total_steps:
            self._save()

    def _keep(self) -> None:
        """Keep the best weights; before the first validation, the latest average."""
        params = self.state.average if self.progress.best_score is None else self.best
        self.objective.keep(params, (self.progress.step, self.total_steps))
        exchange("kept")

    def _save(self) -> None:
        """Write the model and a checkpoint, then stop if a signal asked for it."""
        self.window.read()
        begun = time.perf_counter()
        self._update(
            losses=tuple(self.window.losses),
            losses_tokens=self.window.tokens,
            losses_seconds=self.window.seconds,
            metrics_bytes=self.metrics.sync(),
            train_seconds=begun - self.started,
        )
        self._keep()
        checkpoints.save(self.folder, (self.state, self.best), self.progress)
        self.saved = self.window.since = time.perf_counter()
        self._update(save_seconds=self.progress.save_seconds + self.saved - begun)
        if (number := self._signal()) is not None:
            raise Stopped(number)


class Window:
    """The steps since the last line of metrics.jsonl, which the next line summarises."""

    def __init__(self, progress: Progress):
        self.losses: list[Any] = list(progress.losses)
        self.tokens, self.seconds = progress.losses_tokens, progress.losses_seconds
        self.since = time.perf_counter()

    def add(self, loss: jax.Array, tokens: int) -> None:
        """Add one step, without waiting for the device."""
        self.losses.append(loss)
        self.tokens += tokens

    def read(self) -> None:
        """Wait for the device and turn the losses into floats."""
        self.losses = [float(value) for value in jax.device_get(self.losses)]
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now

    def added_to(self, progress: Progress) -> Progress:
        """Return `progress` with the counts of this window added; call `read` first."""
        in_a_row = progress.skipped_in_a_row
        for value in self.losses:
            in_a_row = 0 if math.isfinite(value) else in_a_row + 1
        return replace(
            progress,
            tokens=progress.tokens + self.tokens,
            step_seconds=progress.step_seconds + self.seconds,
            skipped=progress.skipped + sum(not math.isfinite(value) for value in self.losses),
            skipped_in_a_row=in_a_row,
        )
