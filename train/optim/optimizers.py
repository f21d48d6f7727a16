"""The optimizer: AdamW, or Muon for layer matrices; schedule, clipping and weight decay.

Learning-rate factors of single parameters are in `train.optim.layer_rates`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, muon

from train.optim.layer_rates import Rates, moving, scale_by_rates
from train.optim.param_groups import DECAYED, group_of
from transformer_jax.nn.parameters import parameter_name


@dataclass(frozen=True)
class OptimizerConfig:
    """The settings of AdamW and Muon.

    AdamW: Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101.

    Muon: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon. It orthogonalizes the
    momentum of each layer matrix. All other parameters are then updated by AdamW with Nesterov
    momentum, as in optax.
    """

    learning_rate: float = 1e-3
    schedule: str = "cosine"  # "cosine" falls to zero at the last step, "constant" stays the same
    warmup_fraction: float = 0.1  # fraction of all steps with a linear warm-up from zero
    weight_decay: float = 0.01
    decay_everything: bool = False  # False: kernels only; not embeddings, norms or biases
    clip_norm: float | None = 1.0  # maximum global norm of the gradient; None: no clipping
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    rates: Rates = Rates()  # learning-rate factors of single parameters
    muon_rate: float = 0.0  # peak Muon learning rate for layer kernels; 0: AdamW only

    def __post_init__(self):
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"schedule must be cosine or constant; got {self.schedule!r}")
        if self.muon_rate < 0:
            raise ValueError(f"muon_rate must be 0 or more; got {self.muon_rate}")
        if self.muon_rate and self.rates != Rates():
            raise ValueError("rates apply to AdamW only: leave them out, or set muon_rate to 0")


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
    clip = [] if config.clip_norm is None else [optax.clip_by_global_norm(config.clip_norm)]
    scaled = [] if config.rates == Rates() else [scale_by_rates(config.rates, total_steps)]
    return moving(optax.chain(*clip, update, *scaled), config.rates)
