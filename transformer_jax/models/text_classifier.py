"""The classifier that is trained from scratch: an encoder with optional regions and n-grams."""

from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.masks import padding, sliding_window
from transformer_jax.functional.checks import check_ids
from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.pooling import POOLINGS, max_pool
from transformer_jax.functional.precision import added, widest
from transformer_jax.functional.regions import max_patches, to_front
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.ngram_evidence import evidence_of
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.embeddings import BertEmbedding, PatchEmbedding, RegionFeatures
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.layers import Linear
from transformer_jax.nn.parameters import dropout_key


class ClassifierStates(NamedTuple):
    """The intermediate vectors of a classifier."""

    patches: Float[Array, "B P F"] | None  # the maximum of each feature in a patch; None for tokens
    layers: list[Float[Array, "B P D"]]  # the input of each layer, and the encoder's output


class ClassifierOptions(TypedDict, total=False):
    """The options of a call that do not change which arrays it returns."""

    presence: Float[Array, "B T"] | None
    rngs: nnx.Rngs | None
    implementation: Implementation | None


class TextClassifier(nnx.Module):
    """Embedding -> encoder -> pooling -> dropout -> one linear layer to the class logits.

    A region is a short stretch of text (`region_width` tokens). With `region_features`, features of
    all regions are max-pooled over the text and concatenated with the pooled output of the encoder.
    With a `patch_width`, the encoder reads patches instead of tokens: the maximum of the region
    features over as many neighbouring regions. Both share one embedding table. With `ngrams`, the
    logits of a linear model over n-grams are added.
    """

    def __init__(self, config: ClassifierConfig, *, rngs: nnx.Rngs):
        D = config.encoder.embed_dim
        self.regions = (
            RegionFeatures(
                config.vocab_size, config.region_features, width=config.region_width, rngs=rngs
            )
            if config.region_features
            else None
        )
        if config.patch_width:
            self.embedding = PatchEmbedding(
                config.region_features,
                -(-config.max_length // config.patch_width),
                D,
                dropout_rate=config.embedding_dropout_rate,
                norm_epsilon=config.encoder.norm_epsilon,
                rngs=rngs,
            )
        else:
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
        pooled = D * len(config.pooling) + config.region_features
        self.head = Linear(pooled, config.num_classes, rngs=rngs)
        self.evidence = evidence_of(config)
        self.pooling = config.pooling
        self.patch_width, self.vocab_size = config.patch_width, config.vocab_size
        self.attends, self.encoder_scale = config.attends, config.encoder_scale
        self.dropout_rate = config.head_dropout_rate

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[False] = False,
        return_states: Literal[False] = False,
        **options: Unpack[ClassifierOptions],
    ) -> Float[Array, "B C"]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[True],
        return_states: Literal[False] = False,
        **options: Unpack[ClassifierOptions],
    ) -> tuple[Float[Array, "B C"], list[Float[Array, "B N P P"]]]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[False] = False,
        return_states: Literal[True],
        **options: Unpack[ClassifierOptions],
    ) -> tuple[Float[Array, "B C"], ClassifierStates]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[True],
        return_states: Literal[True],
        **options: Unpack[ClassifierOptions],
    ) -> tuple[Float[Array, "B C"], list[Float[Array, "B N P P"]], ClassifierStates]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: bool = False,
        return_states: bool = False,
        **options: Unpack[ClassifierOptions],
    ) -> Float[Array, "B C"] | tuple[Any, ...]: ...

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        presence: Float[Array, "B T"] | None = None,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        return_states: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B C"] | tuple[Any, ...]:
        """Compute the class logits.

        `is_token` is False in padding. `presence` multiplies every embedding row that is looked up
        for a token: 1 changes nothing, 0 removes the token. If more is asked for, the result is a
        tuple of the logits, the attention weights of all layers (`return_weights`) and the
        `ClassifierStates` (`return_states`). The weights [B, N, P, P] are over tokens, P = T, or
        over patches, P = ceil(T / patch_width).
        """
        check_ids("tokens", tokens, self.vocab_size, is_token)
        if self.patch_width:  # the first patch must begin at the first token, not in padding
            tokens, is_token, *moved = to_front(tokens, is_token, presence)
            (presence,) = moved or (None,)
        features: Any = None  # the features of regions, which patches are made of
        patches = None
        if self.regions is not None:
            features = self.regions(tokens, is_token, presence=presence)
        if isinstance(self.embedding, PatchEmbedding):
            patches, is_seen = max_patches(features, is_token, self.patch_width)
            x = self.embedding(patches, is_seen, rngs=rngs)
        else:
            x, is_seen = self.embedding(tokens, is_token, presence=presence, rngs=rngs), is_token
        mask = padding(is_seen)
        context = LayerContext(
            mask=mask if self.attends else mask & sliding_window(0, 0),
            return_weights=return_weights,
            return_states=return_states,
            implementation=implementation,
        )
        x = self.encoder(x, context, rngs=rngs)
        x, *rest = x if isinstance(x, tuple) else (x,)
        if return_states:
            rest[-1] = ClassifierStates(patches, rest[-1])
        pooled = []
        if patches is not None:  # has the maximum of the features in fewer entries
            pooled.append(max_pool(patches, is_seen))
        elif features is not None:
            pooled.append(max_pool(features, is_token))
        if self.encoder_scale != 1.0:
            # The encoder's final norm gives values of about 1, regions of about a tenth. Unscaled,
            # the encoder would dominate the input of the head.
            x = self.encoder_scale * x
        pooled += [POOLINGS[name](x, is_seen) for name in self.pooling]
        dtype = widest(*(x.dtype for x in pooled))
        pooled = jnp.concatenate([x.astype(dtype) for x in pooled], axis=-1)
        pooled = dropout(pooled, self.dropout_rate, dropout_key(rngs, self.dropout_rate))
        logits = self.head(pooled)
        if self.evidence is not None:
            logits = added(logits, self.evidence(tokens, is_token, presence=presence))
        return (logits, *rest) if rest else logits
