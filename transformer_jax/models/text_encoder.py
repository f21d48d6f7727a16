"""Models that read, as they are published: an encoder of texts, alone, with masked words to fill,
or with classes.

BERT, RoBERTa, DistilBERT, MiniLM and ModernBERT are these, by their configuration; `pretrained/`
has their weights.
"""

from dataclasses import replace
from string import ascii_lowercase
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.masks import Mask, padding, segments, sliding_window
from transformer_jax.functional.checks import check_length
from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.feed_forward import ACTIVATIONS
from transformer_jax.functional.pooling import POOLINGS, cls_pool
from transformer_jax.functional.positions import count_in_segments, count_positions
from transformer_jax.functional.precision import product
from transformer_jax.models.config import EncoderClassifierConfig, TextEncoderConfig
from transformer_jax.models.ngram_evidence import evidence_of
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.embeddings import BertEmbedding
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.layers import Linear, norm_of
from transformer_jax.nn.parameters import dropout_key, zeros
from transformer_jax.nn.position_schemes import POSITION_SCHEMES

HEAD_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class TextEncoder(nnx.Module):
    """Embedding -> encoder: a vector for each token, in its context (Devlin et al., 2019).

    With a `window` most layers see so many tokens on each side, and every `global_every`-th, from
    the first, all (Warner et al., 2024, https://arxiv.org/abs/2412.13663).
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
        segments: Int[Array, "B T"] | None = None,
        presence: Float[Array, "B T"] | None = None,
        text_ids: Int[Array, "B T"] | None = None,
        rngs: nnx.Rngs | None = None,
        return_weights: Literal[False] = False,
        return_states: Literal[False] = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B T D"]: ...

    @overload
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
        """The vectors; behind them, where asked for, the weights of attention and the states of
        every layer.

        Padding may stand on either side. The states are the embeddings and what each layer gives,
        the last one through the norm at the end where there is one. A `presence` multiplies the row
        of every token (`BertEmbedding`).

        Several texts may stand in a row, one behind the other: `text_ids` then says which one a
        token is of. Each has the vectors that it has alone (Krell et al., 2021,
        https://arxiv.org/abs/2107.02027). `max_length` is then what a text may have, and a row may
        be longer; the vectors of a longer text are NaN where positions are learned.
        """
        config = self.config
        packed = text_ids is not None
        if not packed:
            check_length(tokens, config.max_length)
        if segments is not None and self.embedding.segment is None:
            raise ValueError("the model knows no segments: segments must be None")
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
        """Local and global layers in turns; None where all are global."""
        config, length = self.config, positions.shape[1]
        if config.window is None:
            return None
        scheme, base = POSITION_SCHEMES[config.positions], config.local_rope_base
        local = replace(
            context,
            **scheme.attention(config.encoder, positions, base=base),
            # Of places in the row, not of positions: real tokens stand side by side in either.
            mask=context.mask & sliding_window(config.window, config.window),
        )
        context, local = context.resolved(length), local.resolved(length)
        layers = range(config.encoder.num_layers)
        return [local if i % config.global_every else context for i in layers]

    def pooled(self, x: Float[Array, "B T D"], is_token: Bool[Array, "B T"]) -> Float[Array, "B D"]:
        """tanh(W x_[CLS] + b): BERT's vector of a text. Raises ValueError where the model has no
        pooler.
        """
        if self.pooler is None:
            raise ValueError("the model has no pooler; pool its vectors, as `mean_pool` does")
        return jnp.tanh(self.pooler(cls_pool(x, is_token)))


def _own_text(is_token: Bool[Array, "B T"], text_ids: Int[Array, "B T"] | None) -> Mask:
    """The real tokens, in a packed row those of the same text."""
    real = padding(is_token)
    return real if text_ids is None else real & segments(text_ids)


class MaskedHead(nnx.Module):
    """norm(f(W x + b)) E^T + bias, f the network's activation and E the table of tokens (Devlin et
    al., 2019).
    """

    def __init__(self, config: TextEncoderConfig, *, rngs: nnx.Rngs):
        D, stack = config.encoder.embed_dim, config.encoder
        self.linear = Linear(D, D, use_bias=stack.biases, rngs=rngs)
        self.norm = norm_of(stack)
        self.bias = zeros(config.vocab_size)
        gated = {"geglu": "gelu", "geglu_tanh": "gelu_tanh"}
        self.activation = gated.get(stack.activation, stack.activation)

    def __call__(
        self, x: Float[Array, "... D"], table: Float[Array, "V D"]
    ) -> Float[Array, "... V"]:
        rows = ascii_lowercase[: x.ndim - 1]
        x = self.norm(ACTIVATIONS[self.activation](self.linear(x)))
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        return product(f"{rows}D,VD->{rows}V", x, table, dtype) + self.bias[...]


class MaskedLanguageModel(nnx.Module):
    """A text encoder and, for each token, the logits of what stands there (Devlin et al., 2019,
    section 3.1).
    """

    def __init__(self, config: TextEncoderConfig, *, rngs: nnx.Rngs):
        self.text = TextEncoder(config, rngs=rngs)
        self.head = MaskedHead(config, rngs=rngs)
        self.config = config

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[False] = False,
        return_states: Literal[False] = False,
        **options,
    ) -> Float[Array, "B T V"]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        **options,
    ) -> Float[Array, "B T V"] | tuple[Any, ...]: ...

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        **options,
    ) -> Float[Array, "B T V"] | tuple[Any, ...]:
        """The logits; the options, and what they return behind the logits, are those of
        `TextEncoder`.
        """
        x = self.text(tokens, is_token, **options)
        x, *rest = x if isinstance(x, tuple) else (x,)
        logits = self.logits(x)
        return (logits, *rest) if rest else logits

    def logits(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Of some of the vectors of the encoder: training needs those of masked tokens alone."""
        return self.head(x, self.text.embedding.token.embedding[...])


class EncoderClassifier(nnx.Module):
    """A text encoder -> pooling -> where there is one, f(W x + b) -> dropout -> one linear map to
    the class logits.

    Pooled by the mean, a text longer than the encoder holds is read in passages of as many tokens,
    which do not see each other. The logits of `ngrams`, a linear model of its own, are added to the
    others.
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
        segments: Int[Array, "B T"] | None = None,
        presence: Float[Array, "B T"] | None = None,
        rngs: nnx.Rngs | None = None,
        return_weights: Literal[False] = False,
        implementation: Implementation | None = None,
    ) -> Float[Array, "B C"]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        segments: Int[Array, "B T"] | None = None,
        presence: Float[Array, "B T"] | None = None,
        rngs: nnx.Rngs | None = None,
        return_weights: Literal[True],
        implementation: Implementation | None = None,
    ) -> tuple[Float[Array, "B C"], list[Float[Array, "B N T T"]]]: ...

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
        """The logits of the classes, and with return_weights the weights of attention of every
        layer.
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
            logits = logits + self.evidence(tokens, is_token, presence=presence)
        return (logits, maps[0]) if maps else logits


def _passages(is_token: Bool[Array, "B T"], most: int) -> Int[Array, "B T"]:
    """Which passage of so many tokens each token is in, from 1; 0 in padding. Counted over the real
    tokens.
    """
    return jnp.where(is_token, 1 + count_positions(is_token) // most, 0)
