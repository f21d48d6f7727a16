"""The state of the generation loop, and where it lies on the mesh."""

from dataclasses import replace
from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.nn.kv_cache import Cache
from transformer_jax.parallel.placement import keep_rows


class GenerationState(NamedTuple):
    """The state of the generation loop. `is_used` marks the tokens for the repetition penalty."""

    logits: Float[Array, "B V"]
    cache: Cache
    is_used: Bool[Array, "B V"] | None
    is_done: Bool[Array, " B"]
    lengths: Int[Array, " B"]
    log_probability: Float[Array, " B"]
    key: PRNGKeyArray


def keep_cache(cache: Cache) -> Cache:
    """Constrain a cache to be split by rows and by heads over the mesh."""
    return replace(
        cache,
        layers=keep_rows(cache.layers, tensor_axis=1),
        lengths=keep_rows(cache.lengths),
        memory=keep_rows(cache.memory, tensor_axis=2),
        is_memory=keep_rows(cache.is_memory),
    )


def keep_state(state: GenerationState) -> GenerationState:
    """Constrain a state to be split by rows over the mesh, and its cache by heads too."""
    return GenerationState(
        keep_rows(state.logits, tensor_axis=1),
        keep_cache(state.cache),
        keep_rows(state.is_used, tensor_axis=1),
        keep_rows(state.is_done),
        keep_rows(state.lengths),
        keep_rows(state.log_probability),
        state.key,
    )
