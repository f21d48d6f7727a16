"""Sampling of the next token: pure functions that change logits, applied in a fixed order.

Each function maps logits [B, V] to logits, in which a token that must not be drawn has -inf. `draw`
applies those that a `Sampling` sets: repetition penalty, temperature, top-k, top-p, min-p.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.functional.checks import check_arrays, check_number, check_whole
from transformer_jax.functional.precision import wide


class SamplingNumbers(NamedTuple):
    """The numbers of a `Sampling`, which can be arguments of a compiled function.

    None has no effect. `top_p` is p and 1 - p, because a p near 1 is 1 in float32; `min_p` is the
    logarithm of p.
    """

    penalty: Float[Array, ""] | float | None = None
    temperature: Float[Array, ""] | float | None = None
    top_p: tuple[Float[Array, ""] | float, Float[Array, ""] | float] | None = None
    min_p: Float[Array, ""] | float | None = None


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling. None, and a temperature or penalty of 1, have no effect.

    With `greedy`, the likeliest token after the repetition penalty is taken, and nothing is drawn.

    Raises ValueError for a temperature or penalty that is not above 0 and finite, a top_k below 1,
    a top_p or min_p outside (0, 1], and for `greedy` with a setting other than the penalty. Raises
    TypeError for a setting of another type.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    greedy: bool = False

    def __post_init__(self):
        for name, hint in (
            ("temperature", ". For greedy decoding, pass no Sampling"),
            ("repetition_penalty", ""),
        ):
            _check_positive(name, getattr(self, name), hint)
        if self.top_k is not None:
            check_whole("top_k", self.top_k, least=1)
        for name in ("top_p", "min_p"):
            if getattr(self, name) is not None:
                _check_share(name, getattr(self, name))
        if type(self.greedy) is not bool:
            raise TypeError(f"greedy must be True or False; got {self.greedy!r:.60}")
        others = (self.temperature, self.top_k, self.top_p, self.min_p)
        if self.greedy and others != (1.0, None, None, None):
            raise ValueError("greedy takes the likeliest token: only repetition_penalty changes it")

    @property
    def numbers(self) -> SamplingNumbers:
        """The settings that can be arguments of a program: all but `top_k` and `greedy`."""
        p, least = self.top_p, self.min_p
        return SamplingNumbers(
            None if self.repetition_penalty == 1 else float(self.repetition_penalty),
            None if self.temperature == 1 else float(self.temperature),
            None if p is None or p == 1 else (float(p), 1.0 - float(p)),
            None if least is None else math.log(least),
        )


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
        return draw_token(logits, SamplingNumbers(), key, greedy=True)
    numbers, top_k, greedy = sampling.numbers, sampling.top_k, sampling.greedy
    return draw_token(logits, numbers, key, top_k=top_k, greedy=greedy, is_used=is_used)


def draw_token(
    logits: Float[Array, "B V"],
    numbers: SamplingNumbers,
    key: PRNGKeyArray,
    *,
    top_k: int | None = None,
    greedy: bool = False,
    is_used: Bool[Array, "B V"] | None = None,
) -> Int[Array, " B"]:
    """Draw as `draw` does, with numbers that may be traced."""
    logits = _adjusted(wide(logits), numbers, top_k, is_used)
    if greedy:
        return logits.argmax(axis=-1).astype(jnp.int32)
    return jax.random.categorical(key, below_largest(logits), axis=-1).astype(jnp.int32)


def adjusted(
    logits: Float[Array, "B V"], sampling: Sampling, *, is_used: Bool[Array, "B V"] | None = None
) -> Float[Array, "B V"]:
    """Apply the settings of `sampling` to logits, computed in float32 at least.

    The order is repetition penalty, temperature, top-k, top-p, min-p. With a penalty or temperature
    other than 1, the largest logit is also subtracted, which changes no probability.
    """
    check_arrays(logits=(logits, "B V"))
    found = _adjusted(wide(logits), sampling.numbers, sampling.top_k, is_used)
    return _as_finite(found, logits.dtype)


def _adjusted(logits, numbers, k, is_used):
    penalty = None if is_used is None else numbers.penalty
    if penalty is not None:
        logits = _penalised(logits, is_used, penalty)
    if penalty is not None or numbers.temperature is not None:
        logits = _tempered(logits, 1.0 if numbers.temperature is None else numbers.temperature)
    if k is not None:
        logits = top_k(logits, k)
    if numbers.top_p is not None:
        logits = _nucleus(logits, *numbers.top_p)
    return logits if numbers.min_p is None else _likely(logits, numbers.min_p)


def below_largest(logits: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """Return logits minus the largest one, which becomes 0 even if it is infinite.

    The softmax stays the same. Logits of +inf share the probability equally.

    >>> below_largest(jnp.array([1.0, 3.0])), below_largest(jnp.array([1.0, jnp.inf]))
    (Array([-2.,  0.], dtype=float32), Array([-inf,   0.], dtype=float32))
    """
    largest = logits.max(axis=-1, keepdims=True)
    return jnp.where(logits == largest, jnp.zeros_like(logits), logits - largest)


def log_probabilities(logits: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """Compute the logarithm of the softmax, in float32 at least.

    Logits of +inf share the probability equally.

    >>> log_probabilities(jnp.array([0.0, 0.0, jnp.inf, -jnp.inf]))
    Array([-inf, -inf,   0., -inf], dtype=float32)
    """
    logits = wide(logits)
    return jax.nn.log_softmax(below_largest(logits), axis=-1)


def _tempered(logits, temperature):
    temperature = _in_range(temperature, logits.dtype)
    # Whichever comes first cannot overflow, so that the likeliest tokens keep their order.
    logits = below_largest(logits / jnp.maximum(temperature, 1.0))
    return logits / jnp.minimum(temperature, 1.0)


def _in_range(value, dtype):
    """Return a number above 0 as one that is normal in a dtype, as is its reciprocal."""
    # XLA may multiply by the reciprocal instead of dividing, and set what is not normal to 0.
    least = float(jnp.finfo(dtype).tiny)
    return jnp.clip(value, least, 1.0 / least)


def _as_finite(logits, dtype):
    """Convert to a dtype, in which finite logits stay finite."""
    limits = jnp.finfo(dtype)
    inside = jnp.clip(logits, float(limits.min), float(limits.max))
    return jnp.where(jnp.isfinite(logits), inside, logits).astype(dtype)


def top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """Keep the k largest logits, and all that equal the smallest of them.

    The others become -inf. Fan et al., 2018, https://arxiv.org/abs/1805.04833. Raises ValueError
    for k below 1, TypeError if it is not a whole number.

    >>> top_k(jnp.array([[1.0, 3.0, 2.0]]), 2)
    Array([[-inf,   3.,   2.]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"))
    check_whole("k", k, least=1)
    largest, tokens = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    # By index too: XLA may compute the logits again here, and round the k-th below itself.
    rows = jnp.arange(logits.shape[0])[:, None]
    is_below = (logits < largest[:, -1:]).at[rows, tokens].set(False)
    return jnp.where(is_below, -jnp.inf, logits)


def top_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """Keep the smallest set of likeliest tokens with a total probability of at least p.

    The logits of the others become -inf; p = 1 keeps every token. This is nucleus sampling:
    Holtzman et al., 2020, https://arxiv.org/abs/1904.09751, section 3.1. Among equal probabilities,
    tokens with smaller ids are kept first. Raises ValueError for p outside (0, 1], TypeError if it
    is not a number.

    >>> top_p(jnp.log(jnp.array([[0.2, 0.5, 0.3]])), 0.7).round(2)
    Array([[ -inf, -0.69, -1.2 ]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"))
    _check_share("p", p)
    return logits if p == 1 else _nucleus(logits, float(p), 1.0 - float(p))


def _nucleus(logits, p, rest):
    logits_wide = wide(logits)
    order = jnp.argsort(-logits_wide, axis=-1, stable=True)
    weights = jnp.exp(jnp.take_along_axis(below_largest(logits_wide), order, axis=-1))
    # A token is dropped if those before it have a share of p or more: before >= p (before + after),
    # with `after` summed from the smallest weight. Both sums are accurate relative to their size.
    # A share 1 - after/total would lose the small weights of a large vocabulary.
    before = jnp.pad(jax.lax.cumsum(weights, axis=1)[:, :-1], ((0, 0), (1, 0)))
    after = jax.lax.cumsum(weights, axis=1, reverse=True)
    drops = (before * rest >= after * p) & (before > 0)  # never the first
    rank = jnp.argsort(order, axis=-1)
    return jnp.where(jnp.take_along_axis(drops, rank, axis=-1), -jnp.inf, logits)


def min_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """Keep the tokens that are at least p times as likely as the likeliest token.

    The logits of the others become -inf. Nguyen et al., 2024, https://arxiv.org/abs/2407.01082.
    Raises ValueError for p outside (0, 1], TypeError if it is not a number.

    >>> min_p(jnp.log(jnp.array([[0.1, 0.6, 0.3]])), 0.4).round(2)
    Array([[ -inf, -0.51, -1.2 ]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"))
    _check_share("p", p)
    return _likely(logits, math.log(p))


def _likely(logits, log_p):
    logits_wide = wide(logits)
    # By index too, for the reason that `top_k` has.
    likeliest = jnp.argmax(logits_wide, axis=-1, keepdims=True)
    is_other = jnp.arange(logits.shape[-1]) != likeliest
    return jnp.where((below_largest(logits_wide) < log_p) & is_other, -jnp.inf, logits)


def penalise_repetition(
    logits: Float[Array, "B V"], is_used: Bool[Array, "B V"], penalty: float
) -> Float[Array, "B V"]:
    """Divide positive logits of used tokens by the penalty, and multiply negative ones by it.

    Keskar et al., 2019, https://arxiv.org/abs/1909.05858, section 4.1. The sign is handled as in
    Hugging Face Transformers. A finite logit stays finite. Raises ValueError for a penalty that is
    not above 0 and finite, TypeError if it is not a number.

    >>> penalise_repetition(jnp.array([[2.0, -2.0, 1.0]]), jnp.array([[True, True, False]]), 2.0)
    Array([[ 1., -4.,  1.]], dtype=float32)
    """
    check_arrays(logits=(logits, "B V"), is_used=(is_used, "bool B V"))
    _check_positive("penalty", penalty)
    return _penalised(logits, is_used, penalty)


def _penalised(logits, is_used, penalty):
    dtype = logits.dtype
    logits = wide(logits)
    limits, penalty = jnp.finfo(logits.dtype), _in_range(penalty, logits.dtype)
    changed = jnp.where(logits > 0, logits / penalty, logits * penalty)
    limit = jnp.where(logits > 0, limits.max, limits.min).astype(logits.dtype)
    changed = jnp.where(jnp.isfinite(logits) & ~jnp.isfinite(changed), limit, changed)
    return _as_finite(jnp.where(is_used, changed, logits), dtype)


def _check_positive(name, value, hint=""):
    check_number(name, value)
    if not 0.0 < value < math.inf:
        wanted = "finite" if value > 0 else "above 0"
        raise ValueError(f"{name} must be {wanted}; got {value}{hint}")


def _check_share(name, value):
    check_number(name, value)
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must be in (0, 1]; got {value}")
