"""Dot-product attention (Vaswani et al., 2017, section 3.2) and the mask contract.

`kernels.reference` computes the equation as it is written. The faster implementations in `kernels`
return the same numbers up to rounding, and `kernels.dispatch` chooses one of them.

The mask contract. A mask is True where a query may attend to a key. Every implementation, and every
function and module that takes a mask, keeps these rules in the output and in the gradient:

- A query that sees no key has weights 0 and output 0: no NaN, and no mean of the values. Terms
  after the attention are still added: the bias of a projection, and the residual connection.
- A hidden key has no influence. If the mask hides a key from a query, the key and its value do not
  change the output of the query, and the output passes no gradient to them.
- Fully masked rows may hold anything. A query that sees no key, and a key (with its value) that no
  query of its example sees, affect no output and no gradient, even if they are NaN or infinite.
  Their own gradients are 0. With a mask for each head, a key is fully masked if no query head of
  its group sees it. A row of self-attention is fully masked if both its query and its key are.

A key or value that some queries see must be finite. A weight of 0 does not keep a NaN out of the
other queries, because 0 * NaN is NaN.
"""

from typing import Literal, TypedDict, Unpack, overload

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.attention.bias_rule import BiasLike
from transformer_jax.attention.inputs import AttentionInputs, validate
from transformer_jax.attention.kernels.compute import compute_attention
from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.kernels.reference import reference_weights
from transformer_jax.attention.mask_rule import MaskLike


class AttentionOptions(TypedDict, total=False):
    """The options of attention that do not change which arrays it returns."""

    bias: BiasLike
    mask: MaskLike
    scale: float | None
    soft_cap: float | None
    dropout_rate: float
    dropout_rng: PRNGKeyArray | None
    implementation: Implementation | None


def attention_weights(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    *,
    bias: BiasLike = None,
    mask: MaskLike = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Float[Array, "*B N T S"]:
    """Return the attention weights: the softmax of the scaled logits over the visible keys.

        softmax(scale Q K^T + bias)

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, equation 1. The mask is True where a
    query attends. The weights of a query add up to 1, or are all 0 if it sees no key. They are
    float32 or wider. `scale` is 1/sqrt(H) by default. The N query heads share the K key heads in
    groups of N/K (grouped-query attention, Ainslie et al., 2023, https://arxiv.org/abs/2305.13245).
    For `soft_cap` see `dot_product_attention`. Raises as `dot_product_attention` does.

    >>> query = key = jnp.eye(2)[None, :, None]  # one example, two tokens, one head
    >>> attention_weights(query, key, mask=causal())[0, 0].round(3)
    Array([[1.  , 0.  ],
           [0.33, 0.67]], dtype=float32)
    """
    inputs = AttentionInputs(query, key, bias=bias, mask=mask, scale=scale, soft_cap=soft_cap)
    dtype = inputs.accumulated
    inputs = validate(inputs).in_one_dtype().zero_masked_rows()
    weights = reference_weights(inputs).astype(dtype)
    return weights if np.ndim(query) == 4 else weights.squeeze(0)


@overload
def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K O"],
    *,
    return_weights: Literal[False] = False,
    return_logsumexp: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> Float[Array, "*B T N O"]: ...


@overload
def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K O"],
    *,
    return_weights: Literal[True],
    return_logsumexp: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[Float[Array, "*B T N O"], Float[Array, "*B N T S"]]: ...


@overload
def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K O"],
    *,
    return_weights: Literal[False] = False,
    return_logsumexp: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Float[Array, "*B T N O"], Float[Array, "*B T N"]]: ...


@overload
def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K O"],
    *,
    return_weights: Literal[True],
    return_logsumexp: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Float[Array, "*B T N O"], Float[Array, "*B N T S"], Float[Array, "*B T N"]]: ...


@overload
def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K O"],
    *,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    **options: Unpack[AttentionOptions],
) -> Float[Array, "*B T N O"] | tuple[Array, ...]: ...


def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K O"],
    *,
    bias: BiasLike = None,
    mask: MaskLike = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    implementation: Implementation | None = None,
) -> Float[Array, "*B T N O"] | tuple[Array, ...]:
    """Return the attention output: the average of the values, weighted by `attention_weights`.

        softmax(scale Q K^T + bias) V

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, equation 1. The mask is True where a
    query attends. A query that sees no key gets 0. The output has the dtype of the query.

    A `soft_cap` c bounds the scaled products before the bias is added: c tanh(scale Q K^T / c)
    (Gemma 2, https://arxiv.org/abs/2408.00118, section 2). With a `dropout_rng`, each weight is
    dropped with probability `dropout_rate`, and the others are divided by 1 - `dropout_rate`.

    Takes a batch or one example without the batch axis, as `jax.nn.dot_product_attention` does:
    query [T, N, H], key and value [S, K, H], a mask and a bias that broadcast to [N, T, S]. The
    results then have no batch axis either.

    Returns the output [B, T, N, O], or a tuple that begins with it. `return_weights` adds the
    weights [B, N, T, S], after dropout. `return_logsumexp` adds the log of the softmax's
    denominator [B, T, N], which is -inf for a query that sees no key. With it, the attention over
    two parts of the keys can be combined.

    The `implementation` is one of:

        "reference"   stores all T x S logits
        "blockwise"   does not store them, and skips the blocks that the mask hides
        "cpu"         calls the kernel in C++ for one CPU, if it is built: float32 and bfloat16,
                      without a bias, under causal masks, windows, padding and segments
        "triton"      calls kernels for one NVIDIA GPU: float16 and bfloat16, without a bias, under
                      causal masks, windows, padding and segments
        "cudnn"       calls NVIDIA's kernel, which rounds a bias to the dtype of the query
        None          chooses one; `attention_plan` says which and why

    "reference" has all derivatives. "blockwise", "cpu" and "triton" have forward mode (`jax.jvp`),
    reverse mode, and second derivatives (`jax.hessian`). The gradient of a derivative is computed
    by the reference, for up to 2**26 logits of each mapped example. "cudnn" has reverse mode
    alone. A symbolic length (`jax.export`) is computed by the reference.

    Raises ValueError if axes do not fit, K does not divide N, a dropout key is given without a
    rate, or the implementation does not support these arguments. Raises TypeError if an array is
    not floating point or a mask is not boolean.

    >>> query = key = value = jnp.eye(2)[None, :, None]
    >>> output, logsumexp = dot_product_attention(query, key, value, return_logsumexp=True)
    >>> output[0, :, 0].round(3)
    Array([[0.67, 0.33],
           [0.33, 0.67]], dtype=float32)
    """
    inputs = AttentionInputs(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        dropout_rng=dropout_rng,
        scale=scale,
        soft_cap=soft_cap,
        dropout_rate=dropout_rate,
        return_weights=return_weights,
        return_logsumexp=return_logsumexp,
    )
    result = compute_attention(validate(inputs), implementation, zero_rows=True)
    if np.ndim(query) == 3:
        result = result.without_batch()
    extra = [array for array in (result.weights, result.logsumexp) if array is not None]
    return (result.output, *extra) if extra else result.output
