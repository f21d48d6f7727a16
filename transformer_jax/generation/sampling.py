"""How the next token is drawn from its logits: pure functions of logits, and the order in which
they are applied.

Each takes logits [B, V] and gives logits; a token that may not be drawn has -inf. `draw` applies
those that a `Sampling` asks for: penalty, temperature, top-k, top-p, min-p.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.functional.checks import check_arrays


@dataclass(frozen=True)
class Sampling:
    """What is drawn from; None and 1 leave a thing out."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self):
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(
                f"temperature must be above 0; got {self.temperature}. "
                "The likeliest token is drawn without a Sampling (greedy)"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be 1 or more; got {self.top_k}")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise ValueError(f"{name} must be in (0, 1]; got {value}")
        if not 0.0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty must be above 0; got {self.repetition_penalty}")


def draw(
    logits: Float[Array, "B V"],
    sampling: Sampling | None,
    key: PRNGKeyArray,
    *,
    is_used: Bool[Array, "B V"] | None = None,
) -> Int[Array, " B"]:
    """The next token of each example: the likeliest where `sampling` is None, else drawn as it
    says.

    `is_used` marks the tokens that the penalty is for.
    """
    if sampling is None:
        return logits.argmax(axis=-1).astype(jnp.int32)
    logits = adjusted(logits, sampling, is_used=is_used)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def adjusted(
    logits: Float[Array, "B V"], sampling: Sampling, *, is_used: Bool[Array, "B V"] | None = None
) -> Float[Array, "B V"]:
    """Return the logits that are drawn from.

    Penalty, temperature, top-k, top-p and min-p follow in this order.
    """
    if sampling.repetition_penalty != 1.0 and is_used is not None:
        logits = penalise_repetition(logits, is_used, sampling.repetition_penalty)
    logits = logits / sampling.temperature
    if sampling.top_k is not None:
        logits = top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = min_p(logits, sampling.min_p)
    return logits


def top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """The k largest logits, and what equals the last of them (Fan et al., 2018,
    https://arxiv.org/abs/1805.04833).

    Raises ValueError for k below 1.

    >>> top_k(jnp.array([[1.0, 3.0, 2.0]]), 2)
    Array([[-inf,   3.,   2.]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"))
    if k < 1:
        raise ValueError(f"k must be 1 or more; got {k}")
    least = jax.lax.top_k(logits, min(k, logits.shape[-1]))[0][:, -1:]
    return jnp.where(logits >= least, logits, -jnp.inf)


def top_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """The fewest likeliest tokens whose probabilities reach p together (nucleus sampling).

    Holtzman et al., 2020, https://arxiv.org/abs/1904.09751, section 3.1. Of equal tokens the first
    come first. Raises ValueError for p outside (0, 1].

    >>> top_p(jnp.log(jnp.array([[0.2, 0.5, 0.3]])), 0.7).round(2)
    Array([[ -inf, -0.69, -1.2 ]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"))
    _check_share("p", p)
    order = jnp.argsort(-logits, axis=-1, stable=True)
    probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    # A token stays while those before it have not reached p; the first always does.
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    rank = jnp.argsort(order, axis=-1)
    return jnp.where(jnp.take_along_axis(before < p, rank, axis=-1), logits, -jnp.inf)


def min_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """The tokens that are at least p times as likely as the likeliest (Nguyen et al., 2024,
    https://arxiv.org/abs/2407.01082).

    Raises ValueError for p outside (0, 1].

    >>> min_p(jnp.log(jnp.array([[0.1, 0.6, 0.3]])), 0.5).round(2)
    Array([[ -inf, -0.51, -1.2 ]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"))
    _check_share("p", p)
    least = logits.max(axis=-1, keepdims=True) + math.log(p)
    return jnp.where(logits >= least, logits, -jnp.inf)


def penalise_repetition(
    logits: Float[Array, "B V"], is_used: Bool[Array, "B V"], penalty: float
) -> Float[Array, "B V"]:
    """Logits of used tokens divided by the penalty where they are above 0, multiplied by it where
    below.

    Keskar et al., 2019, https://arxiv.org/abs/1909.05858, section 4.1, with the sign handled as
    Transformers does. Raises ValueError for a penalty of 0 or less.

    >>> penalise_repetition(jnp.array([[2.0, -2.0, 1.0]]), jnp.array([[True, True, False]]), 2.0)
    Array([[ 1., -4.,  1.]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"), is_used=(is_used, "bool B V"))
    if not penalty > 0:
        raise ValueError(f"penalty must be above 0; got {penalty}")
    return jnp.where(is_used, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def _check_share(name, value):
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must be in (0, 1]; got {value}")
