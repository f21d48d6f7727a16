"""Input layers, as Flax NNX shells: from token ids, with their places, to the vectors that a stack
of layers reads.
"""

import math
from string import ascii_lowercase

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.positions import count_positions, lookup, sinusoidal_positions
from transformer_jax.functional.precision import product, wide
from transformer_jax.functional.regions import region_embedding, weaken
from transformer_jax.nn.layers import LayerNorm, Linear
from transformer_jax.nn.parameters import drawn, dropout_key, zeros


class Embedding(nnx.Module):
    """Stores the table of `lookup`."""

    def __init__(self, num_rows: int, features: int, *, stddev: float = 0.02, rngs: nnx.Rngs):
        self.embedding = drawn(rngs, jax.nn.initializers.normal(stddev), num_rows, features)

    def __call__(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        return lookup(self.embedding[...], tokens)


class TokenEmbedding(nnx.Module):
    """token + position, then dropout; its table is also a language model's head.

    learned:    the token's row and the position's (GPT-2)
    sinusoidal: sqrt(D) times the row, and the code of the position (Vaswani et al., 2017, sections 3.4 and 3.5)
    otherwise:  the row alone; positions come in with attention, or not at all
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        features: int,
        *,
        positions: str,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
    ):
        # Times sqrt(D) the variance is 1, and without it the logits of a normed vector have
        # variance 1.
        stddev = features**-0.5 if positions == "sinusoidal" else 0.02
        self.token = Embedding(vocab_size, features, stddev=stddev, rngs=rngs)
        learned = positions == "learned"
        self.position = Embedding(max_length, features, rngs=rngs) if learned else None
        self.positions = positions
        self.dropout_rate = dropout_rate

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "#B T"],
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        rows = self.token(tokens)
        x = wide(rows)
        if self.position is not None:
            x = x + self.position(positions)
        if self.positions == "sinusoidal":
            D = x.shape[-1]
            x = x * math.sqrt(D) + sinusoidal_positions(positions, D).astype(x.dtype)
        x = x.astype(rows.dtype)
        return dropout(x, self.dropout_rate, dropout_key(rngs, self.dropout_rate))

    def logits(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """x E^T, float32 or wider (Press and Wolf, 2017, https://arxiv.org/abs/1608.05859)."""
        rows = ascii_lowercase[: x.ndim - 1]
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        return product(f"{rows}D,VD->{rows}V", x, self.token.embedding[...], dtype)


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
        init = jax.nn.initializers.normal(stddev)
        self.embedding = drawn(rngs, init, width, vocab_size, features)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        presence: Float[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        return region_embedding(self.embedding[...], tokens, is_token, presence)


class BertEmbedding(nnx.Module):
    """LayerNorm(token + position + segment), then dropout (Devlin et al., 2019, figure 2).

    Positions that are not given are counted over the real tokens, so padding on either side changes
    nothing. With a `region_width` above 1 a token is embedded together with its neighbours. Without
    `positions` these come in with attention (ModernBERT); with `num_segments=0` there is no segment
    (DistilBERT). A `presence` of 0 to 1 multiplies what is looked up for a token, its row and not
    its position or segment.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        features: int,
        *,
        num_segments: int = 2,
        region_width: int = 1,
        positions: bool = True,
        dropout_rate: float = 0.0,
        norm_epsilon: float = 1e-5,
        norm_bias: bool = True,
        rngs: nnx.Rngs,
    ):
        if region_width == 1:
            self.token = Embedding(vocab_size, features, rngs=rngs)
        else:
            self.token = RegionEmbedding(vocab_size, features, width=region_width, rngs=rngs)
        self.position = Embedding(max_length, features, rngs=rngs) if positions else None
        self.segment = Embedding(num_segments, features, rngs=rngs) if num_segments else None
        self.norm = LayerNorm(features, epsilon=norm_epsilon, use_bias=norm_bias)
        self.dropout_rate = dropout_rate

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        positions: Int[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        presence: Float[Array, "B T"] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        if isinstance(self.token, RegionEmbedding):
            rows = self.token(tokens, is_token, presence=presence)
        else:
            rows = self.token(tokens)
            rows = rows if presence is None else weaken(rows, is_token, presence)
        x = wide(rows)
        if self.position is not None:
            x += self.position(count_positions(is_token) if positions is None else positions)
        if self.segment is not None:
            # Without segments one row is added everywhere: a sum for its gradient, where an
            # accelerator's scatter would be slow.
            x += self.segment(jnp.zeros((1, 1), tokens.dtype) if segments is None else segments)
        return dropout(
            self.norm(x.astype(rows.dtype)), self.dropout_rate, dropout_key(rngs, self.dropout_rate)
        )


class RegionFeatures(nnx.Module):
    """relu(region + bias): what each short stretch of text says, whatever stands around it."""

    def __init__(self, vocab_size: int, features: int, *, width: int, rngs: nnx.Rngs):
        # No norm follows that would scale it up: larger than the 0.02 of the other embeddings.
        self.region = RegionEmbedding(vocab_size, features, width=width, stddev=0.05, rngs=rngs)
        self.bias = zeros(features)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        presence: Float[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        regions = self.region(tokens, is_token, presence=presence)
        return jax.nn.relu(wide(regions) + self.bias[...]).astype(regions.dtype)


class PatchEmbedding(nnx.Module):
    """LayerNorm(W dropout(patch) + b + position): features of a text, by patches, as an encoder
    reads them.
    """

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
