"""Laws through measured points: time against length, loss against the size of a model.

    power law    y = factor x^exponent        fit_power_law    a line in log-log
    quadratic    y = a + b x + c x^2          fit_quadratic    overhead, linear and quadratic part

A power law of time is what one term of a polynomial leaves when the others are small; a power law
of loss is an observation (Kaplan et al., 2020, https://arxiv.org/abs/2001.08361, equation 1.1: L(N)
= (N_c / N)^alpha, which is exponent = -alpha here). Either is worth what its interval says.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Points = Sequence[float | int] | np.ndarray
Numbers = np.floating | np.ndarray


@dataclass(frozen=True)
class PowerLaw:
    """y = factor x^exponent, and `interval`, which holds the true exponent with probability
    `confidence`.
    """

    exponent: float
    factor: float
    interval: tuple[float, float]
    confidence: float

    def __call__(self, x: float | int | Points) -> Numbers:
        """The law at x, measured there or not."""
        return self.factor * np.asarray(x, np.float64) ** self.exponent


@dataclass(frozen=True)
class Quadratic:
    """y = a + b x + c x^2; `worst` is the largest |fit - y| / y over the points."""

    a: float
    b: float
    c: float
    worst: float

    def __call__(self, x: float | int | Points) -> Numbers:
        """The law at x, measured there or not."""
        x = np.asarray(x, np.float64)
        return self.a + self.b * x + self.c * x**2

    @property
    def crossover(self) -> float:
        """The x = b/c from which the quadratic term is the larger: inf without one, 0 without a
        linear one.
        """
        return self.b / self.c if self.c else math.inf


def fit_power_law(
    x: Points, y: Points, *, confidence: float = 0.95, draws: int = 4000, seed: int = 0
) -> PowerLaw:
    """Least squares through (log x, log y), and a bootstrap interval of the exponent.

    The interval is a parametric bootstrap-t (Efron and Tibshirani, 1993, chapter 12): noise drawn
    anew around the line, each draw's error of the exponent in units of its own standard error.
    Resampling the points or their residuals instead, the usual bootstrap, covers the truth too
    seldom where there are few points; with normal noise this is Student's interval. Two points
    leave no residual, so theirs is (-inf, inf).

    Raises ValueError for fewer than two different x, for lengths that differ, and for values that
    are not positive and finite.
    """
    x, y = _points(x, y, least=2)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    log_x, log_y = np.log(x), np.log(y)
    exponent, error = _slope(log_x, log_y)
    interval = (-math.inf, math.inf)
    if len(x) > 2:
        noise = np.random.default_rng(seed).standard_normal((draws, len(x)))
        slopes, errors = _slope(log_x, noise)
        tail = (1 - confidence) / 2
        low, high = np.quantile(slopes / errors, [tail, 1 - tail])
        interval = (float(exponent - high * error), float(exponent - low * error))
    factor = math.exp(log_y.mean() - exponent * log_x.mean())
    return PowerLaw(float(exponent), factor, interval, confidence)


def fit_quadratic(x: Points, y: Points) -> Quadratic:
    """The a, b, c >= 0 that make the sum of ((a + b x + c x^2 - y) / y)^2 smallest.

    Relative errors, because times span four orders of magnitude and the longest would decide alone.
    Not negative, because each is the cost of something (Lawson and Hanson, 1974, chapter 23); with
    three coefficients the optimum is the best of the seven choices of which to leave at 0.

    Raises ValueError as `fit_power_law` does, and for fewer than three different x.
    """
    x, y = _points(x, y, least=3)
    # In units of the largest x the columns are of one size; and each row is divided by its y.
    unit = x.max()
    columns = np.stack([np.ones_like(x), x / unit, (x / unit) ** 2], axis=1) / y[:, None]
    best, least = np.zeros(3), math.inf
    for size in (1, 2, 3):
        for kept in map(list, itertools.combinations(range(3), size)):
            found, *_ = np.linalg.lstsq(columns[:, kept], np.ones_like(y), rcond=None)
            loss = float(np.square(columns[:, kept] @ found - 1).sum())
            if (found >= 0).all() and loss < least:
                best, least = np.zeros(3), loss
                best[kept] = found
    worst = float(np.abs(columns @ best - 1).max())
    a, b, c = best / [1, unit, unit**2]
    return Quadratic(float(a), float(b), float(c), worst)


def crossing(x: Points, first: Points, second: Points) -> float | None:
    """The x from which `first` stays above `second`: a straight line in log-log between measured
    points.

    None where `first` is still below at the last point, and x[0] where it is never below: beyond
    what was measured nothing is said. Raises ValueError as `fit_power_law` does; x must grow.
    """
    x, first = _points(x, first, least=2)
    _, second = _points(x, second, least=2)
    if (np.diff(x) <= 0).any():
        raise ValueError(f"x must grow from point to point, got {x.tolist()}")
    gap = np.log(first / second)
    below = np.flatnonzero(gap < 0)
    if len(below) == 0:
        return float(x[0])
    i = below[-1]
    if i == len(x) - 1:
        return None
    share = gap[i] / (gap[i] - gap[i + 1])
    return float(x[i] * (x[i + 1] / x[i]) ** share)


def _points(x: Points, y: Points, *, least: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"x and y must be two lists of one length, got {x.shape} and {y.shape}")
    for name, values in (("x", x), ("y", y)):
        bad = values[~((values > 0) & np.isfinite(values))]
        if len(bad):
            raise ValueError(f"{name} must be positive and finite, got {bad[0]}; leave it out")
    if len(np.unique(x)) < least:
        raise ValueError(f"expected {least} or more different x, got {np.unique(x).tolist()}")
    return x, y


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[Numbers, Numbers]:
    """The slope of the line through each row of y [..., n] and its standard error; 0 for two
    points.
    """
    centred = x - x.mean()
    spread = np.square(centred).sum()
    slope = y @ centred / spread
    residuals = y - y.mean(axis=-1, keepdims=True) - slope[..., None] * centred
    free = max(len(x) - 2, 1)
    return slope, np.sqrt(np.square(residuals).sum(axis=-1) / free / spread)
