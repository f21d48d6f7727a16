"""The encoder (Vaswani et al., 2017, figure 1, left), with the norm after or before each sublayer."""

from flax import nnx
from jaxtyping import Array, Float

from transformer_jax.config import EncoderConfig
from transformer_jax.dropout import dropout
from transformer_jax.masks import MaskLike, as_mask
from transformer_jax.modules import FeedForward, LayerNorm, MultiHeadAttention, dropout_key
from transformer_jax.plan import Implementation
from transformer_jax.unseen import sight


class EncoderLayer(nnx.Module):
    """Self-attention, then a feed-forward network, each inside a residual connection.

    post: x = norm(x + sublayer(x))      (2017, BERT)
    pre:  x = x + sublayer(norm(x))      (Xiong et al., 2020, https://arxiv.org/abs/2002.04745)
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        D, epsilon = config.embed_dim, config.norm_epsilon
        self.attention = MultiHeadAttention(
            D,
            config.num_heads,
            head_dim=config.head_dim,
            num_kv_heads=config.num_kv_heads,
            dropout_rate=config.attention_dropout_rate,
            rngs=rngs,
        )
        self.feed_forward = FeedForward(
            D,
            config.hidden_dim,
            activation=config.activation,
            dropout_rate=config.dropout_rate,
            rngs=rngs,
        )
        self.attention_norm = LayerNorm(D, epsilon=epsilon)
        self.feed_forward_norm = LayerNorm(D, epsilon=epsilon)
        self.norm = config.norm
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        mask: MaskLike = None,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B N T T"]]:
        def attend(y):
            attended = self.attention(
                y,
                y,
                mask=mask,
                rngs=rngs,
                return_weights=return_weights,
                implementation=implementation,
            )
            return attended if return_weights else (attended, None)

        def add(x, y):
            return x + dropout(y, self.dropout_rate, dropout_key(rngs, self.dropout_rate))

        mask = as_mask(mask)
        if mask is not None:
            x = sight(mask, x.shape[1], x.shape[1]).of_lone_rows(x)
        if self.norm == "pre":
            attended, weights = attend(self.attention_norm(x))
            x = add(x, attended)
            x = add(x, self.feed_forward(self.feed_forward_norm(x), rngs=rngs))
        else:
            attended, weights = attend(x)
            x = self.attention_norm(add(x, attended))
            x = self.feed_forward_norm(add(x, self.feed_forward(x, rngs=rngs)))
        return (x, weights) if return_weights else x


class Encoder(nnx.Module):
    """A stack of `EncoderLayer`s, with a norm at the end when the configuration asks for one."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.layers = nnx.List([EncoderLayer(config, rngs=rngs) for _ in range(config.num_layers)])
        self.final_norm = (
            LayerNorm(config.embed_dim, epsilon=config.norm_epsilon) if config.final_norm else None
        )

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
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
