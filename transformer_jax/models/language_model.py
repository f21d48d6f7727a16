"""The language model: a decoder that computes the logits of the next token of a text."""

from typing import Any, Literal, TypedDict, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.mask_rule import Mask
from transformer_jax.attention.masks import causal, padding, segments, sliding_window
from transformer_jax.functional.checks import are_numbers, check_ids, check_length
from transformer_jax.functional.positions import count_in_segments, count_positions
from transformer_jax.functional.precision import wide_dtype
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.decoder import Decoder, last_token
from transformer_jax.nn.embeddings import TokenEmbedding
from transformer_jax.nn.kv_cache import Cache, cache_dtype
from transformer_jax.nn.layers import Linear
from transformer_jax.nn.position_schemes import POSITION_SCHEMES


class LanguageModelOptions(TypedDict, total=False):
    """The options of a call that do not change which arrays it returns."""

    segment_ids: Int[Array, "B T"] | None
    last: bool
    rngs: nnx.Rngs | None
    implementation: Implementation | None


class LanguageModel(nnx.Module):
    """Embedding -> causal decoder -> logits of the next token (Radford et al., 2019).

    logits[b, t] predict the token after tokens[b, t] and do not depend on later tokens.
    """

    def __init__(self, config: LanguageModelConfig, *, rngs: nnx.Rngs):
        D = config.decoder.embed_dim
        self.embedding = TokenEmbedding(
            config.vocab_size,
            config.max_length,
            D,
            positions=config.positions,
            dropout_rate=config.embedding_dropout_rate,
            rngs=rngs,
        )
        self.decoder = Decoder(config.decoder, rngs=rngs)
        self.head = (
            None if config.tied_head else Linear(D, config.vocab_size, use_bias=False, rngs=rngs)
        )
        self.config = config

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"] | None = None,
        *,
        cache: None = None,
        return_weights: Literal[False] = False,
        return_states: Literal[False] = False,
        **options: Unpack[LanguageModelOptions],
    ) -> Float[Array, "... V"]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"] | None = None,
        *,
        cache: None = None,
        return_weights: Literal[True],
        return_states: Literal[False] = False,
        **options: Unpack[LanguageModelOptions],
    ) -> tuple[Float[Array, "... V"], list[Float[Array, "B N T T"]]]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"] | None = None,
        *,
        cache: None = None,
        return_weights: Literal[False] = False,
        return_states: Literal[True],
        **options: Unpack[LanguageModelOptions],
    ) -> tuple[Float[Array, "... V"], list[Float[Array, "B T D"]]]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"] | None = None,
        *,
        cache: None = None,
        return_weights: Literal[True],
        return_states: Literal[True],
        **options: Unpack[LanguageModelOptions],
    ) -> tuple[
        Float[Array, "... V"], list[Float[Array, "B N T T"]], list[Float[Array, "B T D"]]
    ]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"] | None = None,
        *,
        cache: Cache,
        return_weights: Literal[False] = False,
        return_states: Literal[False] = False,
        **options: Unpack[LanguageModelOptions],
    ) -> tuple[Float[Array, "... V"], Cache]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"] | None = None,
        *,
        cache: Cache | None = None,
        return_weights: bool = False,
        return_states: bool = False,
        **options: Unpack[LanguageModelOptions],
    ) -> Float[Array, "... V"] | tuple[Any, ...]: ...

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"] | None = None,
        *,
        segment_ids: Int[Array, "B T"] | None = None,
        cache: Cache | None = None,
        last: bool = False,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        return_states: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "... V"] | tuple[Any, ...]:
        """Compute the logits [B, T, V].

        `is_token` is False in padding, which may be on either side. `segment_ids` separate several
        texts in a row: each is read as if it were alone. With a `cache`, the tokens follow those in
        it. `last` computes only the logits [B, V] after the last real token of each example.

        If more is asked for, the result is a tuple of the logits, the attention weights
        (`return_weights`), the inputs of every layer and of the head (`return_states`), and the
        updated cache (if one is given). Raises ValueError if there are more tokens than max_length,
        or both a cache and segment_ids.
        """
        check_length(tokens, self.config.max_length)
        check_ids("tokens", tokens, self.config.vocab_size, is_token)
        if cache is not None and segment_ids is not None:
            raise ValueError("a cache holds one text for each example: segment_ids must be None")
        step, at = None, {}
        if cache is not None:
            step = cache.step(jnp.ones_like(tokens, bool) if is_token is None else is_token)
            positions = step.positions
            at = {"query_positions": positions, "key_positions": step.key_positions}
        elif segment_ids is not None:
            positions = count_in_segments(segment_ids)
        elif is_token is not None:
            positions = count_positions(is_token)
        else:
            positions = jnp.arange(tokens.shape[1])[None]
        config = self.config
        scheme = POSITION_SCHEMES[config.positions]
        context = LayerContext(
            **scheme.attention(
                config.decoder, positions, base=config.rope_base, scaling=config.rope_scaling, **at
            ),
            mask=self._mask(is_token if step is None else step.is_key, segment_ids, at),
            return_weights=return_weights,
            return_states=return_states,
            implementation=implementation,
        )
        x = self.embedding(tokens, positions, rngs=rngs)
        x = self.decoder(x, context, cache=cache, step=step, rngs=rngs)
        x, *rest = x if isinstance(x, tuple) else (x,)
        if return_weights:
            rest.pop(1)  # the weights of cross-attention, which a language model does not have
        if last:
            x = last_token(x, is_token)
        returned = (self._logits(x), *rest)
        return returned if rest else returned[0]

    def start(self, batch: int, capacity: int, *, dtype: DTypeLike | None = None) -> Cache:
        """Create an empty cache for texts of up to `capacity` tokens, prompt included.

        Its dtype is that of the weights by default, or float32 on a CPU if theirs is shorter.
        Raises ValueError if `capacity` is not from 1 to max_length.
        """
        check_capacity(capacity, self.config.max_length)
        return self.decoder.empty_cache(
            batch,
            capacity,
            window=self.config.window,
            dtype=cache_dtype(self.embedding.token.embedding.dtype) if dtype is None else dtype,
        )

    def next_logits(
        self, tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Compute the logits after these tokens, and the cache with them, for generation."""
        logits, cache = self(tokens, is_token, cache=cache, last=True)
        return logits, cache

    def _logits(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
        if self.head is None:
            return self.embedding.logits(x)
        return self.head(x, dtype=wide_dtype(x.dtype))

    def _mask(self, is_key, segment_ids, at: dict) -> Mask:
        window = self.config.window
        mask = causal(**at) if window is None else sliding_window(window, 0, **at)
        if is_key is not None:
            mask &= padding(is_key)
        return mask if segment_ids is None else mask & segments(segment_ids)


def check_capacity(capacity: int, max_length: int) -> None:
    """Raise ValueError if the capacity of a cache is not from 1 to `max_length` tokens.

    A symbolic capacity is not checked.
    """
    if are_numbers(capacity) and not 1 <= capacity <= max_length:
        raise ValueError(f"capacity must be 1 to max_length={max_length}; got {capacity}")
