"""Text encoders, and classifiers with an encoder and a head.

BERT, RoBERTa, DistilBERT, MiniLM and ModernBERT are configurations of these models; `pretrained/`
loads their weights.
"""

from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.mask_rule import Mask
from transformer_jax.attention.masks import padding, segments, sliding_window
from transformer_jax.functional.checks import check_ids, check_length
from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.pooling import POOLINGS, cls_pool
from transformer_jax.functional.positions import count_in_segments, count_positions
from transformer_jax.functional.precision import added
from transformer_jax.models.config import EncoderClassifierConfig, TextEncoderConfig
from transformer_jax.models.ngram_evidence import evidence_of
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.embeddings import BertEmbedding
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.layers import Linear
from transformer_jax.nn.parameters import dropout_key
from transformer_jax.nn.position_schemes import POSITION_SCHEMES

HEAD_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class EncoderClassifierOptions(TypedDict, total=False):
    """The options of a call that do not change which arrays it returns."""

    segments: Int[Array, "B T"] | None
    presence: Float[Array, "B T"] | None
    rngs: nnx.Rngs | None
    implementation: Implementation | None


class TextEncoderOptions(TypedDict, total=False):
    """The options of a call that do not change which arrays it returns."""

    segments: Int[Array, "B T"] | None
    presence: Float[Array, "B T"] | None
    text_ids: Int[Array, "B T"] | None
    rngs: nnx.Rngs | None
    implementation: Implementation | None


class TextEncoder(nnx.Module):
    """Embedding -> encoder: a contextual vector for each token (Devlin et al., 2019).

    With a `window`, local layers attend to that many tokens on each side, and every
    `global_every`-th layer, starting with the first, attends to all tokens (Warner et al., 2024,
    https://arxiv.org/abs/2412.13663).
    """

    def __init__(self, config: TextEncoderConfig, *, rngs: nnx.Rngs):
        stack = config.encoder
        self.embedding = BertEmbedding(
            config.vocab_size,
            config.max_length,
            stack.embed_dim,
            num_segments=config.num_segments,
            positions=config.positions,
            dropout_rate=config.embedding_dropout_rate,
            norm_epsilon=stack.norm_epsilon,
            norm_bias=stack.norm_biases,
            rngs=rngs,
        )
        self.encoder = Encoder(stack, rngs=rngs)
        D = stack.embed_dim
        self.pooler = Linear(D, D, rngs=rngs) if config.pooler else None
        self.config = config

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[False] = False,
        return_states: Literal[False] = False,
        **options: Unpack[TextEncoderOptions],
    ) -> Float[Array, "B T D"]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[True],
        return_states: Literal[False] = False,
        **options: Unpack[TextEncoderOptions],
    ) -> tuple[Float[Array, "B T D"], list[Float[Array, "B N T T"]]]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[False] = False,
        return_states: Literal[True],
        **options: Unpack[TextEncoderOptions],
    ) -> tuple[Float[Array, "B T D"], list[Float[Array, "B T D"]]]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[True],
        return_states: Literal[True],
        **options: Unpack[TextEncoderOptions],
    ) -> tuple[
        Float[Array, "B T D"], list[Float[Array, "B N T T"]], list[Float[Array, "B T D"]]
    ]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: bool = False,
        return_states: bool = False,
        **options: Unpack[TextEncoderOptions],
    ) -> Float[Array, "B T D"] | tuple[Any, ...]: ...

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        segments: Int[Array, "B T"] | None = None,
        presence: Float[Array, "B T"] | None = None,
        text_ids: Int[Array, "B T"] | None = None,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        return_states: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B T D"] | tuple[Any, ...]:
        """Compute a vector for each token.

        `is_token` is False in padding, which may be on either side. `presence` multiplies the
        embedding row of every token (see `BertEmbedding`).

        A row may hold several texts one after the other (packing). `text_ids` then gives the text
        of each token, and each text gets the vectors that it would get alone (Krell et al., 2021,
        https://arxiv.org/abs/2107.02027). In this case `max_length` limits the length of a text,
        and a row may be longer. With learned positions, the vectors of a longer text are NaN.

        If more is asked for, the result is a tuple of the vectors, the attention weights of every
        layer (`return_weights`) and the states (`return_states`): the embeddings and the output of
        each layer, the last one after the final norm if there is one.
        """
        config = self.config
        packed = text_ids is not None
        if not packed:
            check_length(tokens, config.max_length)
        check_ids("tokens", tokens, config.vocab_size, is_token)
        if segments is not None and self.embedding.segment is None:
            raise ValueError("the model has no segment embeddings: segments must be None")
        if segments is not None:
            check_ids("segments", segments, config.num_segments, is_token)
        positions = count_in_segments(text_ids) if packed else count_positions(is_token)
        scheme = POSITION_SCHEMES[config.positions]
        context = LayerContext(
            **scheme.attention(config.encoder, positions, base=config.rope_base),
            mask=_own_text(is_token, text_ids),
            return_weights=return_weights,
            return_states=return_states,
            implementation=implementation,
        )
        return self.encoder(
            self.embedding(
                tokens,
                is_token,
                positions=positions,
                segments=segments,
                presence=presence,
                rngs=rngs,
            ),
            context,
            layer_contexts=self._layer_contexts(context, positions),
            rngs=rngs,
        )

    def _layer_contexts(self, context, positions) -> list[LayerContext] | None:
        """Build the context of each layer, local or global; return None if all are global."""
        config, length = self.config, positions.shape[1]
        if config.window is None:
            return None
        scheme, base = POSITION_SCHEMES[config.positions], config.local_rope_base
        local = replace(
            context,
            **scheme.attention(config.encoder, positions, base=base),
            # The window counts places in the row instead of positions; both count the same
            # distances, because padding is never between two real tokens.
            mask=context.mask & sliding_window(config.window, config.window),
        )
        context, local = context.resolved(length), local.resolved(length)
        layers = range(config.encoder.num_layers)
        return [local if i % config.global_every else context for i in layers]

    def pooled(self, x: Float[Array, "B T D"], is_token: Bool[Array, "B T"]) -> Float[Array, "B D"]:
        """Compute BERT's pooled vector of a text, tanh(W x_[CLS] + b).

        Raises ValueError if the model has no pooler.
        """
        if self.pooler is None:
            raise ValueError("the model has no pooler; pool its vectors, as `mean_pool` does")
        return jnp.tanh(self.pooler(cls_pool(x, is_token)))


def _own_text(is_token: Bool[Array, "B T"], text_ids: Int[Array, "B T"] | None) -> Mask:
    """Build a mask of real tokens, and in a packed row only of those of the same text."""
    real = padding(is_token)
    return real if text_ids is None else real & segments(text_ids)


class EncoderClassifier(nnx.Module):
    """Text encoder -> pooling -> f(W x + b), if configured -> dropout -> linear layer to the class
    logits.

    With mean pooling, a text longer than the encoder's max_length is read in passages of max_length
    tokens, which do not attend to each other. With `ngrams`, the logits of a linear model over
    n-grams are added.
    """

    def __init__(self, config: EncoderClassifierConfig, *, rngs: nnx.Rngs):
        D = config.text.encoder.embed_dim
        self.text = TextEncoder(config.text, rngs=rngs)
        self.linear = None if config.activation is None else Linear(D, D, rngs=rngs)
        self.head = Linear(D, config.num_classes, rngs=rngs)
        self.evidence = evidence_of(config)
        self.config = config

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[False] = False,
        **options: Unpack[EncoderClassifierOptions],
    ) -> Float[Array, "B C"]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[True],
        **options: Unpack[EncoderClassifierOptions],
    ) -> tuple[Float[Array, "B C"], list[Float[Array, "B N T T"]]]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: bool = False,
        **options: Unpack[EncoderClassifierOptions],
    ) -> Float[Array, "B C"] | tuple[Float[Array, "B C"], list[Float[Array, "B N T T"]]]: ...

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        segments: Int[Array, "B T"] | None = None,
        presence: Float[Array, "B T"] | None = None,
        rngs: nnx.Rngs | None = None,
        return_weights: bool = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B C"] | tuple[Float[Array, "B C"], list[Float[Array, "B N T T"]]]:
        """Compute the class logits; with `return_weights` also return all attention weights.

        The arguments are as in `TextEncoder`.
        """
        config, most = self.config, self.config.text.max_length
        in_passages = config.in_passages and tokens.shape[1] > most
        x = self.text(
            tokens,
            is_token,
            segments=segments,
            presence=presence,
            text_ids=_passages(is_token, most) if in_passages else None,
            rngs=rngs,
            return_weights=return_weights,
            implementation=implementation,
        )
        x, *maps = x if isinstance(x, tuple) else (x,)
        x = POOLINGS[config.pooling](x, is_token)
        rate = config.head_dropout_rate
        if self.linear is not None and config.activation is not None:
            x = HEAD_ACTIVATIONS[config.activation](self.linear(x))
        logits = self.head(dropout(x, rate, dropout_key(rngs, rate)))
        if self.evidence is not None:
            logits = added(logits, self.evidence(tokens, is_token, presence=presence))
        return (logits, maps[0]) if maps else logits


def _passages(is_token: Bool[Array, "B T"], most: int) -> Int[Array, "B T"]:
    """Number each token's passage of `most` real tokens from 1; padding gets 0."""
    return jnp.where(is_token, 1 + count_positions(is_token) // most, 0)
