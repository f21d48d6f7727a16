"""AdamW with warm-up, a schedule, clipping and an explicit list of what decays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax

from transformer_jax.run_folder import parameter_name


@dataclass(frozen=True)
class OptimizerConfig:
    """Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101."""

    learning_rate: float = 1e-3
    schedule: str = "cosine"  # "cosine" falls to zero at the last step, "constant" stays
    warmup_fraction: float = 0.1  # of all steps, linear from zero
    weight_decay: float = 0.01
    decay_everything: bool = False  # False: kernels only; not embeddings, norms or biases
    clip_norm: float | None = 1.0  # of the gradient of all parameters together
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    faster: tuple[
        tuple[str, float], ...
    ] = ()  # ((prefix of a parameter's name, times the rate), ...)

    def __post_init__(self):
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"schedule must be cosine or constant; got {self.schedule!r}")


def learning_rate_schedule(config: OptimizerConfig, total_steps: int) -> Callable:
    """The learning rate as a function of the step, counted from 0."""
    warmup = round(config.warmup_fraction * total_steps)
    if config.schedule == "constant":
        # Without warm-up optax's schedule would stay at its first value for good.
        first = 0.0 if warmup else config.learning_rate
        return optax.warmup_constant_schedule(first, config.learning_rate, warmup)
    return optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, warmup, max(total_steps, warmup + 1)
    )


def decayed(params: Any, everything: bool = False) -> Any:
    """True for every parameter that weight decay shrinks: the kernels, told by their name."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: everything or parameter_name(path).endswith("kernel"), params
    )


def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Clip, then AdamW on the schedule."""
    adamw = optax.adamw(
        learning_rate_schedule(config, total_steps),
        b1=config.b1,
        b2=config.b2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=lambda params: decayed(params, config.decay_everything),
    )
    clip = [] if config.clip_norm is None else [optax.clip_by_global_norm(config.clip_norm)]
    scaled = [optax.masked(optax.scale(times), named(prefix)) for prefix, times in config.faster]
    return optax.chain(*clip, adamw, *scaled)


def named(prefix: str) -> Callable[[Any], Any]:
    """True for the parameters whose dotted name begins so."""
    return lambda params: jax.tree_util.tree_map_with_path(
        lambda path, _: parameter_name(path).startswith(prefix), params
    )
