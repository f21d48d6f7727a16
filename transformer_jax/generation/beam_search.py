"""Beam search: each step extends the W likeliest texts by every token and keeps the W best."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.checks import check_number, check_whole
from transformer_jax.functional.precision import wide_dtype
from transformer_jax.generation.sampling import log_probabilities
from transformer_jax.nn.kv_cache import Cache

LARGEST_PENALTY = 1e30  # log-probabilities divided by it are still different numbers in float32


@dataclass(frozen=True)
class BeamSearch:
    """The settings of a beam search.

    `beams` is the beam width W. Scores are log-probabilities divided by the `length_penalty` with
    `alpha`. Raises ValueError for fewer than one beam, or an alpha that is negative or not finite,
    TypeError for a setting that is not a number, or beams that are not a whole one.
    """

    beams: int = 4
    alpha: float = 0.6

    def __post_init__(self):
        check_whole("beams", self.beams, least=1)
        check_number("alpha", self.alpha)
        if not 0.0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be 0 or more; got {self.alpha}")


class Beams(NamedTuple):
    """The W best unfinished texts and the W best complete texts of each example."""

    tokens: Int[Array, "B W G"]  # of the unfinished texts
    log_probability: Float[Array, "B W"]  # of the unfinished texts; -inf for an empty place
    complete: Int[Array, "B W G"]  # the tokens of the complete texts
    complete_log_probability: Float[Array, "B W"]
    scores: Float[Array, "B W"]  # of the complete texts; -inf for an empty place
    lengths: Int[Array, "B W"]  # of the complete texts


def length_penalty(length: int | Int[Array, "..."], alpha: float) -> Float[Array, "..."]:
    """Compute the length penalty ((5 + n) / 6)^alpha of a text of n tokens.

    The log-probability of a text is divided by it, because otherwise short texts win. Wu et al.,
    2016, https://arxiv.org/abs/1609.08144, equation 14.

    >>> length_penalty(jnp.array([1, 7]), 1.0)
    Array([1., 2.], dtype=float32)
    """
    return ((5.0 + jnp.asarray(length, jnp.float32)) / 6.0) ** alpha


def check_search(search: BeamSearch, max_tokens: int, vocab_size: int) -> None:
    """Raise ValueError if a search cannot be computed for so many tokens and such a vocabulary.

    The length penalty would overflow, or the candidates could not be counted in 32 bits.
    """
    growth = math.log((5 + max_tokens) / 6)
    if search.alpha * growth > math.log(LARGEST_PENALTY):
        most = math.log(LARGEST_PENALTY) / growth
        raise ValueError(
            f"alpha must be at most {most:.3g} for texts of {max_tokens} tokens; got {search.alpha}"
        )
    if search.beams > (most := (2**31 - 1) // vocab_size):
        raise ValueError(
            f"beams must be at most {most} for a vocabulary of {vocab_size}; got {search.beams}"
        )


def beam_search(
    model,
    logits: Float[Array, "B V"],
    cache: Cache,
    *,
    search: BeamSearch,
    max_tokens: int,
    stop: Int[Array | np.ndarray, " n"],
    pad_id: Int[Array, ""] | int,
) -> tuple[Int[Array, "B G"], Int[Array, " B"], Float[Array, " B"]]:
    """Search for the best continuation of each example.

    Returns its tokens, its length (stop token included) and its log-probability. `logits` and
    `cache` are those after the prompt; `model.next_logits` continues from them. The search for an
    example ends when no unfinished text can become better than the worst of W complete texts.
    After `max_tokens` tokens, unfinished texts count as complete.
    """
    (B, V), W, G, alpha = logits.shape, search.beams, max_tokens, float(search.alpha)
    empty = jnp.full((B, W, G), pad_id, jnp.int32)
    none = jnp.full((B, W), -jnp.inf, wide_dtype(logits.dtype))
    # Only the first beam is filled: W equal beams would stay equal.
    first = none.at[:, 0].set(0.0)
    state = Beams(empty, first, empty, none, none, jnp.zeros((B, W), jnp.int32))

    def extend(i, state, logits):
        """Extend the beams by a token; return them, that token, and the beam that each extends."""
        each = log_probabilities(logits).reshape(B, W, V) + state.log_probability[..., None]
        # Each beam can end in each stop token once, so that at least W candidates do not end here.
        best, index = lax.top_k(each.reshape(B, W * V), min((1 + stop.size) * W, W * V))
        beam, token = index // V, (index % V).astype(jnp.int32)
        tokens = jnp.take_along_axis(state.tokens, beam[..., None], axis=1).at[:, :, i].set(token)
        stopped = jnp.isin(token, stop)
        state = _complete(state, tokens, jnp.where(stopped, best, -jnp.inf), i + 1, alpha)
        going_on, chosen = lax.top_k(jnp.where(stopped, -jnp.inf, best), W)
        state = state._replace(
            tokens=jnp.take_along_axis(tokens, chosen[..., None], axis=1),
            log_probability=going_on,
        )
        beam, token = (jnp.take_along_axis(x, chosen, axis=1) for x in (beam, token))
        return state, token.reshape(-1, 1), beam

    def going(carry):
        i, state, _, _, _ = carry
        return (i < G) & ~_ended(state, alpha, G).all()

    def step(carry):
        # A token is fed to the model at the start of the next step, so that the last is never fed.
        i, state, token, beam, cache = carry
        logits, cache = model.next_logits(token, jnp.ones((B * W, 1), bool), cache.rows(beam))
        return i + 1, *extend(i, state, logits), cache

    zero = jnp.zeros((), jnp.int32)
    start = zero + 1, *extend(zero, state, jnp.repeat(logits, W, axis=0)), cache.repeated(W)
    i, state, *_ = lax.while_loop(going, step, start)
    state = _complete(state, state.tokens, state.log_probability, i, alpha)
    return (
        state.complete[:, 0],
        state.lengths[:, 0],
        state.complete_log_probability[:, 0],
    )


def _complete(state: Beams, tokens, log_probability, length, alpha: float) -> Beams:
    """Keep the W best complete texts of the old ones and the new ones."""
    W = state.scores.shape[1]
    scores = jnp.concatenate([state.scores, _scores(log_probability, length, alpha)], axis=1)
    scores, best = lax.top_k(scores, W)

    def chosen(old, new):
        both = jnp.concatenate([old, new], axis=1)
        return jnp.take_along_axis(both, best.reshape(*best.shape, *(1,) * (both.ndim - 2)), axis=1)

    lengths = jnp.broadcast_to(length, log_probability.shape).astype(jnp.int32)
    return state._replace(
        complete=chosen(state.complete, tokens),
        complete_log_probability=chosen(state.complete_log_probability, log_probability),
        scores=scores,
        lengths=chosen(state.lengths, lengths),
    )


def _scores(log_probability, length, alpha: float):
    return log_probability / length_penalty(length, alpha).astype(log_probability.dtype)


def _ended(state: Beams, alpha: float, most: int) -> Bool[Array, " B"]:
    """Return whether no unfinished text can become better than the worst complete text."""
    # Every further token lowers the log-probability, and the length penalty is largest at `most`.
    reachable = _scores(state.log_probability.max(axis=1), most, alpha)
    return state.scores.min(axis=1) >= reachable
