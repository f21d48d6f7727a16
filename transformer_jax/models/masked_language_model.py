"""The masked language model: a text encoder with a head that predicts the token at each position.

Devlin et al., 2019, https://arxiv.org/abs/1810.04805, section 3.1.
"""

from typing import Any, Literal, Unpack, overload

from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.feed_forward import ACTIVATIONS
from transformer_jax.functional.precision import wide_dtype
from transformer_jax.functional.weight_product import weight_product
from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.models.text_encoder import TextEncoder, TextEncoderOptions
from transformer_jax.nn.layers import Linear, norm_of
from transformer_jax.nn.parameters import zeros


class MaskedHead(nnx.Module):
    """The head of a masked language model (Devlin et al., 2019): norm(f(W x + b)) E^T + bias.

    f is the activation of the encoder. E is the token embedding table, or a matrix of its own if
    the head is not tied.
    """

    def __init__(self, config: TextEncoderConfig, *, rngs: nnx.Rngs):
        D, stack = config.encoder.embed_dim, config.encoder
        self.linear = Linear(D, D, use_bias=stack.biases, rngs=rngs)
        self.norm = norm_of(stack)
        V = config.vocab_size
        self.output = None if config.tied_head else Linear(D, V, use_bias=False, rngs=rngs)
        self.bias = zeros(V)
        gated = {"geglu": "gelu", "geglu_tanh": "gelu_tanh"}
        self.activation = gated.get(stack.activation, stack.activation)

    def __call__(
        self, x: Float[Array, "... D"], table: Float[Array, "V D"]
    ) -> Float[Array, "... V"]:
        x = self.norm(ACTIVATIONS[self.activation](self.linear(x)))
        dtype = wide_dtype(x.dtype)
        if self.output is None:
            logits = weight_product(x, table, dtype, transposed=True)
        else:
            logits = self.output(x, dtype=dtype)
        return logits + self.bias[...].astype(dtype)


class MaskedLanguageModel(nnx.Module):
    """A text encoder with a head that predicts the token at each position (Devlin et al., 2019,
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
        **options: Unpack[TextEncoderOptions],
    ) -> Float[Array, "B T V"]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[True],
        return_states: Literal[False] = False,
        **options: Unpack[TextEncoderOptions],
    ) -> tuple[Float[Array, "B T V"], list[Float[Array, "B N T T"]]]: ...

    @overload
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        *,
        return_weights: Literal[False] = False,
        return_states: Literal[True],
        **options: Unpack[TextEncoderOptions],
    ) -> tuple[Float[Array, "B T V"], list[Float[Array, "B T D"]]]: ...

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
        Float[Array, "B T V"], list[Float[Array, "B N T T"]], list[Float[Array, "B T D"]]
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
    ) -> Float[Array, "B T V"] | tuple[Any, ...]: ...

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        is_token: Bool[Array, "B T"],
        **options,
    ) -> Float[Array, "B T V"] | tuple[Any, ...]:
        """Compute the logits [B, T, V].

        The options, and what they return after the logits, are those of `TextEncoder`.
        """
        x = self.text(tokens, is_token, **options)
        x, *rest = x if isinstance(x, tuple) else (x,)
        logits = self.logits(x)
        return (logits, *rest) if rest else logits

    def logits(self, x: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Compute the logits of given encoder vectors.

        Training needs those of the masked tokens only.
        """
        return self.head(x, self.text.embedding.token.embedding[...])
