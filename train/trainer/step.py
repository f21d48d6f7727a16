"""One update of the weights, compiled."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from train.optim.optimizers import OptimizerConfig
from transformer_jax.parallel.mesh import keep_replicated


class TrainState(NamedTuple):
    step: jax.Array
    params: Any
    average: Any  # exponential moving average of the parameters: what is validated and kept
    optimizer: Any

    @classmethod
    def first(cls, params: Any, optimizer: optax.GradientTransformation) -> "TrainState":
        """Before any step; the average has buffers of its own, since it is donated beside the
        parameters.
        """
        state = jax.jit(optimizer.init)(params)
        return cls(jnp.zeros((), jnp.int32), params, copied(params), state)


@jax.jit
def copied(params: Any) -> Any:
    """Return the same values in buffers of their own."""
    return jax.tree.map(jnp.copy, params)


@dataclass(frozen=True)
class FitConfig:
    epochs: int = 10
    max_steps: int | None = None  # stop earlier; the schedule ends where the run ends
    seed: int = 0
    dtype: str = "float32"  # of activations and products; parameters stay float32
    average_decay: float = 0.999
    checkpoint_minutes: float = 5.0  # between checkpoints; also at every best validation score
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self):
        if not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay must be in [0, 1); got {self.average_decay}")


def make_train_step(
    graph: Any, loss: Callable, optimizer: optax.GradientTransformation, config: FitConfig
) -> Callable[[TrainState, Any], tuple[TrainState, jax.Array]]:
    """One jitted update; the state that goes in is overwritten.

    Where the loss or any gradient is NaN or infinite, the weights, their average and the optimizer
    stay as they were, and the loss that comes out is NaN.
    """
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
        after = TrainState(state.step, params, average, optimizer_state)
        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
        # The step counts all the same: its number is what dropout and the order of batches hang on.
        kept = keep_replicated(kept._replace(step=state.step + 1))
        return kept, jnp.where(finite, value, jnp.nan)

    return jax.jit(train_step, donate_argnums=0)
