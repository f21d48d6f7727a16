"""One compiled update of the weights: the training state, its configuration and the step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from train.trainer.config import FitConfig
from transformer_jax.parallel.mesh import gather, keep_at_rest, keep_like, keep_whole


class TrainState(NamedTuple):
    """The arrays that a training step updates."""

    step: jax.Array
    params: Any
    average: Any  # exponential moving average of the parameters, which is validated and kept
    optimizer: Any

    @classmethod
    def first(cls, params: Any, optimizer: optax.GradientTransformation) -> "TrainState":
        """Return the state before the first step.

        The average has its own buffers, because it is donated together with the parameters.
        """
        state = jax.jit(lambda params: keep_like(optimizer.init(params), params))(params)
        return cls(jnp.zeros((), jnp.int32), params, copied(params), state)


@jax.jit
def copied(params: Any) -> Any:
    """Return a copy of `params` with buffers of its own."""
    return keep_at_rest(jax.tree.map(jnp.copy, params))


def make_train_step(
    graph: Any, loss: Callable, optimizer: optax.GradientTransformation, config: FitConfig
) -> Callable[[TrainState, Any], tuple[TrainState, jax.Array]]:
    """Return the jitted function of one update: (state, batch) to (state, loss).

    The input state is donated. If the loss or any gradient is NaN or infinite, the weights, their
    average and the optimizer state stay as they were, and the returned loss is NaN.
    """
    key = jax.random.key(config.seed)

    def objective(params, batch, step):
        # Parameters are float32; they are cast once, here, to the dtype of the computation.
        cast = gather(jax.tree.map(lambda p: p.astype(config.dtype), params))
        rngs = nnx.Rngs(dropout=jax.random.fold_in(key, step))
        return loss(nnx.merge(graph, cast), batch, rngs)

    def train_step(state, batch):
        value, gradient = jax.value_and_grad(objective)(state.params, batch, state.step)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        # The decay is smaller at first, so that the average forgets the random initialization.
        decay = jnp.minimum(config.average_decay, (1 + state.step) / (10 + state.step))
        average = optax.incremental_update(params, state.average, 1 - decay)
        after = TrainState(state.step, params, average, optimizer_state)
        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
        # A skipped step still counts: dropout and the order of batches depend on its number.
        kept = TrainState(
            keep_whole(state.step + 1),
            keep_at_rest(kept.params),
            keep_at_rest(kept.average),
            keep_like(kept.optimizer, params),
        )
        return kept, keep_whole(jnp.where(finite, value, jnp.nan))

    return jax.jit(train_step, donate_argnums=0)
