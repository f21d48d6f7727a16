"""Power laws and quadratics fitted to measurements, such as time by length or loss by model size.

    power law    y = factor x^exponent        fit_power_law    a line in log-log
    quadratic    y = a + b x + c x^2          fit_quadratic    overhead, linear and quadratic part

A power law of time holds approximately where one term of a polynomial dominates the others. A power
law of loss is an empirical observation (Kaplan et al., 2020, https://arxiv.org/abs/2001.08361,
equation 1.1: L(N) = (N_c / N)^alpha, so that exponent = -alpha here). The confidence interval shows
how far to trust either.
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
    """A power law y = factor x^exponent, with a confidence interval of the exponent.

    `interval` contains the true exponent with probability `confidence`.
    """

    exponent: float
    factor: float
    interval: tuple[float, float]
    confidence: float

    def __call__(self, x: float | int | Points) -> Numbers:
        """Evaluate the power law at x."""
        return self.factor * np.asarray(x, np.float64) ** self.exponent


@dataclass(frozen=True)
class Quadratic:
    """A quadratic y = a + b x + c x^2. `worst` is the largest |fit - y| / y of the points."""

    a: float
    b: float
    c: float
    worst: float

    def __call__(self, x: float | int | Points) -> Numbers:
        """Evaluate the quadratic at x."""
        x = np.asarray(x, np.float64)
        return self.a + self.b * x + self.c * x**2

    @property
    def crossover(self) -> float:
        """The x = b/c above which the quadratic term exceeds the linear one; inf if c is 0."""
        return self.b / self.c if self.c else math.inf


def fit_power_law(
    x: Points, y: Points, *, confidence: float = 0.95, draws: int = 4000, seed: int = 0
) -> PowerLaw:
    """Fit a power law by least squares in (log x, log y), with an interval of the exponent.

    The interval is a parametric bootstrap-t (Efron and Tibshirani, 1993, chapter 12): new noise is
    drawn around the line, and the error of each draw's exponent is measured in units of its own
    standard error. The usual bootstrap, which resamples the points or their residuals, covers the
    true exponent too rarely with few points. With normal noise the interval is Student's. Two
    points leave no residual, so their interval is (-inf, inf).

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
    """Fit a quadratic: the a, b, c >= 0 that minimize the sum of ((a + b x + c x^2 - y) / y)^2.

    The errors are relative, because times span four orders of magnitude and the longest would
    otherwise dominate. The coefficients are not negative, because each is a cost (Lawson and
    Hanson, 1974, chapter 23). With three coefficients, the optimum is the best of the seven choices
    of nonzero coefficients.

    Raises ValueError as `fit_power_law` does, and for fewer than three different x.
    """
    x, y = _points(x, y, least=3)
    # x is in units of its largest value, so that the columns have similar sizes. Each row is
    # divided by its y, so that the errors are relative.
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
    """Find the x from which on `first` stays above `second`, linear in log-log between points.

    Returns None if `first` is still below `second` at the last point, and x[0] if it never is:
    nothing is extrapolated. Raises ValueError as `fit_power_law` does, and if x does not increase.
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
    """Fit a line to each row of y [..., n]; return slopes and standard errors (0 if n is 2)."""
    centred = x - x.mean()
    spread = np.square(centred).sum()
    slope = y @ centred / spread
    residuals = y - y.mean(axis=-1, keepdims=True) - slope[..., None] * centred
    free = max(len(x) - 2, 1)
    return slope, np.sqrt(np.square(residuals).sum(axis=-1) / free / spread)
