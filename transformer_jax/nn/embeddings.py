"""Input layers: from token ids and their positions to the vectors that a stack of layers reads."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.positions import count_positions
from transformer_jax.functional.precision import wide, wide_dtype
from transformer_jax.functional.regions import region_embedding, weaken
from transformer_jax.functional.weight_product import weight_product
from transformer_jax.nn.layers import Embedding, LayerNorm, Linear
from transformer_jax.nn.parameters import dropout_key, normal, zeros
from transformer_jax.nn.position_schemes import POSITION_SCHEMES


class TokenEmbedding(nnx.Module):
    """The rows of the tokens with their positions, then dropout.

    `positions` is a name of `POSITION_SCHEMES`; some schemes act in attention alone. The token
    table is also the output layer of a language model.
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
        scheme = POSITION_SCHEMES[positions]
        stddev = scheme.token_stddev(features)
        self.token = Embedding(vocab_size, features, stddev=stddev, rngs=rngs)
        self.position = Embedding(max_length, features, rngs=rngs) if scheme.has_table else None
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
        x = POSITION_SCHEMES[self.positions].embed(wide(rows), positions, self.position)
        x = x.astype(rows.dtype)
        return dropout(x, self.dropout_rate, dropout_key(rngs, self.dropout_rate))

    def logits(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Return the logits of a language model, x E^T with E the token table, in float32 or wider.

        Press and Wolf, 2017, https://arxiv.org/abs/1608.05859.
        """
        table = self.token.embedding[...]
        return weight_product(x, table, wide_dtype(x.dtype), transposed=True)


class RegionEmbedding(nnx.Module):
    """The table of `region_embedding`: a vector for every token in every place of a region."""

    def __init__(
        self,
        vocab_size: int,
        features: int,
        *,
        width: int,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.embedding = normal(rngs, width, vocab_size, features, stddev=stddev)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        presence: Float[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        return region_embedding(self.embedding[...], tokens, is_token, presence)


class BertEmbedding(nnx.Module):
    """The input layer of BERT: LayerNorm(token + position + segment), then dropout.

    Devlin et al., 2019, figure 2. Positions that are not given are counted over the real tokens, so
    padding on either side changes nothing. With a `region_width` above 1, a token is embedded
    together with its neighbours. `positions` is a name of `POSITION_SCHEMES`; rotary positions act
    in attention alone (ModernBERT). With `num_segments=0` there is no segment (DistilBERT). A
    `presence` of 0 to 1 multiplies the row of a token, but not its position or segment.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        features: int,
        *,
        num_segments: int = 2,
        region_width: int = 1,
        positions: str = "learned",
        dropout_rate: float = 0.0,
        norm_epsilon: float = 1e-5,
        norm_bias: bool = True,
        rngs: nnx.Rngs,
    ):
        scheme = POSITION_SCHEMES[positions]
        stddev = scheme.token_stddev(features)
        if region_width == 1:
            self.token = Embedding(vocab_size, features, stddev=stddev, rngs=rngs)
        else:
            self.token = RegionEmbedding(
                vocab_size, features, width=region_width, stddev=stddev, rngs=rngs
            )
        self.position = Embedding(max_length, features, rngs=rngs) if scheme.has_table else None
        self.positions = positions
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
        positions = count_positions(is_token) if positions is None else positions
        x = POSITION_SCHEMES[self.positions].embed(wide(rows), positions, self.position)
        if self.segment is not None:
            # Without segments one row is added everywhere. Its gradient is then a sum, where a
            # scatter would be slow on an accelerator.
            segments = jnp.zeros((1, 1), tokens.dtype) if segments is None else segments
            x += self.segment(segments).astype(x.dtype)
        return dropout(
            self.norm(x.astype(rows.dtype)), self.dropout_rate, dropout_key(rngs, self.dropout_rate)
        )


class RegionFeatures(nnx.Module):
    """Features of each short stretch of text, whatever surrounds it: relu(region + bias)."""

    def __init__(self, vocab_size: int, features: int, *, width: int, rngs: nnx.Rngs):
        # Larger than the 0.02 of the other embeddings, because no norm follows to scale it up.
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
        x = wide(regions)
        return jax.nn.relu(x + self.bias[...].astype(x.dtype)).astype(regions.dtype)


class PatchEmbedding(nnx.Module):
    """The input layer of an encoder over patches: LayerNorm(W dropout(patch) + b + position)."""

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
        x = self.projection(x)
        return self.norm(x + self.position(count_positions(is_patch)).astype(x.dtype))
