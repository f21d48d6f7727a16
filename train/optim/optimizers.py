"""The optimizer: AdamW, or Muon for layer matrices; schedule, clipping and weight decay.

Learning-rate factors of single parameters are in `train.optim.layer_rates`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

from train.optim.config import OptimizerConfig, Rates
from train.optim.layer_rates import moving, scale_by_rates
from train.optim.param_groups import DECAYED, group_of
from transformer_jax.parallel.axes import parameter_name


def learning_rate_schedule(config: OptimizerConfig, total_steps: int) -> Callable:
    """Return the learning rate as a function of the step, counted from 0."""
    warmup = round(config.warmup_fraction * total_steps)
    if config.schedule == "constant":
        # Without warm-up steps, optax's schedule stays at its initial value.
        first = 0.0 if warmup else config.learning_rate
        return optax.warmup_constant_schedule(first, config.learning_rate, warmup)
    return optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, warmup, max(total_steps, warmup + 1)
    )


def decayed(params: Any, everything: bool = False) -> Any:
    """Return True for each parameter to which weight decay applies, by its group."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: everything or group_of(parameter_name(path)) in DECAYED, params
    )


def matrices(params: Any) -> Any:
    """Return the input and output axes of each layer matrix, None for parameters not of Muon."""

    def axes(path, leaf):
        name = parameter_name(path)
        if group_of(name) != "matrix":
            return None
        inputs = 2 if name.endswith("attention.out_kernel") else 1
        return MuonDimensionNumbers(tuple(range(inputs)), tuple(range(inputs, leaf.ndim)))

    return jax.tree_util.tree_map_with_path(axes, params)


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Return a transformation that scales gradients to a global norm of at most `limit`.

    The same as that of optax, which divides by the norm and then multiplies. XLA stores the result
    of a division, in an array of the size of the gradient, but not that of a product.
    """

    def update(updates, state, params=None):
        norm = optax.tree.norm(updates)
        factor = jnp.where(norm < limit, 1.0, limit / norm)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Build the optimizer: clipping, then AdamW, or Muon and AdamW, on the schedule."""
    rate = learning_rate_schedule(config, total_steps)

    def mask(params):
        return decayed(params, config.decay_everything)

    if not config.muon_rate:
        update = optax.adamw(
            rate,
            b1=config.b1,
            b2=config.b2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=mask,
        )
    else:
        times = config.muon_rate / config.learning_rate
        update = muon(
            lambda step: times * rate(step),
            adam_learning_rate=rate,
            adam_b1=config.b1,
            adam_b2=config.b2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            # optax has no mask here, so with Muon an untied head has no weight decay.
            adam_weight_decay=config.weight_decay if config.decay_everything else 0.0,
            muon_weight_dimension_numbers=matrices,
        )
    clip = [] if config.clip_norm is None else [clip_by_global_norm(config.clip_norm)]
    scaled = [] if config.rates == Rates() else [scale_by_rates(config.rates, total_steps)]
    return moving(optax.chain(*clip, update, *scaled), config.rates)
