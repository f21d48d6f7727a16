"""Dot-product attention (Vaswani et al., 2017, section 3.2) and the mask contract.

`reference_attention` computes the equation as it is written. The faster implementations in
`kernels` return the same numbers up to rounding, and `kernels.dispatch` chooses one of them.

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

from dataclasses import replace
from typing import Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.attention.bias_rule import BiasLike
from transformer_jax.attention.inputs import AttentionInputs, AttentionResult, validate
from transformer_jax.attention.kernels.blockwise import blockwise_attention, cpu_attention
from transformer_jax.attention.kernels.cudnn import cudnn_attention
from transformer_jax.attention.kernels.dispatch import Implementation, choose_kernel
from transformer_jax.attention.mask_rule import MaskLike
from transformer_jax.attention.rule import rendered
from transformer_jax.attention.softmax import masked_logsumexp, softmax_over_visible
from transformer_jax.functional.dropout import dropout_weights
from transformer_jax.functional.precision import product, widest


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
    weights = softmax_over_visible(_logits(inputs), _visible(inputs)).astype(dtype)
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
        "cpu"         calls the kernel in C++ for one CPU, if it is built: float32, without a bias,
                      under causal masks, windows and padding
        "cudnn"       calls NVIDIA's kernel, which rounds a bias to the dtype of the query
        None          chooses one; `attention_plan` says which and why

    "reference" has all derivatives. "blockwise" and "cpu" have forward mode (`jax.jvp`), reverse
    mode, and second derivatives with one of the two in reverse mode (`jax.hessian`). "cudnn" has
    reverse mode alone. A symbolic length (`jax.export`) is computed by the reference.

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


def compute_attention(
    inputs: AttentionInputs,
    implementation: Implementation | None = None,
    *,
    zero_rows: bool = False,
) -> AttentionResult:
    """Return the attention of validated inputs, by the requested or the chosen implementation.

    Without `zero_rows` the masked rows must have been found and must be finite, as after
    `zero_masked_rows`. If query, key and value differ in dtype, they are converted to the widest;
    the output has the dtype of the query.
    """
    # The dtype of an array of JAX: NumPy's float64 is float32 outside 64-bit mode.
    dtype, accumulated = widest(inputs.query.dtype), inputs.accumulated
    inputs = inputs.in_one_dtype()
    kernels = {
        "cudnn": cudnn_attention,
        "blockwise": blockwise_attention,
        "cpu": cpu_attention,
        "reference": reference_attention,
    }
    plan = choose_kernel(inputs, implementation)
    attend, differentiated = kernels[plan.implementation], kernels[plan.differentiated]
    if zero_rows:
        inputs = inputs.with_masked_rows()
        if plan.implementation == "cpu" != plan.differentiated and inputs.sizes[2] == 1:
            # With one query the kernel in C++ reads no masked key. Zeroing them would copy the
            # whole cache for each token.
            query = inputs.masked_rows.zero_queries(inputs.query)
            inputs, differentiated = replace(inputs, query=query), _zeroed(differentiated)
        else:
            inputs = inputs.zero_masked_rows()
    if attend is not differentiated:
        attend = _differentiated_as(differentiated, attend)
    result = attend(inputs)
    weights, logsumexp = (
        None if array is None else array.astype(accumulated)
        for array in (result.weights, result.logsumexp)
    )
    return AttentionResult(result.output.astype(dtype), weights, logsumexp)


def _zeroed(attend):
    return lambda inputs: attend(inputs.zero_masked_rows())


def _differentiated_as(other, attend):
    """Return a function that attends by `attend`, and by `other` where derivatives are taken."""

    def run(inputs):
        arrays, structure = jax.tree.flatten(inputs)
        one, two = (
            lambda *arrays, kernel=kernel: kernel(jax.tree.unflatten(structure, arrays))
            for kernel in (attend, other)
        )
        attended = jax.custom_jvp(one)
        attended.defjvp(lambda arrays, tangents: jax.jvp(two, arrays, tangents))
        return attended(*arrays)

    return run


def reference_attention(inputs: AttentionInputs) -> AttentionResult:
    """Return softmax(scale Q K^T + bias) V as it is written, storing all T x S logits."""
    value, logits, visible = inputs.value, _logits(inputs), _visible(inputs)
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
    """Return soft_cap(scale Q K^T) + bias, [B, N, T, S]."""
    key, soft_cap = inputs.key.astype(inputs.operands), inputs.soft_cap
    # The heads are placed next to the batch. On a CPU this is twice as fast.
    query = inputs.scale_queries(inputs.query.astype(inputs.operands))
    query = _group(query.swapaxes(1, 2), key.shape[2])
    logits = product("BKGTH,BKSH->BKGTS", query, key.swapaxes(1, 2), inputs.accumulated)
    logits = inputs.scale_logits(logits.reshape(inputs.sizes))
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    bias = rendered(inputs.bias, *logits.shape[2:])
    return logits if bias is None else logits + bias.astype(logits.dtype)


def _visible(inputs):
    """Return the mask as an array, True if only a bias may hide keys, None if nothing hides any."""
    visible = rendered(inputs.mask, *inputs.sizes[2:])
    return True if visible is None and inputs.bias is not None else visible


def _group(x: Float[Array, "B N T L"], K: int) -> Float[Array, "B K G T L"]:
    """Return the N heads as K groups of heads that share a key head."""
    return x.reshape(x.shape[0], K, x.shape[1] // K, *x.shape[2:])
