"""Dot-product attention (Vaswani et al., 2017, section 3.2): the equation and its reference.

The faster implementations in `kernels` return the same numbers, and `kernels.dispatch` chooses one.

All of them follow one contract. A query that sees no key has output 0 and weights 0. A key that no
query of its example may see, and a query that sees no key, reach no output and no gradient, even if
they are NaN.
"""

from typing import Literal, overload

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.attention.biases import BiasLike
from transformer_jax.attention.inputs import AttentionInputs, AttentionResult, validate
from transformer_jax.attention.kernels.blockwise import blockwise_attention
from transformer_jax.attention.kernels.cudnn import cudnn_attention
from transformer_jax.attention.kernels.dispatch import Implementation, choose_kernel
from transformer_jax.attention.masks import MaskLike
from transformer_jax.attention.rule import rendered
from transformer_jax.attention.softmax import masked_logsumexp, softmax_over_visible
from transformer_jax.functional.dropout import dropout_weights
from transformer_jax.functional.precision import product


def attention_weights(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    bias: BiasLike = None,
    mask: MaskLike = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Float[Array, "B N T S"]:
    """softmax(scale Q K^T + bias) over the keys that the mask lets through; scale is 1/sqrt(H) by
    default.

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, equation 1. Float32 or wider. Heads
    share keys in groups of N/K (grouped-query attention, Ainslie et al., 2023,
    https://arxiv.org/abs/2305.13245). For `soft_cap`, and for what raises, see
    `dot_product_attention`.

    >>> query = key = jnp.eye(2)[None, :, None]  # one example, two tokens, one head
    >>> attention_weights(query, key, mask=causal())[0, 0].round(3)
    Array([[1.  , 0.  ],
           [0.33, 0.67]], dtype=float32)
    """
    inputs = AttentionInputs(query, key, bias=bias, mask=mask, scale=scale, soft_cap=soft_cap)
    inputs = validate(inputs).zero_masked_rows()
    logits = _logits(inputs)
    return softmax_over_visible(logits, rendered(inputs.mask, *logits.shape[2:]))


@overload
def dot_product_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K O"],
    *,
    bias: BiasLike = None,
    mask: MaskLike = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
    return_weights: Literal[False] = False,
    return_logsumexp: Literal[False] = False,
    implementation: Implementation | None = None,
) -> Float[Array, "B T N O"]: ...


@overload
def dot_product_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K O"],
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
) -> Float[Array, "B T N O"] | tuple[Array, ...]: ...


def dot_product_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K O"],
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
) -> Float[Array, "B T N O"] | tuple[Array, ...]:
    """softmax(scale Q K^T + bias) V: `attention_weights` times the values, in the dtype of the
    query.

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, equation 1. With a `soft_cap` c the
    products are bounded before the bias: c tanh(scale Q K^T / c) (Gemma 2,
    https://arxiv.org/abs/2408.00118, section 2). With a `dropout_rng`, weights are dropped with
    probability `dropout_rate` and the rest scaled up. A query that sees no key gets 0.

    Returns the output; after it, where asked for, the weights [B, N, T, S] as they were used, and
    the log of the softmax's denominator [B, T, N], -inf where a query sees no key: two parts of the
    keys are joined by it.

    The `implementation` is "reference" (below, which stores T x S logits), "blockwise" (which does
    not, and skips what the mask hides), "cudnn" (NVIDIA's, which rounds a bias to the dtype of the
    query), or chosen where it is None: `attention_plan` says which and why.

    Raises ValueError where axes do not fit, K does not divide N, or a key comes without a rate,
    TypeError where arrays are not floating point or a mask is not boolean, or the implementation
    asked for cannot be had.

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
    result = compute_attention(validate(inputs).zero_masked_rows(), implementation)
    extra = [array for array in (result.weights, result.logsumexp) if array is not None]
    return (result.output, *extra) if extra else result.output


def compute_attention(
    inputs: AttentionInputs, implementation: Implementation | None = None
) -> AttentionResult:
    """Return the attention of validated inputs, computed by the implementation asked for or chosen.

    The masked rows are known, and finite.
    """
    chosen = choose_kernel(inputs, implementation).implementation
    if chosen == "cudnn":
        return cudnn_attention(inputs)
    if chosen == "blockwise":
        return blockwise_attention(inputs)
    return reference_attention(inputs)


def reference_attention(inputs: AttentionInputs) -> AttentionResult:
    """Return softmax(scale Q K^T + bias) V as it is written, with all T x S logits stored."""
    value, logits = inputs.value, _logits(inputs)
    visible = rendered(inputs.mask, *logits.shape[2:])
    weights = softmax_over_visible(logits, visible)
    weights = dropout_weights(weights, inputs.dropout_rate, inputs.dropout_rng)
    output = product(
        "BKGTS,BKSO->BKGTO",
        _group(weights, value.shape[2]).astype(value.dtype),
        value.swapaxes(1, 2),
        weights.dtype,
    )
    output = output.reshape(*weights.shape[:3], value.shape[3]).swapaxes(1, 2)
    logsumexp = None
    if inputs.return_logsumexp:
        logsumexp = masked_logsumexp(logits, True if visible is None else visible).swapaxes(1, 2)
    return AttentionResult(
        output.astype(inputs.query.dtype), weights if inputs.return_weights else None, logsumexp
    )


def _logits(inputs):
    """soft_cap(scale Q K^T) + bias, [B, N, T, S]."""
    query, key, soft_cap = inputs.query, inputs.key, inputs.soft_cap
    # Heads next to the batch and the scale on the query, not on the T x S logits: on a CPU twice
    # as fast.
    query = _group((query * inputs.scale).astype(query.dtype).swapaxes(1, 2), key.shape[2])
    logits = product(
        "BKGTH,BKSH->BKGTS",
        query,
        key.swapaxes(1, 2),
        jnp.promote_types(query.dtype, jnp.float32),
    )
    logits = logits.reshape(inputs.sizes)
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    bias = rendered(inputs.bias, *logits.shape[2:])
    return logits if bias is None else logits + bias


def _group(x: Float[Array, "B N T L"], K: int) -> Float[Array, "B K G T L"]:
    """The N heads as K groups that share a key head."""
    return x.reshape(x.shape[0], K, x.shape[1] // K, *x.shape[2:])
