"""Flax NNX layers: each stores parameters and calls one pure function.

Parameters are float32 `nnx.Param`s. A module holds no random state: `rngs` at construction draws
the initial values, and `rngs` at a call draws dropout. A call without `rngs` has no dropout.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from transformer_jax.attention.inputs import AttentionInputs, validate
from transformer_jax.attention.kernels.compute import compute_attention
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.functional.feed_forward import GATES, feed_forward, gated_feed_forward
from transformer_jax.functional.linear import linear
from transformer_jax.functional.normalization import layer_norm, rms_norm
from transformer_jax.functional.positions import lookup
from transformer_jax.functional.rotary import Rotary
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import DEFAULT_CONTEXT, LayerContext
from transformer_jax.nn.parameters import bias_of, dropout_key, kernel, normal, read


class Linear(nnx.Module):
    """The kernel and bias of `linear`."""

    def __init__(
        self, in_features: int, out_features: int, *, use_bias: bool = True, rngs: nnx.Rngs
    ):
        self.kernel = kernel(rngs, in_features, out_features)
        self.bias = bias_of(use_bias, out_features)

    def __call__(
        self, x: Float[Array, "... D"], *, dtype: DTypeLike | None = None
    ) -> Float[Array, "... F"]:
        return linear(x, self.kernel[...], read(self.bias), dtype=dtype)


class Embedding(nnx.Module):
    """The table of `lookup`."""

    def __init__(self, num_rows: int, features: int, *, stddev: float = 0.02, rngs: nnx.Rngs):
        self.embedding = normal(rngs, num_rows, features, stddev=stddev)

    def __call__(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        return lookup(self.embedding[...], tokens)


class LayerNorm(nnx.Module):
    """The scale and bias of `layer_norm`."""

    def __init__(self, features: int, *, epsilon: float = 1e-5, use_bias: bool = True):
        self.scale = nnx.Param(jnp.ones(features, jnp.float32))
        self.bias = bias_of(use_bias, features)
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return layer_norm(x, self.scale[...], read(self.bias), epsilon=self.epsilon)


class RMSNorm(nnx.Module):
    """The scale of `rms_norm`."""

    def __init__(self, features: int, *, epsilon: float = 1e-6):
        self.scale = nnx.Param(jnp.ones(features, jnp.float32))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return rms_norm(x, self.scale[...], epsilon=self.epsilon)


class FeedForward(nnx.Module):
    """The two linear maps of `feed_forward`, or the three of `gated_feed_forward`."""

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        activation: str = "gelu",
        use_bias: bool = True,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
    ):
        D, F = embed_dim, hidden_dim
        self.in_kernel, self.in_bias = kernel(rngs, D, F), bias_of(use_bias, F)
        self.out_kernel, self.out_bias = kernel(rngs, F, D), bias_of(use_bias, D)
        gated = activation in GATES
        self.gate_kernel = kernel(rngs, D, F) if gated else None
        self.gate_bias = bias_of(use_bias and gated, F)
        self.activation = activation
        self.dropout_rate = dropout_rate

    def __call__(
        self, x: Float[Array, "... D"], *, rngs: nnx.Rngs | None = None
    ) -> Float[Array, "... D"]:
        rate, key = self.dropout_rate, dropout_key(rngs, self.dropout_rate)
        if self.gate_kernel is None:
            return feed_forward(
                x,
                self.in_kernel[...],
                read(self.in_bias),
                self.out_kernel[...],
                read(self.out_bias),
                activation=self.activation,
                dropout_rate=rate,
                dropout_rng=key,
            )
        return gated_feed_forward(
            x,
            self.gate_kernel[...],
            self.in_kernel[...],
            self.out_kernel[...],
            gate=self.activation,
            gate_bias=read(self.gate_bias),
            in_bias=read(self.in_bias),
            out_bias=read(self.out_bias),
            dropout_rate=rate,
            dropout_rng=key,
        )


class MultiHeadAttention(nnx.Module):
    """The four projections of `multi_head_attention`, with biases as in BERT and GPT-2.

    With a cache, keys and values are computed before the queries that attend to them. For this,
    `keys_and_values` and then `attend` are the two halves of a call. With a `head_norm_epsilon`, an
    RMS norm is applied to every head's queries and keys (Qwen3).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_kv_heads: int | None = None,
        use_bias: bool = True,
        use_qkv_bias: bool | None = None,
        head_norm_epsilon: float | None = None,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
    ):
        D, N, K = embed_dim, num_heads, num_kv_heads or num_heads
        H = head_dim or D // N
        O = value_dim or H  # noqa: E741 (the letter of the axis)
        qkv = use_bias if use_qkv_bias is None else use_qkv_bias
        self.query_kernel, self.query_bias = kernel(rngs, D, N, H), bias_of(qkv, N, H)
        self.key_kernel, self.key_bias = kernel(rngs, D, K, H), bias_of(qkv, K, H)
        self.value_kernel, self.value_bias = kernel(rngs, D, K, O), bias_of(qkv, K, O)
        self.out_kernel, self.out_bias = kernel(rngs, N, O, D, inputs=2), bias_of(use_bias, D)
        # Each is assigned once: NNX marks an attribute that holds None as static.
        has_norms = head_norm_epsilon is not None
        self.query_norm = RMSNorm(H, epsilon=head_norm_epsilon) if has_norms else None
        self.key_norm = RMSNorm(H, epsilon=head_norm_epsilon) if has_norms else None
        self.dropout_rate = dropout_rate

    def __call__(
        self,
        inputs_q: Float[Array, "B T D"],
        inputs_kv: Float[Array, "B S D"],
        context: LayerContext = DEFAULT_CONTEXT,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B N T S"]]:
        norms: dict[str, Any] = {}
        if self.query_norm is not None and self.key_norm is not None:
            norms = {
                "query_scale": self.query_norm.scale[...],
                "key_scale": self.key_norm.scale[...],
                "norm_epsilon": self.query_norm.epsilon,
            }
        return multi_head_attention(
            inputs_q,
            inputs_kv,
            self.query_kernel[...],
            self.key_kernel[...],
            self.value_kernel[...],
            self.out_kernel[...],
            # Passed first, because pyright tries few combinations of the arguments before a flag.
            return_weights=context.return_weights,
            query_bias=read(self.query_bias),
            key_bias=read(self.key_bias),
            value_bias=read(self.value_bias),
            out_bias=read(self.out_bias),
            **norms,
            rotary=context.rotary,
            bias=context.bias,
            mask=context.mask,
            dropout_rate=self.dropout_rate,
            dropout_rng=dropout_key(rngs, self.dropout_rate),
            implementation=context.implementation,
        )

    def keys_and_values(
        self, inputs_kv: Float[Array, "B S D"], *, rotary: Rotary | None = None
    ) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K O"]]:
        """Return the keys and values of these inputs, for a cache."""
        key = linear(inputs_kv, self.key_kernel[...], read(self.key_bias))
        value = linear(inputs_kv, self.value_kernel[...], read(self.value_bias))
        key = key if self.key_norm is None else self.key_norm(key)
        return key if rotary is None else rotary.turn(key), value

    def attend(
        self,
        inputs_q: Float[Array, "B T D"],
        key: Float[Array, "B S K H"],
        value: Float[Array, "B S K O"],
        context: LayerContext = DEFAULT_CONTEXT,
        *,
        heads_first: bool = False,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B N T S"]]:
        """Return the result of a call, from keys and values that are already computed.

        `heads_first` says that they are views of arrays [B, K, S, H], as those of a cache are.
        """
        query = linear(inputs_q, self.query_kernel[...], read(self.query_bias))
        query = query if self.query_norm is None else self.query_norm(query)
        inputs = AttentionInputs(
            query if context.rotary is None else context.rotary.turn(query),
            key,
            value,
            bias=context.bias,
            mask=context.mask,
            dropout_rate=self.dropout_rate,
            dropout_rng=dropout_key(rngs, self.dropout_rate),
            return_weights=context.return_weights,
            heads_first=heads_first,
        )
        attended = compute_attention(validate(inputs), context.implementation, zero_rows=True)
        values = attended.output.astype(inputs_q.dtype)  # a cache may be of a wider dtype
        output = linear(values, self.out_kernel[...], read(self.out_bias), axes=2)
        return output if attended.weights is None else (output, attended.weights)


def norm_of(config: StackConfig) -> LayerNorm | RMSNorm:
    """Create the norm for the layers of a stack."""
    D, epsilon = config.embed_dim, config.norm_epsilon
    if config.norm_kind == "rms":
        return RMSNorm(D, epsilon=epsilon)
    return LayerNorm(D, epsilon=epsilon, use_bias=config.norm_biases)


def attention_of(config: StackConfig, *, rngs: nnx.Rngs) -> MultiHeadAttention:
    """Create the attention for the layers of a stack."""
    return MultiHeadAttention(
        config.embed_dim,
        config.num_heads,
        head_dim=config.head_dim,
        value_dim=config.value_dim,
        num_kv_heads=config.num_kv_heads,
        use_bias=config.biases,
        use_qkv_bias=config.qkv_biases,
        head_norm_epsilon=config.norm_epsilon if config.head_norm else None,
        dropout_rate=config.attention_dropout_rate,
        rngs=rngs,
    )


def feed_forward_of(config: StackConfig, *, rngs: nnx.Rngs) -> FeedForward:
    """Create the feed-forward network for the layers of a stack."""
    rate = config.hidden_dropout_rate
    return FeedForward(
        config.embed_dim,
        config.hidden_dim,
        activation=config.activation,
        use_bias=config.biases,
        dropout_rate=config.dropout_rate if rate is None else rate,
        rngs=rngs,
    )
