"""The encoder (Vaswani et al., 2017, figure 1, left), with the norm after or before each sublayer."""

from collections.abc import Callable
from functools import partial

from flax import nnx
from jaxtyping import Array, Float

from transformer_jax.biases import BiasLike
from transformer_jax.config import StackConfig
from transformer_jax.dropout import dropout
from transformer_jax.masks import MaskLike, as_mask
from transformer_jax.modules import attention_of, dropout_key, feed_forward_of, norm_of
from transformer_jax.plan import Implementation
from transformer_jax.rotary import Rotary
from transformer_jax.unseen import sight


def residual(
    x: Float[Array, "B T D"],
    sublayer: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
    norm: nnx.Module,
    config: StackConfig,
    rngs: nnx.Rngs | None,
) -> Float[Array, "B T D"]:
    """The connection around a sublayer.

    post: norm(x + dropout(sublayer(x)))      (2017, BERT)
    pre:  x + dropout(sublayer(norm(x)))      (Xiong et al., 2020, https://arxiv.org/abs/2002.04745)
    """
    rate = config.dropout_rate

    def add(y):
        return x + dropout(y, rate, dropout_key(rngs, rate))

    return add(sublayer(norm(x))) if config.norm == "pre" else norm(add(sublayer(x)))


class EncoderLayer(nnx.Module):
    """Self-attention, then a feed-forward network, each inside a `residual` connection."""

    def __init__(self, config: StackConfig, *, rngs: nnx.Rngs):
        self.attention = attention_of(config, rngs=rngs)
        self.feed_forward = feed_forward_of(config, rngs=rngs)
        self.attention_norm, self.feed_forward_norm = norm_of(config), norm_of(config)
        self.config = config

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        rotary: Rotary | None = None,
        bias: BiasLike = None,
        mask: MaskLike = None,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B N T T"]]:
        weights = None

        def attend(y):
            nonlocal weights
            attended = self.attention(
                y,
                y,
                rotary=rotary,
                bias=bias,
                mask=mask,
                rngs=rngs,
                return_weights=return_weights,
                implementation=implementation,
            )
            attended, weights = attended if return_weights else (attended, None)
            return attended

        mask = as_mask(mask)
        if mask is not None:
            x = sight(mask, x.shape[1], x.shape[1]).of_lone_rows(x)
        x = residual(x, attend, self.attention_norm, self.config, rngs)
        transform = partial(self.feed_forward, rngs=rngs)
        x = residual(x, transform, self.feed_forward_norm, self.config, rngs)
        return (x, weights) if return_weights else x


class Encoder(nnx.Module):
    """A stack of `EncoderLayer`s, with a norm at the end when the configuration asks for one."""

    def __init__(self, config: StackConfig, *, rngs: nnx.Rngs):
        self.layers = nnx.List([EncoderLayer(config, rngs=rngs) for _ in range(config.num_layers)])
        self.final_norm = norm_of(config) if config.final_norm else None

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        rotary: Rotary | None = None,
        bias: BiasLike = None,
        mask: MaskLike = None,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], list[Float[Array, "B N T T"]]]:
        """x after every layer; with return_weights also the attention weights, one array a layer."""
        maps = []
        for layer in self.layers:
            x = layer(
                x,
                rotary=rotary,
                bias=bias,
                mask=mask,
                rngs=rngs,
                return_weights=return_weights,
                implementation=implementation,
            )
            if return_weights:
                x, weights = x
                maps.append(weights)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return (x, maps) if return_weights else x
