"""Whole models, composed from the encoder and its input layers."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.config import ClassifierConfig
from transformer_jax.dropout import dropout
from transformer_jax.encoder import Encoder
from transformer_jax.masks import padding
from transformer_jax.modules import BertEmbedding, Linear, RegionFeatures, dropout_key
from transformer_jax.pooling import POOLINGS, max_pool


class TextClassifier(nnx.Module):
    """Embedding -> encoder -> pooling -> dropout -> one linear map to the class logits.

    With `region_features`, the strongest region of each kind joins what is pooled from the encoder: short
    phrases count for themselves, and attention adds what their order and distance mean.
    """

    def __init__(self, config: ClassifierConfig, *, rngs: nnx.Rngs):
        D = config.encoder.embed_dim
        self.embedding = BertEmbedding(
            config.vocab_size,
            config.max_length,
            D,
            num_segments=config.num_segments,
            region_width=config.region_width,
            dropout_rate=config.embedding_dropout_rate,
            norm_epsilon=config.encoder.norm_epsilon,
            rngs=rngs,
        )
        self.encoder = Encoder(config.encoder, rngs=rngs)
        self.regions = (
            RegionFeatures(
                config.vocab_size, config.region_features, width=config.region_width, rngs=rngs
            )
            if config.region_features
            else None
        )
        pooled = D * len(config.pooling) + config.region_features
        self.head = Linear(pooled, config.num_classes, rngs=rngs)
        self.pooling = config.pooling
        self.dropout_rate = config.head_dropout_rate

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
    ) -> Float[Array, "B C"] | tuple[Float[Array, "B C"], list[Float[Array, "B N T T"]]]:
        x = self.embedding(tokens, is_token, rngs=rngs)
        x, maps = self.encoder(x, mask=padding(is_token), rngs=rngs, return_weights=True)
        pooled = [POOLINGS[name](x, is_token) for name in self.pooling]
        if self.regions is not None:
            pooled.append(max_pool(self.regions(tokens, is_token), is_token))
        pooled = jnp.concatenate(pooled, axis=-1)
        pooled = dropout(pooled, self.dropout_rate, dropout_key(rngs, self.dropout_rate))
        logits = self.head(pooled)
        return (logits, maps) if return_weights else logits
