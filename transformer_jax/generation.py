"""Writing on: one jitted loop that draws a token, feeds it through the cache and draws the next.

    generate(model, tokens, is_token, max_tokens=50, sampling=Sampling(top_p=0.9), key=jax.random.key(0))

A model that can be written with has `next_logits(tokens, is_token, cache)`; a language model begins with its prompt, an
encoder-decoder with the token that begins a target.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.beams import beam_search
from transformer_jax.cache import Cache
from transformer_jax.language_models import LanguageModel, SequenceToSequence
from transformer_jax.sampling import Sampling, draw


class Generated(NamedTuple):
    """What was written, the token that stopped an example included; behind it stands `pad_id`."""

    tokens: Int[Array, "B G"]
    lengths: Int[Array, " B"]
    log_probability: Float[Array, " B"]  # of what was written, by the model itself


class How(NamedTuple):
    """What is known before tracing."""

    max_tokens: int
    sampling: Sampling | None
    beams: int
    alpha: float
    stop: tuple[int, ...]
    pad_id: int


class State(NamedTuple):
    """Of a loop that draws."""

    logits: Float[Array, "B V"]
    cache: Cache
    is_used: Bool[Array, "B V"] | None
    is_done: Bool[Array, " B"]
    lengths: Int[Array, " B"]
    log_probability: Float[Array, " B"]
    key: PRNGKeyArray


def generate(
    model: LanguageModel,
    tokens: Int[Array | np.ndarray, "B T"],
    is_token: Bool[Array | np.ndarray, "B T"] | None = None,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    beams: int = 1,
    alpha: float = 0.6,
    stop: Sequence[int] = (),
    key: PRNGKeyArray | None = None,
    pad_id: int = 0,
) -> Generated:
    """At most `max_tokens` tokens behind each prompt, up to and with the first of `stop`.

    The likeliest token each time where `sampling` is None (greedy), else drawn with the `key`: the same key gives the
    same text; with several `beams` the best text of a beam search, whose scores are divided by
    `beams.length_penalty` of `alpha`. Padding of the prompts may stand on either side. It ends when all examples have.

    Raises ValueError where an example has no token, prompt and `max_tokens` are more than the model's max_length, a
    stop token is not in the vocabulary, there is a sampling without a key, or beams are fewer than 1 or sampled.
    """
    is_token = np.ones(np.shape(tokens), bool) if is_token is None else np.asarray(is_token)
    _check_prompt(model, is_token, max_tokens, stop, sampling, key)
    _check_how(max_tokens, beams, alpha, sampling)
    graph, params = nnx.split(model, nnx.Param)
    return _generate(
        graph,
        params,
        jnp.asarray(tokens),
        jnp.asarray(is_token),
        jax.random.key(0) if key is None else key,
        how=How(max_tokens, sampling, beams, float(alpha), tuple(stop), pad_id),
    )


@partial(jax.jit, static_argnums=0, static_argnames="how")
def _generate(graph, params, tokens, is_token, key, *, how):
    model = nnx.merge(graph, params)
    cache = model.start(len(tokens), tokens.shape[1] + how.max_tokens)
    return _write(model, _read(model, cache, tokens, is_token, how.sampling, key), how)


def _read(model, cache, tokens, is_token, sampling, key) -> State:
    """The state after the prompt."""
    logits, cache = model.next_logits(tokens, is_token, cache)
    B, V = logits.shape
    is_used = None
    if sampling is not None and sampling.repetition_penalty != 1.0:
        columns = jnp.where(is_token, tokens, V)
        is_used = jnp.zeros((B, V), bool).at[jnp.arange(B)[:, None], columns].set(True, mode="drop")
    none = jnp.zeros(B, jnp.int32)
    return State(logits, cache, is_used, none > 0, none, jnp.zeros(B, logits.dtype), key)


def _write(model, state, how) -> Generated:
    """The loop, from the state after the prompt."""
    if how.beams > 1:
        return Generated(
            *beam_search(
                model,
                state.logits,
                state.cache,
                beams=how.beams,
                alpha=how.alpha,
                max_tokens=how.max_tokens,
                stop=how.stop,
                pad_id=how.pad_id,
            )
        )
    B, G = len(state.logits), how.max_tokens

    def going(carry):
        i, _, state, _, _ = carry
        return (i < G) & ~state.is_done.all()

    def write(carry):
        # A token is fed when the next one is wanted, so that the last is not.
        i, written, state, token, is_new = carry
        state = _feed(model, state, token, is_new)
        token, state, is_new = _draw(state, how.sampling, how.stop, how.pad_id)
        return i + 1, written.at[:, i].set(token), state, token, is_new

    token, state, is_new = _draw(state, how.sampling, how.stop, how.pad_id)
    written = jnp.full((B, G), how.pad_id, jnp.int32).at[:, 0].set(token)
    start = jnp.ones((), jnp.int32), written, state, token, is_new
    _, written, state, _, _ = lax.while_loop(going, write, start)
    return Generated(written, state.lengths, state.log_probability)


def _draw(state, sampling, stop, pad_id):
    """A token of each example that is not done; whether one is new; and the state with it counted."""
    key, draw_key = jax.random.split(state.key)
    token = draw(state.logits, sampling, draw_key, is_used=state.is_used)
    is_new = ~state.is_done
    rows = jnp.arange(len(token))
    log_probability = jax.nn.log_softmax(state.logits)[rows, token]
    is_used = state.is_used
    if is_used is not None:
        is_used = is_used.at[rows, token].max(is_new)
    is_done = state.is_done | jnp.isin(token, jnp.array(stop, jnp.int32))
    token = jnp.where(is_new, token, pad_id)
    return (
        token,
        state._replace(
            is_used=is_used,
            is_done=is_done,
            lengths=state.lengths + is_new.astype(jnp.int32),
            log_probability=state.log_probability + jnp.where(is_new, log_probability, 0),
            key=key,
        ),
        is_new,
    )


def _feed(model, state, token, is_new):
    logits, cache = model.next_logits(token[:, None], is_new[:, None], state.cache)
    return state._replace(logits=logits, cache=cache)


def stream(
    model: LanguageModel,
    tokens: Int[Array | np.ndarray, "B T"],
    is_token: Bool[Array | np.ndarray, "B T"] | None = None,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    stop: Sequence[int] = (),
    key: PRNGKeyArray | None = None,
    pad_id: int = 0,
) -> Iterator[Int[np.ndarray, " B"]]:
    """The tokens of `generate`, one for each example as it is drawn, for people who watch. Takes and raises as it does."""
    is_token = np.ones(np.shape(tokens), bool) if is_token is None else np.asarray(is_token)
    _check_prompt(model, is_token, max_tokens, stop, sampling, key)
    graph, params = nnx.split(model, nnx.Param)
    key = jax.random.key(0) if key is None else key
    state = _first(
        graph,
        params,
        jnp.asarray(tokens),
        jnp.asarray(is_token),
        key,
        capacity=is_token.shape[1] + max_tokens,
        sampling=sampling,
    )
    for i in range(max_tokens):
        token, state, is_new = _drawn(state, sampling=sampling, stop=tuple(stop), pad_id=pad_id)
        yield np.asarray(token)
        if bool(state.is_done.all()) or i + 1 == max_tokens:
            return
        state = _fed(graph, params, state, token, is_new)


@partial(jax.jit, static_argnums=0, static_argnames=("capacity", "sampling"))
def _first(graph, params, tokens, is_token, key, *, capacity, sampling):
    model = nnx.merge(graph, params)
    return _read(model, model.start(len(tokens), capacity), tokens, is_token, sampling, key)


@partial(jax.jit, static_argnames=("sampling", "stop", "pad_id"))
def _drawn(state, *, sampling, stop, pad_id):
    return _draw(state, sampling, stop, pad_id)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _fed(graph, params, state, token, is_new):
    return _feed(nnx.merge(graph, params), state, token, is_new)


def transduce(
    model: SequenceToSequence,
    source: Int[Array | np.ndarray, "B S"],
    is_source: Bool[Array | np.ndarray, "B S"],
    *,
    begin: int,
    max_tokens: int,
    sampling: Sampling | None = None,
    beams: int = 1,
    alpha: float = 0.6,
    stop: Sequence[int] = (),
    key: PRNGKeyArray | None = None,
    pad_id: int = 0,
) -> Generated:
    """The target of each source, which `begin` begins; otherwise as `generate`."""
    _check_options(model, max_tokens, max_tokens, (*stop, begin), sampling, key)
    _check_how(max_tokens, beams, alpha, sampling)
    graph, params = nnx.split(model, nnx.Param)
    return _transduce(
        graph,
        params,
        jnp.asarray(source),
        jnp.asarray(is_source),
        jax.random.key(0) if key is None else key,
        begin=begin,
        how=How(max_tokens, sampling, beams, float(alpha), tuple(stop), pad_id),
    )


@partial(jax.jit, static_argnums=0, static_argnames=("begin", "how"))
def _transduce(graph, params, source, is_source, key, *, begin, how):
    model = nnx.merge(graph, params)
    first = jnp.full((len(source), 1), begin, jnp.int32)
    cache = model.start(source, is_source, how.max_tokens)
    state = _read(model, cache, first, jnp.ones_like(first, bool), how.sampling, key)
    return _write(model, state, how)


def next_tokens(
    model: LanguageModel,
    tokens: Int[Array | np.ndarray, "B T"],
    is_token: Bool[Array | np.ndarray, "B T"],
    count: int = 10,
) -> tuple[Int[Array, "B n"], Float[Array, "B n"]]:
    """The likeliest next tokens and their probabilities, the likeliest first."""
    _check_prompt(model, np.asarray(is_token), 0, (), None, None)
    graph, params = nnx.split(model, nnx.Param)
    return _next_tokens(graph, params, jnp.asarray(tokens), jnp.asarray(is_token), count=count)


@partial(jax.jit, static_argnums=0, static_argnames="count")
def _next_tokens(graph, params, tokens, is_token, *, count):
    logits = nnx.merge(graph, params)(tokens, is_token, last=True)
    probabilities, best = lax.top_k(jax.nn.softmax(logits), min(count, logits.shape[-1]))
    return best, probabilities


def _check_prompt(model, is_token, max_tokens, stop, sampling, key) -> None:
    if is_token.ndim != 2 or not is_token.size or not is_token.any(axis=1).all():
        raise ValueError("an empty prompt: every example must have at least one token")
    _check_options(model, is_token.shape[1] + max_tokens, max_tokens, stop, sampling, key)


def _check_options(model, capacity: int, max_tokens: int, tokens, sampling, key: Any) -> None:
    most, V = model.config.max_length, model.config.vocab_size
    if capacity > most:
        raise ValueError(
            f"the prompt and max_tokens={max_tokens} make {capacity} tokens, more than the model's max_length={most}"
        )
    for token in tokens:
        if not 0 <= token < V:
            raise ValueError(f"there is no token {token} to stop at: the vocabulary has {V}")
    if sampling is not None and key is None:
        raise ValueError("sampling needs a key, as jax.random.key(0)")


def _check_how(max_tokens: int, beams: int, alpha: float, sampling) -> None:
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be 1 or more; got {max_tokens}")
    if beams < 1:
        raise ValueError(f"beams must be 1 or more; got {beams}")
    if not 0.0 <= alpha < np.inf:
        raise ValueError(f"alpha must be 0 or more; got {alpha}")
    if beams > 1 and sampling is not None:
        raise ValueError("a beam search draws nothing: pass beams or a sampling, not both")
