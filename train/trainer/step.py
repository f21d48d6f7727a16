"""One compiled update of the weights: the training state, its configuration and the step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Shaped

from train.trainer.config import FitConfig
from transformer_jax.cpu.library import is_one_cpu
from transformer_jax.nn.decoder import Decoder
from transformer_jax.nn.encoder import Encoder
from transformer_jax.parallel.mesh import gather, keep_at_rest, keep_like, keep_whole

# Of a model, a batch and random number generators: the sum of the losses, each times its weight,
# and that of the weights. Sums, because microbatches may have different weights.
LossSum = Callable[[nnx.Module, Any, nnx.Rngs], tuple[Float[Array, ""], Shaped[Array, ""]]]


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


def mean(total: Float[Array, "..."], weight: Shaped[Array, ""]) -> Float[Array, "..."]:
    """Return the mean of losses, or its gradient, from that of their sum and the sum of weights."""
    return total / jnp.maximum(weight, 1)


def make_gradient(
    graph: Any, loss: LossSum, config: FitConfig
) -> Callable[[Any, Any, jax.Array], tuple[Float[Array, ""], Any]]:
    """Return a function of parameters, a batch and the step: the mean loss and its gradient.

    With `config.accumulate`, microbatches are computed one after the other and their sums added,
    in float32. They are every N-th row, so that rows stay on their devices.
    """
    key, N = jax.random.key(config.seed), config.accumulate

    def prepared(params):
        # Parameters are float32; they are cast once, here, to the dtype of the computation.
        return at_work(jax.tree.map(lambda p: p.astype(config.dtype), params))

    def at_work(tree):
        return gather(tree, layers=not config.remat)

    def sums(ready, batch, dropout):
        model = nnx.merge(graph, ready)
        if config.remat:
            model.set_attributes(Encoder, Decoder, raise_if_not_found=False, remat=True)
        return loss(model, batch, nnx.Rngs(dropout=dropout))

    def of_batch(params, batch, step):
        dropout = jax.random.fold_in(key, step)
        return jax.value_and_grad(lambda p: mean(*sums(prepared(p), batch, dropout)))(params)

    def of_microbatches(params, batch, step):
        ready = prepared(params)  # gathered once
        keys = jax.random.split(jax.random.fold_in(key, step), N)
        parts = jax.tree.map(lambda x: x.reshape(-1, N, *x.shape[1:]).swapaxes(0, 1), batch)

        def add(gradient, part):
            found, more = jax.value_and_grad(sums, has_aux=True)(ready, *part)
            more = jax.tree.map(lambda g, p: g.astype(p.dtype), at_work(more), params)
            return jax.tree.map(jnp.add, gradient, keep_at_rest(more)), found

        zeros = keep_at_rest(jax.tree.map(jnp.zeros_like, params))
        gradient, (totals, counts) = jax.lax.scan(add, zeros, (parts, keys))
        total, count = totals.sum(), counts.sum()
        return mean(total, count), jax.tree.map(lambda g: mean(g, count), gradient)

    return of_batch if N == 1 else of_microbatches


def changed_if(finite: Bool[Array, ""], change: Callable[..., Any], old: Any, *others: Any) -> Any:
    """Return `change(old, *others)` if `finite`, else `old`, a tree of arrays."""
    if is_one_cpu():
        # A branch writes its results to memory, in place of `old`. Without one, XLA computes the
        # weights again from the optimizer's state wherever they are read, and copies that state
        # first.
        return jax.lax.cond(finite, change, lambda old, *_: old, old, *others)
    new = change(old, *others)
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)


def make_train_step(
    graph: Any, loss: LossSum, optimizer: optax.GradientTransformation, config: FitConfig
) -> Callable[[TrainState, Any], tuple[TrainState, jax.Array]]:
    """Return the jitted function of one update: (state, batch) to (state, loss).

    The input state is donated. If the loss or any gradient is NaN or infinite, the weights, their
    average and the optimizer state stay as they were, and the returned loss is NaN.
    """
    gradient_of = make_gradient(graph, loss, config)

    def train_step(state, batch):
        value, gradient = gradient_of(state.params, batch, state.step)

        def updated(old):
            updates, after = optimizer.update(gradient, old[1], old[0])
            return optax.apply_updates(old[0], updates), after

        # The decay is smaller at first, so that the average forgets the random initialization.
        decay = jnp.minimum(config.average_decay, (1 + state.step) / (10 + state.step))

        def averaged(old, params):
            new = optax.incremental_update(params, old, 1 - decay)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), new, old)

        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
        params, after = changed_if(finite, updated, (state.params, state.optimizer))
        average = changed_if(finite, averaged, state.average, params)
        # A skipped step still counts: dropout and the order of batches depend on its number.
        kept = TrainState(
            keep_whole(state.step + 1),
            keep_at_rest(params),
            keep_at_rest(average),
            keep_like(after, params),
        )
        return kept, keep_whole(jnp.where(finite, value, jnp.nan))

    return jax.jit(train_step, donate_argnums=0)
