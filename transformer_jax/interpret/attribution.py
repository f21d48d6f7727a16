"""Integrated gradients: attributions of a network's output to its inputs, checked to be complete.

    a_t = x_t int_0^1 df/dx_t(alpha x) d alpha        sum_t a_t = f(x) - f(0)

Sundararajan, Taly and Yan, 2017, "Axiomatic attribution for deep networks"
(https://arxiv.org/abs/1703.01365), equation 1 and proposition 1, along the straight line from the
baseline 0 to x. The second equation (completeness) holds exactly for the integral. The integral is
approximated by a sum, and the error of the second equation shows how accurate that sum is.

The attributions depend on the baseline. They describe what the network computes, not what is true
of the world.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.precision import wide

# The nodes of the first try, and the points of each call of `evaluate`: one shape, compiled once.
NODES = 8
# The gap is compared with a difference of at least this: a thousandth of a logit decides nothing.
SMALLEST = 0.1


@dataclass(frozen=True)
class Attribution:
    """The attributions of one input: the share of each element in f(x) - f(0), and their gap."""

    values: Float[np.ndarray, " T"]
    f_of_all: float  # f(x)
    f_of_nothing: float  # f(0), at the baseline
    nodes: int  # number of nodes of the numerical integral
    tolerance: float

    @property
    def difference(self) -> float:
        """The difference f(x) - f(0), to which the values should sum."""
        return self.f_of_all - self.f_of_nothing

    @property
    def total(self) -> float:
        """The sum of the values."""
        return float(self.values.sum())

    @property
    def gap(self) -> float:
        """The total minus the difference: the error of the completeness equation."""
        return self.total - self.difference

    @property
    def is_complete(self) -> bool:
        """Whether the gap is at most `tolerance` times the difference, or times 0.1 if the
        difference is smaller than that.
        """
        return abs(self.gap) <= self.tolerance * max(abs(self.difference), SMALLEST)


def log_odds(logits: Float[Array, "... C"], index: int | Int[Array, ""]) -> Float[Array, "..."]:
    """Compute the log odds of class c = `index` from logits:

        log(p_c / (1 - p_c)) = logits_c - logsumexp of the other logits

    Above 0 the class has a probability above one half. With two classes it is the difference of
    their logits. The result is float32 or wider. Raises ValueError for fewer than two classes.

    >>> log_odds(jnp.array([2.0, 5.0]), 1)
    Array(3., dtype=float32)
    """
    check_arrays(logits=(logits, "... C"))
    if logits.shape[-1] < 2:
        raise ValueError(f"logits must be of two classes or more; got the shape {logits.shape}")
    logits = wide(logits)
    is_class = jnp.arange(logits.shape[-1]) == index
    own = jnp.where(is_class, logits, 0).sum(axis=-1)
    return own - jax.nn.logsumexp(jnp.where(is_class, -jnp.inf, logits), axis=-1)


def values_and_gradients(
    f: Callable[[Float[Array, "A T"]], Float[Array, " A"]], points: Float[Array, "A T"]
) -> tuple[Float[Array, " A"], Float[Array, "A T"]]:
    """Compute f and its gradient at every row of `points`.

    f must compute each output from its own row alone.

    >>> values_and_gradients(lambda x: x[:, 0] * x[:, 1], jnp.array([[2.0, 3.0], [4.0, 5.0]]))
    (Array([ 6., 20.], dtype=float32), Array([[3., 2.],
           [5., 4.]], dtype=float32))
    """

    def total(points):
        values = f(points)
        return values.sum(), values

    gradients, values = jax.grad(total, has_aux=True)(points)
    return values, gradients


def nodes_and_weights(
    count: int,
) -> tuple[Float[np.ndarray, " A"], Float[np.ndarray, " A"]]:
    """Return the nodes and weights of Gauss-Legendre quadrature on [0, 1]:

        int_0^1 g = sum_i weight_i g(node_i)

    It is exact if g is a polynomial of degree below 2 count. Press et al., 2007, Numerical Recipes,
    section 4.6. The nodes are dense at both ends, where the output of a normalization layer changes
    fast because its input is close to 0.

    >>> nodes, weights = nodes_and_weights(2)
    >>> (weights * nodes**3).sum().round(6)  # int_0^1 x^3
    np.float64(0.25)
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def integrated_gradients(
    evaluate: Callable[[Float[Array, "A T"]], tuple[Float[Array, " A"], Float[Array, "A T"]]],
    x: Float[Array | np.ndarray, " T"],
    *,
    tolerance: float = 0.01,
    limit: int = 512,
) -> Attribution:
    """Compute the integrated gradients of f at x:

        a_t = x_t int_0^1 df/dx_t(alpha x) d alpha

    (Sundararajan et al., 2017, equation 1). The sum is taken in float64. `evaluate` returns f and
    its gradient at 8 points, as `values_and_gradients` does; the caller jits it. The number of
    nodes starts at 8 and doubles until the attribution is complete to `tolerance`. If it would
    exceed `limit` first, `is_complete` of the result is False. Raises ValueError for a limit below
    8 or a tolerance of 0 or less.

    >>> product = lambda points: values_and_gradients(lambda x: x[:, 0] * x[:, 1], points)
    >>> found = integrated_gradients(product, jnp.array([2.0, 3.0]))
    >>> found.values, found.nodes, found.is_complete
    (array([3., 3.]), 8, True)
    """
    check_arrays(x=(x, "T"))
    if limit < NODES:
        raise ValueError(f"limit must be {NODES} or more; got {limit}")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be above 0; got {tolerance}")
    x = np.asarray(x)
    (nothing, all_), _ = _along(evaluate, x, np.array([0.0, 1.0]))
    count = NODES
    while True:
        nodes, weights = nodes_and_weights(count)
        _, gradients = _along(evaluate, x, nodes)
        values = x.astype(np.float64) * (weights @ gradients)
        found = Attribution(values, float(all_), float(nothing), count, tolerance)
        if found.is_complete or 2 * count > limit:
            return found
        count *= 2


def _along(evaluate, x, alphas):
    """Evaluate f and its gradient at every alpha x in float64, in chunks of the compiled size."""
    values, gradients = [], []
    for start in range(0, len(alphas), NODES):
        chunk = np.zeros(NODES)
        some = alphas[start : start + NODES]
        chunk[: len(some)] = some
        value, gradient = evaluate(jax.device_put((chunk[:, None] * x).astype(x.dtype)))
        values.append(np.asarray(value, np.float64)[: len(some)])
        gradients.append(np.asarray(gradient, np.float64)[: len(some)])
    return np.concatenate(values), np.concatenate(gradients)
