"""Flax NNX shells: each stores parameters and calls one pure function.

Parameters are float32 `nnx.Param`s; a module holds no random state. `rngs` at construction draws the initial
values, `rngs` at a call draws dropout, and without it there is none.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.attention import multi_head_attention
from transformer_jax.dropout import dropout
from transformer_jax.feed_forward import feed_forward
from transformer_jax.linear import linear
from transformer_jax.masks import MaskLike
from transformer_jax.normalization import layer_norm
from transformer_jax.plan import Implementation
from transformer_jax.positions import count_positions, lookup
from transformer_jax.regions import region_embedding


def dropout_key(rngs: nnx.Rngs | None, rate: float = 1.0):
    """The key of the next dropout, or None for evaluation. A rate of 0 draws nothing."""
    return None if rngs is None or rate == 0.0 else rngs.dropout()


def kernel(rngs: nnx.Rngs, *shape: int, inputs: int = 1) -> nnx.Param:
    """LeCun-normal weights (variance 1/fan-in); the first `inputs` axes are the ones summed over."""
    init = jax.nn.initializers.lecun_normal(
        in_axis=tuple(range(inputs)), out_axis=tuple(range(inputs, len(shape)))
    )
    return nnx.Param(init(rngs.params(), shape, jnp.float32))


def zeros(*shape: int) -> nnx.Param:
    return nnx.Param(jnp.zeros(shape, jnp.float32))


class Linear(nnx.Module):
    """Stores the kernel and bias of `linear`."""

    def __init__(self, in_features: int, out_features: int, *, rngs: nnx.Rngs):
        self.kernel = kernel(rngs, in_features, out_features)
        self.bias = zeros(out_features)

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... F"]:
        return linear(x, self.kernel[...], self.bias[...])


class LayerNorm(nnx.Module):
    """Stores the scale and bias of `layer_norm`."""

    def __init__(self, features: int, *, epsilon: float = 1e-5):
        self.scale = nnx.Param(jnp.ones(features, jnp.float32))
        self.bias = zeros(features)
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return layer_norm(x, self.scale[...], self.bias[...], epsilon=self.epsilon)


class FeedForward(nnx.Module):
    """Stores the two linear maps of `feed_forward`."""

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
    ):
        self.in_kernel, self.in_bias = kernel(rngs, embed_dim, hidden_dim), zeros(hidden_dim)
        self.out_kernel, self.out_bias = kernel(rngs, hidden_dim, embed_dim), zeros(embed_dim)
        self.activation = activation
        self.dropout_rate = dropout_rate

    def __call__(
        self, x: Float[Array, "... D"], *, rngs: nnx.Rngs | None = None
    ) -> Float[Array, "... D"]:
        return feed_forward(
            x,
            self.in_kernel[...],
            self.in_bias[...],
            self.out_kernel[...],
            self.out_bias[...],
            activation=self.activation,
            dropout_rate=self.dropout_rate,
            dropout_rng=dropout_key(rngs, self.dropout_rate),
        )


class MultiHeadAttention(nnx.Module):
    """Stores the four projections of `multi_head_attention`, with biases as BERT and GPT-2 have them."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
    ):
        D, N, K, H = (
            embed_dim,
            num_heads,
            num_kv_heads or num_heads,
            head_dim or embed_dim // num_heads,
        )
        self.query_kernel, self.query_bias = kernel(rngs, D, N, H), zeros(N, H)
        self.key_kernel, self.key_bias = kernel(rngs, D, K, H), zeros(K, H)
        self.value_kernel, self.value_bias = kernel(rngs, D, K, H), zeros(K, H)
        self.out_kernel, self.out_bias = kernel(rngs, N, H, D, inputs=2), zeros(D)
        self.dropout_rate = dropout_rate

    def __call__(
        self,
        inputs_q: Float[Array, "B T D"],
        inputs_kv: Float[Array, "B S D"],
        *,
        mask: MaskLike = None,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B N T S"]]:
        return multi_head_attention(
            inputs_q,
            inputs_kv,
            self.query_kernel[...],
            self.key_kernel[...],
            self.value_kernel[...],
            self.out_kernel[...],
            query_bias=self.query_bias[...],
            key_bias=self.key_bias[...],
            value_bias=self.value_bias[...],
            out_bias=self.out_bias[...],
            mask=mask,
            dropout_rate=self.dropout_rate,
            dropout_rng=dropout_key(rngs, self.dropout_rate),
            return_weights=return_weights,
            implementation=implementation,
        )


class Embedding(nnx.Module):
    """Stores the table of `lookup`."""

    def __init__(self, num_rows: int, features: int, *, stddev: float = 0.02, rngs: nnx.Rngs):
        self.embedding = nnx.Param(
            stddev * jax.random.normal(rngs.params(), (num_rows, features), jnp.float32)
        )

    def __call__(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        return lookup(self.embedding[...], tokens)


class RegionEmbedding(nnx.Module):
    """Stores the table of `region_embedding`: a vector for every token in every place of a region."""

    def __init__(
        self,
        vocab_size: int,
        features: int,
        *,
        width: int,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        shape = (width, vocab_size, features)
        self.embedding = nnx.Param(stddev * jax.random.normal(rngs.params(), shape, jnp.float32))

    def __call__(
        self, tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        return region_embedding(self.embedding[...], tokens, is_token)


class BertEmbedding(nnx.Module):
    """LayerNorm(token + position + segment), then dropout (Devlin et al., 2019, figure 2).

    Positions are counted over the real tokens, so padding on either side changes nothing. With a
    `region_width` above 1 a token is embedded together with its neighbours.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        features: int,
        *,
        num_segments: int = 2,
        region_width: int = 1,
        dropout_rate: float = 0.0,
        norm_epsilon: float = 1e-5,
        rngs: nnx.Rngs,
    ):
        if region_width == 1:
            self.token = Embedding(vocab_size, features, rngs=rngs)
        else:
            self.token = RegionEmbedding(vocab_size, features, width=region_width, rngs=rngs)
        self.position = Embedding(max_length, features, rngs=rngs)
        self.segment = Embedding(num_segments, features, rngs=rngs)
        self.norm = LayerNorm(features, epsilon=norm_epsilon)
        self.dropout_rate = dropout_rate

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        segments: Int[Array, "B T"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        is_region = isinstance(self.token, RegionEmbedding)
        x = self.token(tokens, is_token) if is_region else self.token(tokens)
        x = x + self.position(count_positions(is_token))
        x = x + self.segment(jnp.zeros_like(tokens) if segments is None else segments)
        return dropout(self.norm(x), self.dropout_rate, dropout_key(rngs, self.dropout_rate))


class RegionFeatures(nnx.Module):
    """relu(region + bias): what each short stretch of text says, whatever stands around it."""

    def __init__(self, vocab_size: int, features: int, *, width: int, rngs: nnx.Rngs):
        # No norm follows that would scale it up: larger than the 0.02 of the other embeddings.
        self.region = RegionEmbedding(vocab_size, features, width=width, stddev=0.05, rngs=rngs)
        self.bias = zeros(features)

    def __call__(
        self, tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        return jax.nn.relu(self.region(tokens, is_token) + self.bias[...])


class PatchEmbedding(nnx.Module):
    """LayerNorm(W dropout(patch) + b + position): features of a text, by patches, as an encoder reads them."""

    def __init__(
        self,
        features: int,
        max_patches: int,
        embed_dim: int,
        *,
        dropout_rate: float = 0.0,
        norm_epsilon: float = 1e-5,
        rngs: nnx.Rngs,
    ):
        self.projection = Linear(features, embed_dim, rngs=rngs)
        self.position = Embedding(max_patches, embed_dim, rngs=rngs)
        self.norm = LayerNorm(embed_dim, epsilon=norm_epsilon)
        self.dropout_rate = dropout_rate

    def __call__(
        self,
        patches: Float[Array, "B P F"],
        is_patch: Bool[Array, "B P"],
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B P D"]:
        x = dropout(patches, self.dropout_rate, dropout_key(rngs, self.dropout_rate))
        return self.norm(self.projection(x) + self.position(count_positions(is_patch)))
