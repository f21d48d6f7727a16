"""The encoder-decoder: an encoder reads the source, a decoder computes the logits of the target."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.masks import causal, padding
from transformer_jax.functional.checks import check_ids, check_length
from transformer_jax.functional.positions import count_positions
from transformer_jax.models.config import SequenceToSequenceConfig
from transformer_jax.models.language_model import check_capacity
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.decoder import Decoder, last_token
from transformer_jax.nn.embeddings import TokenEmbedding
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.kv_cache import Cache, cache_dtype
from transformer_jax.nn.position_schemes import POSITION_SCHEMES


class AttentionMaps(NamedTuple):
    """The attention weights of an encoder-decoder, one array for each layer."""

    encoder: list[Float[Array, "B N S S"]]
    decoder: list[Float[Array, "B N T T"]]
    cross: list[Float[Array, "B N T S"]]


class SequenceToSequenceOptions(TypedDict, total=False):
    """The options of a call that do not change which arrays it returns."""

    rngs: nnx.Rngs | None
    implementation: Implementation | None


class SequenceToSequence(nnx.Module):
    """An encoder and a decoder that share one token embedding table (Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762, figure 1).

    logits[b, t] predict the token after target[b, t], given the whole source.
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

    @overload
    def __call__(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        target: Int[Array, "B T"],
        is_target: Bool[Array, "B T"],
        *,
        return_weights: Literal[False] = False,
        **options: Unpack[SequenceToSequenceOptions],
    ) -> Float[Array, "B T V"]: ...

    @overload
    def __call__(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        target: Int[Array, "B T"],
        is_target: Bool[Array, "B T"],
        *,
        return_weights: Literal[True],
        **options: Unpack[SequenceToSequenceOptions],
    ) -> tuple[Float[Array, "B T V"], AttentionMaps]: ...

    @overload
    def __call__(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        target: Int[Array, "B T"],
        is_target: Bool[Array, "B T"],
        *,
        return_weights: bool = False,
        **options: Unpack[SequenceToSequenceOptions],
    ) -> Float[Array, "B T V"] | tuple[Float[Array, "B T V"], AttentionMaps]: ...

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
        """Compute the logits [B, T, V]; with `return_weights` also return the attention weights.

        `is_source` and `is_target` are False in padding.
        """
        check_length(target, self.config.max_length)
        check_ids("target", target, self.config.vocab_size, is_target)
        encoded = self.encode(
            source,
            is_source,
            rngs=rngs,
            return_weights=return_weights,
            implementation=implementation,
        )
        encoded, *maps = encoded if isinstance(encoded, tuple) else (encoded,)
        positions = count_positions(is_target)
        context = LayerContext(
            **self._positions(self.config.decoder, positions),
            mask=causal() & padding(is_target),
            memory_mask=padding(is_source),
            return_weights=return_weights,
            implementation=implementation,
        )
        memory = self.decoder.memory_of(encoded, is_source)
        x = self.embedding(target, positions, rngs=rngs)
        x = self.decoder(x, context, memory=memory, rngs=rngs)
        if isinstance(x, tuple):
            x, own, cross = x
            return self.embedding.logits(x), AttentionMaps(maps[0], own, cross)
        return self.embedding.logits(x)

    @overload
    def encode(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        *,
        return_weights: Literal[False] = False,
        **options: Unpack[SequenceToSequenceOptions],
    ) -> Float[Array, "B S D"]: ...

    @overload
    def encode(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        *,
        return_weights: Literal[True],
        **options: Unpack[SequenceToSequenceOptions],
    ) -> tuple[Float[Array, "B S D"], list[Float[Array, "B N S S"]]]: ...

    @overload
    def encode(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        *,
        return_weights: bool = False,
        **options: Unpack[SequenceToSequenceOptions],
    ) -> Float[Array, "B S D"] | tuple[Float[Array, "B S D"], list[Float[Array, "B N S S"]]]: ...

    def encode(
        self,
        source: Int[Array, "B S"],
        is_source: Bool[Array, "B S"],
        *,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B S D"] | tuple[Float[Array, "B S D"], list[Float[Array, "B N S S"]]]:
        """Encode the source as vectors for the decoder.

        With `return_weights` also return the attention weights of each layer.
        """
        check_length(source, self.config.max_length)
        check_ids("source", source, self.config.vocab_size, is_source)
        positions = count_positions(is_source)
        context = LayerContext(
            **self._positions(self.config.encoder, positions),
            mask=padding(is_source),
            return_weights=return_weights,
            implementation=implementation,
        )
        return self.encoder(self.embedding(source, positions, rngs=rngs), context, rngs=rngs)

    def start(
        self, source: Int[Array, "B S"], is_source: Bool[Array, "B S"], capacity: int
    ) -> Cache:
        """Encode the source and create a cache for a target of up to `capacity` tokens.

        Raises ValueError if `capacity` is not from 1 to max_length.
        """
        encoded = self.encode(source, is_source)
        check_capacity(capacity, self.config.max_length)
        cache = self.decoder.empty_cache(
            source.shape[0], capacity, dtype=cache_dtype(encoded.dtype)
        )
        return replace(
            cache, memory=self.decoder.memory_of(encoded, is_source), is_memory=is_source
        )

    def next_logits(
        self, tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"], cache: Cache
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Compute the logits after these tokens, and the cache with them, for generation."""
        check_ids("tokens", tokens, self.config.vocab_size, is_token)
        step = cache.step(is_token)
        at = {"query_positions": step.positions, "key_positions": step.key_positions}
        context = LayerContext(
            **self._positions(self.config.decoder, step.positions, **at),
            mask=causal(**at) & padding(step.is_key),
            memory_mask=padding(cache.is_memory),
        )
        x = self.embedding(tokens, step.positions)
        x, cache = self.decoder(x, context, memory=cache.memory, cache=cache, step=step)
        return self.embedding.logits(last_token(x, is_token)), cache

    def _positions(self, stack: StackConfig, positions: Int[Array, "#B T"], **cached: Any) -> dict:
        scheme = POSITION_SCHEMES[self.config.positions]
        return scheme.attention(stack, positions, base=self.config.rope_base, **cached)
