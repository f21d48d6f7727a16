"""Probabilities that mean what they say: one number, fitted on validation, that every logit is divided by."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from transformer_jax.run_folder import parameter_name

COLDEST, HOTTEST = 0.05, 20.0


def temperature_of(probabilities: Float[np.ndarray, "n C"], labels: Int[np.ndarray, " n"]) -> float:
    """T that minimises the mean of -log softmax(log p / T)[label], from 0.05 to 20.

    Above 1 where a model is surer than it is right. No answer changes, for the order of the classes stays (Guo et al.,
    2017, https://arxiv.org/abs/1706.04599, section 4.2).

    >>> sure = np.array([[0.9, 0.1]] * 4)  # right in three of four
    >>> temperature = temperature_of(sure, np.array([0, 0, 0, 1]))
    >>> round(float(0.9 ** (1 / temperature) / (0.9 ** (1 / temperature) + 0.1 ** (1 / temperature))), 3)
    0.75
    """
    logs = np.log(np.maximum(np.asarray(probabilities, np.float64), np.finfo(np.float64).tiny))
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        return -log_softmax(logs / np.exp(log_temperature), axis=1)[rows, labels].mean()

    found = minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    return float(np.exp(found.x))


def cooled(params: Any, temperature: float) -> Any:
    """Parameters whose head gives logits / temperature: nothing else that reads the model has to know of it."""

    def divided(path, leaf):
        in_head = parameter_name(path) in ("head.kernel", "head.bias")
        return leaf / temperature if in_head else leaf

    return jax.tree_util.tree_map_with_path(divided, params)
