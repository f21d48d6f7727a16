"""Models that write: a language model goes on from a text, an encoder-decoder writes one about
another.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.attention.biases import Bias, alibi, alibi_slopes
from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.masks import Mask, causal, padding, segments, sliding_window
from transformer_jax.functional.pooling import last_pool
from transformer_jax.functional.positions import count_in_segments, count_positions
from transformer_jax.functional.rotary import Rotary, rope_frequencies
from transformer_jax.nn.config import LanguageModelConfig, SequenceToSequenceConfig, StackConfig
from transformer_jax.nn.decoder import Decoder
from transformer_jax.nn.embeddings import TokenEmbedding
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.kv_cache import Cache, empty_cache
from transformer_jax.nn.layers import Linear


class LanguageModel(nnx.Module):
    """Embedding -> causal decoder -> logits of the next token (Radford et al., 2019).

    logits[b, t] are of the token after tokens[b, t], and depend on none behind it.
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
    ):
        """The logits [B, T, V]; after them, where asked for, the maps of attention, the states
        (what each layer reads, and what the head does) and, where one is given, the cache.

        `is_token` is False in padding, which may stand on either side. `segment_ids` keep several
        texts in a row apart: each is read as if it were alone. With a cache the tokens follow those
        that it holds. `last` gives the logits [B, V] after the last real token of each example
        alone.
        """
        _check_length(tokens, self.config.max_length)
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
        x = self.decoder(
            self.embedding(tokens, positions, rngs=rngs),
            rotary=_rotary(self.config, self.config.decoder, positions),
            bias=_alibi(self.config, self.config.decoder, **at),
            mask=self._mask(is_token if step is None else step.is_key, segment_ids, at),
            cache=cache,
            step=step,
            rngs=rngs,
            return_weights=return_weights,
            return_states=return_states,
            implementation=implementation,
        )
        x, *rest = x if isinstance(x, tuple) else (x,)
        if return_weights:
            rest.pop(1)  # of cross-attention, which is not there
        if last:
            x = _last(x, is_token)
        returned = (self._logits(x), *rest)
        return returned if rest else returned[0]

    def start(self, batch: int, capacity: int, *, dtype: DTypeLike | None = None) -> Cache:
        """An empty cache for texts of up to `capacity` tokens, prompt included; in the dtype of the
        weights by default.
        """
        dtype = self.embedding.token.embedding.dtype if dtype is None else dtype
        return _empty_cache(self.config, batch, capacity, self.config.window, dtype)

    def next_logits(
        self, tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B V"], Cache]:
        """What generation asks for: the logits after these tokens, and the cache with them."""
        return self(tokens, is_token, cache=cache, last=True)

    def _logits(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
        if self.head is None:
            return self.embedding.logits(x)
        return self.head(x, dtype=jnp.promote_types(x.dtype, jnp.float32))

    def _mask(self, is_key, segment_ids, at: dict) -> Mask:
        window = self.config.window
        mask = causal(**at) if window is None else sliding_window(window, 0, **at)
        if is_key is not None:
            mask &= padding(is_key)
        return mask if segment_ids is None else mask & segments(segment_ids)


class AttentionMaps(NamedTuple):
    """Of an encoder-decoder: the weights of each layer."""

    encoder: list[Float[Array, "B N S S"]]
    decoder: list[Float[Array, "B N T T"]]
    cross: list[Float[Array, "B N T S"]]


class SequenceToSequence(nnx.Module):
    """Encoder and decoder around one table of tokens (Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762, figure 1).

    logits[b, t] are of the target's token after target[b, t], given the whole source.
    """

    def __init__(self, config: SequenceToSequenceConfig, *, rngs: nnx.Rngs):
        self.embedding = TokenEmbedding(
            config.vocab_size,
            config.max_length,
            config.encoder.embed_dim,
            positions=config.positions,
            dropout_rate=config.embedding_dropout_rate,
            rngs=rngs,
        )
        self.encoder = Encoder(config.encoder, rngs=rngs)
        self.decoder = Decoder(config.decoder, cross=True, rngs=rngs)
        self.config = config

    def __call__(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        target: Int[Array, "B T"],
        is_target: Bool[Array, "B T"],
        *,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B T V"] | tuple[Float[Array, "B T V"], AttentionMaps]:
        """The logits [B, T, V], and the maps of attention where they are asked for."""
        _check_length(target, self.config.max_length)
        options = {"rngs": rngs, "return_weights": return_weights, "implementation": implementation}
        encoded = self.encode(source, is_source, **options)
        encoded, maps = encoded if return_weights else (encoded, None)
        positions = count_positions(is_target)
        x = self.decoder(
            self.embedding(target, positions, rngs=rngs),
            memory=self.decoder.memory_of(encoded, is_source),
            memory_mask=padding(is_source),
            rotary=_rotary(self.config, self.config.decoder, positions),
            bias=_alibi(self.config, self.config.decoder),
            mask=causal() & padding(is_target),
            **options,
        )
        if return_weights:
            x, own, cross = x
            return self.embedding.logits(x), AttentionMaps(maps, own, cross)
        return self.embedding.logits(x)

    def encode(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        *,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B S D"] | tuple[Float[Array, "B S D"], list[Float[Array, "B N S S"]]]:
        """The source as the decoder reads it."""
        _check_length(source, self.config.max_length)
        positions = count_positions(is_source)
        return self.encoder(
            self.embedding(source, positions, rngs=rngs),
            rotary=_rotary(self.config, self.config.encoder, positions),
            bias=_alibi(self.config, self.config.encoder),
            mask=padding(is_source),
            rngs=rngs,
            return_weights=return_weights,
            implementation=implementation,
        )

    def start(
        self, source: Int[Array, "B S"], is_source: Bool[Array, "B S"], capacity: int
    ) -> Cache:
        """The cache of a translation of up to `capacity` tokens: the source is read here, once."""
        encoded = self.encode(source, is_source)
        cache = _empty_cache(self.config, len(source), capacity, None, encoded.dtype)
        return replace(
            cache, memory=self.decoder.memory_of(encoded, is_source), is_memory=is_source
        )

    def next_logits(
        self, tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B V"], Cache]:
        """What generation asks for: the logits after these tokens, and the cache with them."""
        step = cache.step(is_token)
        at = {"query_positions": step.positions, "key_positions": step.key_positions}
        x, cache = self.decoder(
            self.embedding(tokens, step.positions),
            memory=cache.memory,
            memory_mask=padding(cache.is_memory),
            rotary=_rotary(self.config, self.config.decoder, step.positions),
            bias=_alibi(self.config, self.config.decoder, **at),
            mask=causal(**at) & padding(step.is_key),
            cache=cache,
            step=step,
        )
        return self.embedding.logits(_last(x, is_token)), cache


def _check_length(tokens: Int[Array, "B T"], max_length: int) -> None:
    if tokens.shape[1] > max_length:
        raise ValueError(f"{tokens.shape[1]} tokens are more than max_length={max_length}")


def _last(x: Float[Array, "B T D"], is_token: Bool[Array, "B T"] | None) -> Float[Array, "B D"]:
    """Of the last real token of each example."""
    return x[:, -1] if is_token is None or x.shape[1] == 1 else last_pool(x, is_token)


def _rotary(config, stack: StackConfig, positions) -> Rotary | None:
    if config.positions != "rotary":
        return None
    scaled = getattr(config, "rope_scaling", None)
    options = {} if scaled is None else vars(scaled)
    return Rotary(positions, rope_frequencies(stack.axes[2], base=config.rope_base, **options))


def _alibi(config, stack: StackConfig, **positions) -> Bias | None:
    if config.positions != "alibi":
        return None
    return alibi(alibi_slopes(stack.num_heads), **positions)


def _empty_cache(config, batch: int, capacity: int, window: int | None, dtype) -> Cache:
    if not 1 <= capacity <= config.max_length:
        raise ValueError(f"capacity must be 1 to max_length={config.max_length}; got {capacity}")
    _, K, H, O = config.decoder.axes  # noqa: E741 (the letter of the axis)
    return empty_cache(
        config.decoder.num_layers,
        batch,
        capacity,
        K,
        H,
        value_dim=O,
        window=window,
        dtype=dtype,
    )
