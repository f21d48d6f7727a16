"""Learning-rate factors and start steps of single parameters, by their depth in the model.

    place   0 the embeddings, 1 to L the layers from the bottom up, L + 1 the head

In fine-tuning, lower layers hold general features and should change little, whereas the head is
untrained (Howard and Ruder, 2018, https://arxiv.org/abs/1801.06146).
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from train.optim.config import Rates
from transformer_jax.parallel.axes import parameter_name

LAYER = re.compile(r"(?:^|\.)encoder\.layers\.(\d+)\.")


def place(name: str, num_layers: int) -> int:
    """Return the place of a parameter, given its dotted name.

    A norm after the last layer belongs to that layer.
    """
    if layer := LAYER.search(name):
        return int(layer[1]) + 1
    parts = name.split(".")
    if "embedding" in parts:
        return 0
    return num_layers if "encoder" in parts else num_layers + 1


def factors(params: Any, rates: Rates) -> Any:
    """Return the learning-rate factor of each parameter, once it is trained."""

    def factor(name: str, below: int) -> float:
        if name.startswith(rates.frozen):
            return 0.0
        times = rates.layer_decay**below * (rates.head if below == 0 else 1.0)
        for prefix, more in rates.faster:
            times *= more if name.startswith(prefix) else 1.0
        return times

    return _by_place(factor, params)


def first_steps(params: Any, rates: Rates, total_steps: int) -> Any:
    """Return the first step, counted from 0, at which each parameter is updated."""
    return _by_place(lambda name, below: round(below * rates.unfreeze * total_steps), params)


def _by_place(rule: Callable[[str, int], Any], params: Any) -> Any:
    """Return rule(name, number of places below the head) for every parameter."""
    flat, tree = jax.tree_util.tree_flatten_with_path(params)
    names = [parameter_name(path) for path, _ in flat]
    num_layers = max((int(m[1]) + 1 for m in map(LAYER.search, names) if m), default=0)
    top = num_layers + 1
    return jax.tree.unflatten(tree, [rule(name, top - place(name, num_layers)) for name in names])


def scale_by_rates(rates: Rates, total_steps: int) -> optax.GradientTransformation:
    """Return a transformation that multiplies updates by `factors`, or by 0 before `first_steps`.

    The updates include those of weight decay.
    """

    def init(params):
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(updates, state, params):
        def scaled(update, factor, first):
            update = update if factor == 1.0 else factor * update
            return update if first == 0 else jnp.where(state.count >= first, update, 0.0)

        firsts = first_steps(params, rates, total_steps)
        updates = jax.tree.map(scaled, updates, factors(params, rates), firsts)
        return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def moving(optimizer: optax.GradientTransformation, rates: Rates) -> optax.GradientTransformation:
    """Apply an optimizer only to parameters that are not frozen.

    Frozen ones get no optimizer state, and their gradients do not count in the clipping norm.
    """
    if not rates.frozen:
        return optimizer

    def labels(params):
        return _by_place(
            lambda name, _: "frozen" if name.startswith(rates.frozen) else "moving", params
        )

    return optax.partition({"moving": optimizer, "frozen": optax.set_to_zero()}, labels)
