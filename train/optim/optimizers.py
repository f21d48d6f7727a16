"""AdamW, with Muon for the matrices of the layers where asked for; warm-up, a schedule, clipping,
what decays.

`rates` has what makes one parameter move faster than another.
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
    """AdamW: Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101.

    Muon: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon: the momentum of a matrix,
    made orthogonal. What is no matrix of a layer is then moved by AdamW with Nesterov's momentum,
    as in optax.
    """

    learning_rate: float = 1e-3
    schedule: str = "cosine"  # "cosine" falls to zero at the last step, "constant" stays
    warmup_fraction: float = 0.1  # of all steps, linear from zero
    weight_decay: float = 0.01
    decay_everything: bool = False  # False: kernels only; not embeddings, norms or biases
    clip_norm: float | None = 1.0  # of the gradient of all parameters together
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    rates: Rates = Rates()  # of single parameters, times the rate of all
    muon_rate: float = 0.0  # the highest of the layers' kernels; 0: AdamW for all

    def __post_init__(self):
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"schedule must be cosine or constant; got {self.schedule!r}")
        if self.muon_rate < 0:
            raise ValueError(f"muon_rate must be 0 or more; got {self.muon_rate}")
        if self.muon_rate and self.rates != Rates():
            raise ValueError("rates scale the steps of AdamW: leave them out with a muon_rate")


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
    """True for every parameter that weight decay shrinks, by its group."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: everything or group_of(parameter_name(path)) in DECAYED, params
    )


def matrices(params: Any) -> Any:
    """Which axes of a matrix of a layer go in and come out; None for what is not Muon's."""

    def axes(path, leaf):
        name = parameter_name(path)
        if group_of(name) != "matrix":
            return None
        inputs = 2 if name.endswith("attention.out_kernel") else 1
        return MuonDimensionNumbers(tuple(range(inputs)), tuple(range(inputs, leaf.ndim)))

    return jax.tree_util.tree_map_with_path(axes, params)


def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Clip, then AdamW, or Muon and AdamW, on the schedule."""
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
            # optax has no mask for it, so that an untied head does not decay beside Muon.
            adam_weight_decay=config.weight_decay if config.decay_everything else 0.0,
            muon_weight_dimension_numbers=matrices,
        )
    clip = [] if config.clip_norm is None else [optax.clip_by_global_norm(config.clip_norm)]
    scaled = [] if config.rates == Rates() else [scale_by_rates(config.rates, total_steps)]
    return moving(optax.chain(*clip, update, *scaled), config.rates)
