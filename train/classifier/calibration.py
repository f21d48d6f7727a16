"""Probabilities that mean what they say: a number for each part of a model, fitted on validation,
times its logits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import log_softmax

from transformer_jax.nn.parameters import parameter_name

LEAST, MOST = 0.05, 20.0
LINEAR = ("kernel", "weight", "bias")  # of a part: its logits are proportional to these together


def weights_of(
    parts: Sequence[Float[np.ndarray, "n C"]], labels: Int[np.ndarray, " n"]
) -> list[float]:
    """The w, from 0.05 to 20, that minimise the mean of -log softmax(sum_i w_i parts_i)[label].

    Of one part it is 1/T with the temperature T of Guo et al., 2017,
    https://arxiv.org/abs/1706.04599, section 4.2: above 1 where a model is less sure than it is
    right; no answer changes. Of several it is also how much each is heard.

    >>> sure = np.log([[0.9, 0.1]] * 4)  # right in three of four
    >>> (weight,) = weights_of([sure], np.array([0, 0, 0, 1]))
    >>> round(float(0.9**weight / (0.9**weight + 0.1**weight)), 3)
    0.75
    """
    parts = np.stack([np.asarray(part, np.float64) for part in parts])
    rows = np.arange(len(labels))

    def loss(log_weights: np.ndarray) -> tuple[float, np.ndarray]:
        weights = np.exp(log_weights)
        logs = log_softmax(np.tensordot(weights, parts, 1), axis=1)
        # d/dw_i: what the part says of the class on average over the probabilities, less what it
        # says of the label.
        slopes = (np.exp(logs) * parts).sum(axis=2) - parts[:, rows, labels]
        return -logs[rows, labels].mean(), weights * slopes.mean(axis=1)

    bounds = [(np.log(LEAST), np.log(MOST))] * len(parts)
    found = minimize(loss, np.zeros(len(parts)), jac=True, bounds=bounds, method="L-BFGS-B")
    return np.exp(found.x).tolist()


def weighted(params: Any, weights: dict[str, float]) -> Any:
    """Parameters whose parts, by the first names of theirs, give logits times these: nothing else
    has to know of it.
    """

    def times(path, leaf):
        part, last = parameter_name(path).rsplit(".", 1)
        return leaf * weights[part] if part in weights and last in LINEAR else leaf

    return jax.tree_util.tree_map_with_path(times, params)


def only(params: Any, part: str, parts: Sequence[str]) -> Any:
    """Parameters with which the other parts say nothing."""
    return weighted(params, {other: 0.0 for other in parts if other != part})


def log_probabilities(probabilities: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    """Their logarithms; of what was rounded to 0, that of the least of float32."""
    return np.log(np.maximum(np.asarray(probabilities, np.float64), np.finfo(np.float32).tiny))


def calibrated(
    params: Any,
    score: Callable[[Any], Float[np.ndarray, "n C"]],
    labels: Int[np.ndarray, " n"],
    parts: Sequence[str],
) -> tuple[Any, dict[str, float]]:
    """The parameters with the best weight for each part, and the weights; `score` gives class
    probabilities.
    """
    said = [log_probabilities(score(only(params, part, parts))) for part in parts]
    weights = dict(zip(parts, weights_of(said, labels), strict=True))
    return weighted(params, weights), weights
