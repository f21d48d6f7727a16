"""Sampling of the next token: pure functions that change logits, applied in a fixed order.

Each function maps logits [B, V] to logits, in which a token that must not be drawn has -inf. `draw`
applies those that a `Sampling` sets: repetition penalty, temperature, top-k, top-p, min-p.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.functional.checks import check_arrays


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling. None, and a temperature or penalty of 1, have no effect.

    Raises ValueError for a temperature or penalty that is not above 0 and finite, a top_k below 1,
    and a top_p or min_p outside (0, 1].
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self):
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(
                f"temperature must be above 0; got {self.temperature}. "
                "For greedy decoding, pass no Sampling"
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
    """Draw the next token of each example, or take the likeliest one if `sampling` is None.

    `is_used` marks the tokens that the repetition penalty applies to.
    """
    if sampling is None:
        return logits.argmax(axis=-1).astype(jnp.int32)
    logits = adjusted(logits, sampling, is_used=is_used)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def adjusted(
    logits: Float[Array, "B V"], sampling: Sampling, *, is_used: Bool[Array, "B V"] | None = None
) -> Float[Array, "B V"]:
    """Apply the settings of `sampling` to logits.

    The order is repetition penalty, temperature, top-k, top-p, min-p.
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
    """Keep the k largest logits, and all that equal the smallest of them.

    The others become -inf. Fan et al., 2018, https://arxiv.org/abs/1805.04833. Raises ValueError
    for k below 1.

    >>> top_k(jnp.array([[1.0, 3.0, 2.0]]), 2)
    Array([[-inf,   3.,   2.]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"))
    if k < 1:
        raise ValueError(f"k must be 1 or more; got {k}")
    least = jax.lax.top_k(logits, min(k, logits.shape[-1]))[0][:, -1:]
    return jnp.where(logits >= least, logits, -jnp.inf)


def top_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """Keep the smallest set of likeliest tokens with a total probability of at least p.

    The logits of the others become -inf. This is nucleus sampling: Holtzman et al., 2020,
    https://arxiv.org/abs/1904.09751, section 3.1. Among equal probabilities, tokens with smaller
    ids are kept first. Raises ValueError for p outside (0, 1].

    >>> top_p(jnp.log(jnp.array([[0.2, 0.5, 0.3]])), 0.7).round(2)
    Array([[ -inf, -0.69, -1.2 ]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"))
    _check_share("p", p)
    order = jnp.argsort(-logits, axis=-1, stable=True)
    probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    # A token stays if the tokens before it have a total below p; the first one always stays.
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    rank = jnp.argsort(order, axis=-1)
    return jnp.where(jnp.take_along_axis(before < p, rank, axis=-1), logits, -jnp.inf)


def min_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """Keep the tokens that are at least p times as likely as the likeliest token.

    The logits of the others become -inf. Nguyen et al., 2024, https://arxiv.org/abs/2407.01082.
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
    """Divide positive logits of used tokens by the penalty, and multiply negative ones by it.

    Keskar et al., 2019, https://arxiv.org/abs/1909.05858, section 4.1. The sign is handled as in
    Hugging Face Transformers. Raises ValueError for a penalty of 0 or less.

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
