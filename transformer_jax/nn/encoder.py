"""The encoder (Vaswani et al., 2017, figure 1, left), with norms after or before each sublayer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from transformer_jax.functional.dropout import dropout
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import DEFAULT_CONTEXT, LayerContext
from transformer_jax.nn.layers import attention_of, feed_forward_of, norm_of
from transformer_jax.nn.parameters import dropout_key
from transformer_jax.nn.remat import rematerialised


def residual(
    x: Float[Array, "B T D"],
    sublayer: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
    norm: nnx.Module | None,
    config: StackConfig,
    rngs: nnx.Rngs | None,
) -> Float[Array, "B T D"]:
    """Return the output of a sublayer with its residual connection and norm.

        post: norm(x + dropout(sublayer(x)))
        pre:  x + dropout(sublayer(norm(x)))

    The norm is after the sublayer in Vaswani et al., 2017, and BERT. The norm before it is of Xiong
    et al., 2020, https://arxiv.org/abs/2002.04745. If `norm` is None, it is x +
    dropout(sublayer(x)).
    """
    rate = config.dropout_rate

    def add(y):
        return x + dropout(y, rate, dropout_key(rngs, rate))

    if norm is None:
        return add(sublayer(x))
    return add(sublayer(norm(x))) if config.norm == "pre" else norm(add(sublayer(x)))


class EncoderLayer(nnx.Module):
    """Self-attention and then a feed-forward network, each inside a `residual` connection."""

    def __init__(self, config: StackConfig, *, is_normed: bool = False, rngs: nnx.Rngs):
        self.attention = attention_of(config, rngs=rngs)
        self.feed_forward = feed_forward_of(config, rngs=rngs)
        self.attention_norm = None if is_normed else norm_of(config)
        self.feed_forward_norm = norm_of(config)
        self.config = config

    def __call__(
        self,
        x: Float[Array, "B T D"],
        context: LayerContext = DEFAULT_CONTEXT,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B N T T"]]:
        weights = []

        def attend(y):
            attended = self.attention(y, y, context, rngs=rngs)
            output, *found = attended if isinstance(attended, tuple) else (attended,)
            weights.extend(found)
            return output

        context = context.resolved(x.shape[1])
        x = context.masked_rows.zero_isolated_rows(x)
        x = residual(x, attend, self.attention_norm, self.config, rngs)
        transform = partial(self.feed_forward, rngs=rngs)
        x = residual(x, transform, self.feed_forward_norm, self.config, rngs)
        return (x, weights[0]) if weights else x


class Encoder(nnx.Module):
    """A stack of `EncoderLayer`s, with a norm at the end if the configuration asks for one.

    With `remat`, each layer is computed again in the backward pass.
    """

    remat = False  # a setting of training, which is not saved with a model

    def __init__(self, config: StackConfig, *, rngs: nnx.Rngs):
        self.layers = nnx.List(
            [
                EncoderLayer(config, is_normed=i == 0 and not config.first_norm, rngs=rngs)
                for i in range(config.num_layers)
            ]
        )
        self.final_norm = norm_of(config) if config.final_norm else None

    def __call__(
        self,
        x: Float[Array, "B T D"],
        context: LayerContext = DEFAULT_CONTEXT,
        *,
        layer_contexts: Sequence[LayerContext] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"] | tuple[Any, ...]:
        """Return x after all layers, and after it, if asked for, attention weights and states.

        The weights are an array for each layer. The states are the input of each layer, and x. If
        layers differ, as local and global attention do, `layer_contexts` has one context for each
        layer.
        """
        if layer_contexts is None:
            layer_contexts = [context.resolved(x.shape[1])] * len(self.layers)
        maps, states = [], []
        for layer, layer_context in zip(self.layers, layer_contexts, strict=True):
            states.append(x)
            call = partial(rematerialised, layer) if self.remat else layer
            encoded = call(x, layer_context, rngs=rngs)
            x, *weights = encoded if isinstance(encoded, tuple) else (encoded,)
            maps += weights
        if self.final_norm is not None:
            x = self.final_norm(x)
        returned = (x,) + (maps,) * context.return_weights
        returned += ([*states, x],) * context.return_states
        return returned if len(returned) > 1 else x
