"""Calibration: the logits of each part of a model are scaled by a weight fitted on validation."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import log_softmax

from transformer_jax.parallel.axes import parameter_name

LEAST, MOST = 0.05, 20.0
LINEAR = ("kernel", "weight", "bias")  # scaling these parameters of a part scales its logits


def smoothed_targets(labels: Int[np.ndarray, " n"], classes: int) -> Float[np.ndarray, "n C"]:
    """Return a target distribution for each label, which leaves room for errors not yet seen.

        (n + 1) / (n + 2) for the class of the label, if n of the labels are of this class

    The rest is shared equally by the other classes. For two classes these are the targets of Platt,
    1999, "Probabilistic outputs for support vector machines", section 2.2. With them the best
    weights are finite also if every text is classified correctly: log-odds of about log(n + 1).

    >>> smoothed_targets(np.array([0, 0, 1]), classes=2).round(3).tolist()
    [[0.75, 0.25], [0.75, 0.25], [0.333, 0.667]]
    """
    rest = 1 / (np.bincount(labels, minlength=classes)[labels] + 2)
    targets = np.repeat(rest[:, None] / max(classes - 1, 1), classes, axis=1)
    targets[np.arange(len(labels)), labels] = 1 - rest
    return targets


def weights_of(
    parts: Sequence[Float[np.ndarray, "n C"]], targets: Float[np.ndarray, "n C"]
) -> list[float]:
    """Find the weights of the parts' logits that minimise the cross-entropy of their sum.

    These are the w, from 0.05 to 20, that minimise the mean over the texts of
    -sum_c targets_c log softmax(sum_i w_i parts_i)_c. For one part, w is 1/T with the temperature T
    of Guo et al., 2017, https://arxiv.org/abs/1706.04599, section 4.2: it is above 1 if the model
    is underconfident, and predictions do not change. For several parts, w also sets their relative
    influence. Where the targets are one-hot and all texts are classified correctly, the best
    weights are infinite; see `smoothed_targets`.

    >>> sure = np.log([[0.9, 0.1]] * 4)  # right in three of four
    >>> (weight,) = weights_of([sure], np.eye(2)[[0, 0, 0, 1]])
    >>> round(float(0.9**weight / (0.9**weight + 0.1**weight)), 3)
    0.75
    """
    parts = np.stack([np.asarray(part, np.float64) for part in parts])

    def loss(log_weights: np.ndarray) -> tuple[float, np.ndarray]:
        weights = np.exp(log_weights)
        logs = log_softmax(np.tensordot(weights, parts, 1), axis=1)
        # d/dw_i: the part's mean logit under the predicted probabilities, minus that under the
        # targets.
        slopes = ((np.exp(logs) - targets) * parts).sum(axis=2)
        return -(targets * logs).sum(axis=1).mean(), weights * slopes.mean(axis=1)

    bounds = [(np.log(LEAST), np.log(MOST))] * len(parts)
    found = minimize(loss, np.zeros(len(parts)), jac=True, bounds=bounds, method="L-BFGS-B")
    return np.exp(found.x).tolist()


def weighted(params: Any, weights: dict[str, float]) -> Any:
    """Return parameters with which each part gives its logits times its weight.

    Parts are found by the leading names of their parameters. The weights are folded into the
    parameters, so the model itself needs no change.
    """

    def times(path, leaf):
        part, last = parameter_name(path).rsplit(".", 1)
        return leaf * weights[part] if part in weights and last in LINEAR else leaf

    return jax.tree_util.tree_map_with_path(times, params)


def only(params: Any, part: str, parts: Sequence[str]) -> Any:
    """Return parameters with which all parts except `part` give logits of zero."""
    return weighted(params, {other: 0.0 for other in parts if other != part})


def log_probabilities(probabilities: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    """Return the logarithms of probabilities, which are clipped to the smallest normal float32."""
    return np.log(np.maximum(np.asarray(probabilities, np.float64), np.finfo(np.float32).tiny))


def calibrated(
    params: Any,
    score: Callable[[Any], Float[np.ndarray, "n C"]],
    labels: Int[np.ndarray, " n"],
    parts: Sequence[str],
) -> tuple[Any, dict[str, float]]:
    """Fit the weight of each part; return the weighted parameters, and the weights.

    `score` returns class probabilities for parameters; `labels` are the true classes.
    """
    said = [log_probabilities(score(only(params, part, parts))) for part in parts]
    targets = smoothed_targets(labels, said[0].shape[1])
    weights = dict(zip(parts, weights_of(said, targets), strict=True))
    return weighted(params, weights), weights
