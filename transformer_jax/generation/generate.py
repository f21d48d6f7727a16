"""Text generation in one jitted loop: draw a token, feed it to the model with a cache, and repeat.

    sampling, key = Sampling(top_p=0.9), jax.random.key(0)
    generate(model, tokens, is_token, max_tokens=50, sampling=sampling, key=key)

A model that generates has a method `next_logits(tokens, is_token, cache)`. A language model starts
from its prompt, an encoder-decoder from the token that begins a target.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.functional.checks import are_numbers, check_ids, check_whole
from transformer_jax.functional.precision import wide_dtype
from transformer_jax.generation.beam_search import BeamSearch, beam_search
from transformer_jax.generation.options import (
    StaticOptions,
    TracedOptions,
    check_fits,
    check_tokens,
    key_for,
    make_options,
)
from transformer_jax.generation.sampling import Sampling, draw_token, log_probabilities
from transformer_jax.generation.state import GenerationState, keep_cache, keep_state
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.parallel.mesh import keep_whole, settled
from transformer_jax.parallel.placement import first_rows, gathered, keep_rows, split_filled


class Generated(NamedTuple):
    """The generated tokens of each example, its stop token included, followed by `pad_id`."""

    tokens: Int[Array, "B G"]
    lengths: Int[Array, " B"]
    log_probability: Float[Array, " B"]  # under the model's own distribution, before `Sampling`


def generate(
    model: LanguageModel,
    tokens: Int[Array | np.ndarray, "B T"],
    is_token: Bool[Array | np.ndarray, "B T"] | None = None,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    search: BeamSearch | None = None,
    stop: Sequence[int] = (),
    key: PRNGKeyArray | None = None,
    pad_id: int = 0,
) -> Generated:
    """Generate up to `max_tokens` tokens after each prompt, ending with the first token in `stop`.

    Without `sampling`, each token is the likeliest one (greedy). With `sampling`, it is drawn with
    `key`, and the same key gives the same text. With `search`, the text is the best of a beam
    search. Prompts may be padded on either side. The loop ends when all examples have ended.

    Raises ValueError if an example has no token, if the prompt and `max_tokens` together exceed the
    model's max_length, if a token of a prompt, a stop token or `pad_id` is not in the vocabulary,
    if there is a sampling without a key, if both a sampling and a search are given, or if the
    search is too large. Raises TypeError for a number that is not whole. Traced tokens are not
    checked.
    """
    options = make_options(model, max_tokens, sampling, search, stop, pad_id)
    is_token = _prompt(model, tokens, is_token, max_tokens)
    graph, params = nnx.split(model, nnx.Param)
    params, rows = gathered(params), split_filled(_array(tokens), is_token)
    given = key_for(options, key), options.traced
    found = _generate(graph, params, *rows, *given, options=options.static)
    return first_rows(found, is_token.shape[0])


@partial(jax.jit, static_argnums=0, static_argnames="options")
def _generate(graph, params, tokens, is_token, key, traced, *, options):
    model = nnx.merge(graph, params)
    cache = model.start(tokens.shape[0], tokens.shape[1] + options.max_tokens)
    state = _read_prompt(model, cache, tokens, is_token, key, traced.penalises)
    return keep_whole(_generate_tokens(model, state, traced, options))


def _read_prompt(model, cache, tokens, is_token, key, penalises) -> GenerationState:
    """Compute the state of the loop after the prompt."""
    logits, cache = model.next_logits(tokens, is_token, keep_cache(cache))
    B, V = logits.shape
    is_used = None
    if penalises:
        columns = jnp.where(is_token, tokens, V)
        is_used = jnp.zeros((B, V), bool).at[jnp.arange(B)[:, None], columns].set(True, mode="drop")
    none = jnp.zeros(B, jnp.int32)
    sums = jnp.zeros(B, wide_dtype(logits.dtype))
    return keep_state(GenerationState(logits, cache, is_used, none > 0, none, sums, key))


def _generate_tokens(model, state, traced: TracedOptions, options: StaticOptions) -> Generated:
    """Run the loop from the state after the prompt."""
    if options.search is not None:
        return Generated(
            *beam_search(
                model,
                state.logits,
                state.cache,
                search=options.search,
                max_tokens=options.max_tokens,
                stop=traced.stop,
                pad_id=traced.pad_id,
            )
        )
    B, G = state.logits.shape[0], options.max_tokens

    def continues(carry):
        i, _, state, _, _ = carry
        return (i < G) & ~state.is_done.all()

    def write(carry):
        # A token is fed to the model at the start of the next step, so that the last is never fed.
        i, written, state, token, is_new = carry
        state = _feed(model, state, token, is_new)
        token, state, is_new = _draw(state, traced, options)
        return i + 1, written.at[:, i].set(token), state, token, is_new

    token, state, is_new = _draw(state, traced, options)
    written = jnp.full((B, G), traced.pad_id, jnp.int32).at[:, 0].set(token)
    start = jnp.ones((), jnp.int32), written, state, token, is_new
    _, written, state, _, _ = lax.while_loop(continues, write, start)
    return Generated(written, state.lengths, state.log_probability)


def _draw(state, traced: TracedOptions, options: StaticOptions):
    """Draw a token for each example; return it, the new state, and which examples were not done."""
    key, draw_key = jax.random.split(state.key)
    token = draw_token(
        state.logits,
        traced.sampling,
        draw_key,
        top_k=options.top_k,
        greedy=options.greedy,
        is_used=state.is_used,
    )
    is_new = ~state.is_done
    rows = jnp.arange(token.shape[0])
    log_probability = log_probabilities(state.logits)[rows, token]
    is_used = state.is_used
    if is_used is not None:
        is_used = is_used.at[rows, token].max(is_new)
    is_done = state.is_done | jnp.isin(token, traced.stop)
    token = jnp.where(is_new, token, traced.pad_id)
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
    return keep_state(state._replace(logits=logits, cache=cache))


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
    """Yield the tokens of `generate` as they are drawn, one for each example at a time.

    The arguments are those of `generate`, except that there is no beam search. Raises ValueError as
    `generate` does.
    """
    options = make_options(model, max_tokens, sampling, None, stop, pad_id)
    is_token = _prompt(model, tokens, is_token, max_tokens)
    graph, params = nnx.split(model, nnx.Param)
    params, rows = gathered(params), split_filled(_array(tokens), is_token)
    key, traced, static = key_for(options, key), options.traced, options.static
    # Not all options: a temperature, where there was none, would compile the model again.
    needed = {"max_tokens": max_tokens, "penalises": traced.penalises}
    state = settled(_first(graph, params, *rows, key, **needed))
    for i in range(max_tokens):
        token, state, is_new, is_last = settled(_drawn(state, traced, options=static))
        yield np.asarray(token)[: len(is_token)]
        if is_last or i + 1 == max_tokens:
            return
        state = settled(_fed(graph, params, state, token, is_new))


@partial(jax.jit, static_argnums=0, static_argnames=("max_tokens", "penalises"))
def _first(graph, params, tokens, is_token, key, *, max_tokens, penalises):
    model = nnx.merge(graph, params)
    cache = model.start(tokens.shape[0], tokens.shape[1] + max_tokens)
    return _read_prompt(model, cache, tokens, is_token, key, penalises)


@partial(jax.jit, static_argnames="options")
def _drawn(state, traced, *, options):
    token, state, is_new = _draw(state, traced, options)
    is_last = keep_whole(state.is_done.all())
    return keep_whole(token), keep_state(state), keep_rows(is_new), is_last


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _fed(graph, params, state, token, is_new):
    return _feed(nnx.merge(graph, params), state, token, is_new)


def generate_target(
    model: SequenceToSequence,
    source: Int[Array | np.ndarray, "B S"],
    is_source: Bool[Array | np.ndarray, "B S"],
    *,
    begin: int,
    max_tokens: int,
    sampling: Sampling | None = None,
    search: BeamSearch | None = None,
    stop: Sequence[int] = (),
    key: PRNGKeyArray | None = None,
    pad_id: int = 0,
) -> Generated:
    """Generate the target of each source with an encoder-decoder, starting from the token `begin`.

    The other arguments, the result and the errors are those of `generate`.
    """
    options = make_options(model, max_tokens, sampling, search, stop, pad_id)
    check_fits(model, max_tokens, max_tokens)
    check_ids("source", source, model.config.vocab_size, is_source)
    check_tokens(model, (begin,), "begin with")
    graph, params = nnx.split(model, nnx.Param)
    params, rows = gathered(params), split_filled(_array(source), _array(is_source))
    given = key_for(options, key), begin, options.traced
    found = _generate_target(graph, params, *rows, *given, options=options.static)
    return first_rows(found, np.shape(source)[0])


@partial(jax.jit, static_argnums=0, static_argnames="options")
def _generate_target(graph, params, source, is_source, key, begin, traced, *, options):
    model = nnx.merge(graph, params)
    first = jnp.full((source.shape[0], 1), begin, jnp.int32)
    cache = model.start(source, is_source, options.max_tokens)
    is_first = jnp.ones_like(first, bool)
    state = _read_prompt(model, cache, first, is_first, key, traced.penalises)
    return keep_whole(_generate_tokens(model, state, traced, options))


def next_tokens(
    model: LanguageModel,
    tokens: Int[Array | np.ndarray, "B T"],
    is_token: Bool[Array | np.ndarray, "B T"] | None = None,
    count: int = 10,
) -> tuple[Int[Array, "B n"], Float[Array, "B n"]]:
    """Return the `count` likeliest next tokens and their probabilities, the likeliest first.

    Raises ValueError and TypeError as `generate` does, and for a count that is negative or not
    whole.
    """
    check_whole("count", count, least=0)
    is_token = _prompt(model, tokens, is_token, 0)
    graph, params = nnx.split(model, nnx.Param)
    rows = split_filled(_array(tokens), is_token)
    found = _next_tokens(graph, gathered(params), *rows, count=count)
    return first_rows(found, is_token.shape[0])


@partial(jax.jit, static_argnums=0, static_argnames="count")
def _next_tokens(graph, params, tokens, is_token, *, count):
    logits = nnx.merge(graph, params)(tokens, is_token, last=True)
    probabilities, best = lax.top_k(jax.nn.softmax(logits), min(count, logits.shape[-1]))
    return keep_whole((best, probabilities))


def _prompt(model, tokens, is_token, max_tokens: int) -> Bool[Array | np.ndarray, "B T"]:
    """Check a prompt, and return its `is_token` (all True by default)."""
    if is_token is None:
        ones = np.ones if are_numbers(*np.shape(tokens)) else jnp.ones
        is_token = ones(np.shape(tokens), bool)
    is_token = _array(is_token)
    # Under a transformation of JAX only the shape is known.
    known = np.bool_(True) if isinstance(is_token, Tracer) else jax.device_get(is_token)
    if is_token.ndim != 2 or 0 in is_token.shape or not known.any(axis=-1).all():
        raise ValueError("an empty prompt: every example must have at least one token")
    check_fits(model, is_token.shape[1] + max_tokens, max_tokens)
    check_ids("tokens", tokens, model.config.vocab_size, is_token)
    return is_token


def _array(values) -> Array | np.ndarray:
    """Convert to an array that jit accepts."""
    # NumPy arrays stay as they are: `jnp.asarray` would compile a program for each shape.
    return values if isinstance(values, jax.Array) else np.asarray(values)
