"""Whole models, composed from the encoder and its input layers."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.config import ClassifierConfig
from transformer_jax.dropout import dropout
from transformer_jax.encoder import Encoder
from transformer_jax.masks import padding
from transformer_jax.modules import BertEmbedding, Linear, RegionEmbedding, dropout_key
from transformer_jax.pooling import POOLINGS


class TextClassifier(nnx.Module):
    """Embedding -> encoder -> pooling -> dropout -> one linear map to the class logits."""

    def __init__(self, config: ClassifierConfig, *, rngs: nnx.Rngs):
        D = config.encoder.embed_dim
        sizes = (config.vocab_size, config.max_length, D)
        if config.embedding == "regions":
            self.embedding = RegionEmbedding(
                *sizes,
                width=config.region_width,
                dropout_rate=config.embedding_dropout_rate,
                rngs=rngs,
            )
        else:
            self.embedding = BertEmbedding(
                *sizes,
                num_segments=config.num_segments,
                dropout_rate=config.embedding_dropout_rate,
                norm_epsilon=config.encoder.norm_epsilon,
                rngs=rngs,
            )
        self.encoder = Encoder(config.encoder, rngs=rngs)
        self.head = Linear(D * len(config.pooling), config.num_classes, rngs=rngs)
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
        pooled = jnp.concatenate([POOLINGS[name](x, is_token) for name in self.pooling], axis=-1)
        pooled = dropout(pooled, self.dropout_rate, dropout_key(rngs, self.dropout_rate))
        logits = self.head(pooled)
        return (logits, maps) if return_weights else logits
