"""Multi-head attention (Vaswani et al., 2017, section 3.2.2): projections around dot-product."""

from dataclasses import replace
from typing import Literal, Unpack, overload

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.attention.bias_rule import BiasLike
from transformer_jax.attention.dot_product import AttentionOptions
from transformer_jax.attention.inputs import AttentionInputs, validate, with_batch
from transformer_jax.attention.kernels.compute import compute_attention
from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.mask_rule import MaskLike
from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.linear import linear
from transformer_jax.functional.normalization import rms_norm
from transformer_jax.functional.rotary import Rotary


class MultiHeadOptions(AttentionOptions, total=False):
    """The options of multi-head attention but `return_weights`."""

    query_bias: Float[Array, "N H"] | None
    key_bias: Float[Array, "K H"] | None
    value_bias: Float[Array, "K O"] | None
    out_bias: Float[Array, " M"] | None
    query_scale: Float[Array, " H"] | None
    key_scale: Float[Array, " H"] | None
    norm_epsilon: float
    rotary: Rotary | None


@overload
def multi_head_attention(
    inputs_q: Float[Array, "*B T D"],
    inputs_kv: Float[Array, "*B S E"],
    query_kernel: Float[Array, "D N H"],
    key_kernel: Float[Array, "E K H"],
    value_kernel: Float[Array, "E K O"],
    out_kernel: Float[Array, "N O M"],
    *,
    return_weights: Literal[False] = False,
    **options: Unpack[MultiHeadOptions],
) -> Float[Array, "*B T M"]: ...


@overload
def multi_head_attention(
    inputs_q: Float[Array, "*B T D"],
    inputs_kv: Float[Array, "*B S E"],
    query_kernel: Float[Array, "D N H"],
    key_kernel: Float[Array, "E K H"],
    value_kernel: Float[Array, "E K O"],
    out_kernel: Float[Array, "N O M"],
    *,
    return_weights: Literal[True],
    **options: Unpack[MultiHeadOptions],
) -> tuple[Float[Array, "*B T M"], Float[Array, "*B N T S"]]: ...


@overload
def multi_head_attention(
    inputs_q: Float[Array, "*B T D"],
    inputs_kv: Float[Array, "*B S E"],
    query_kernel: Float[Array, "D N H"],
    key_kernel: Float[Array, "E K H"],
    value_kernel: Float[Array, "E K O"],
    out_kernel: Float[Array, "N O M"],
    *,
    return_weights: bool,
    **options: Unpack[MultiHeadOptions],
) -> Float[Array, "*B T M"] | tuple[Float[Array, "*B T M"], Float[Array, "*B N T S"]]: ...


def multi_head_attention(
    inputs_q: Float[Array, "*B T D"],
    inputs_kv: Float[Array, "*B S E"],
    query_kernel: Float[Array, "D N H"],
    key_kernel: Float[Array, "E K H"],
    value_kernel: Float[Array, "E K O"],
    out_kernel: Float[Array, "N O M"],
    *,
    query_bias: Float[Array, "N H"] | None = None,
    key_bias: Float[Array, "K H"] | None = None,
    value_bias: Float[Array, "K O"] | None = None,
    out_bias: Float[Array, " M"] | None = None,
    query_scale: Float[Array, " H"] | None = None,
    key_scale: Float[Array, " H"] | None = None,
    norm_epsilon: float = 1e-6,
    rotary: Rotary | None = None,
    bias: BiasLike = None,
    mask: MaskLike = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: Implementation | None = None,
) -> Float[Array, "*B T M"] | tuple[Float[Array, "*B T M"], Float[Array, "*B N T S"]]:
    """Return multi-head attention: N attentions of projected inputs, concatenated and projected.

        Concat(head_1, ..., head_N) W^O with head_n = Attention(X_q W_n^Q, X_kv W_n^K, X_kv W_n^V)

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.2. The concatenation and W^O
    are computed as one sum over heads and features, so no array is split or merged. In
    self-attention `inputs_q` equals `inputs_kv`, in cross-attention it does not. The biases of the
    projections are not in the paper, but most implementations add them. With `query_scale` and
    `key_scale`, the queries and keys of every head are normalized by `rms_norm` (Qwen3). With
    `rotary`, queries and keys are rotated by their positions, which are the same for both.
    `return_weights` adds the attention weights to the result. Inputs without a batch axis, [T, D]
    and [S, E], give results without one. Raises as `dot_product_attention`
    does.

    >>> x, kernel = jnp.ones((1, 3, 4)), jnp.ones((4, 2, 2))  # D = 4 features, N = 2 heads of H = 2
    >>> multi_head_attention(x, x, kernel, kernel, kernel, jnp.ones((2, 2, 4))).shape
    (1, 3, 4)
    """
    check_arrays(
        inputs_q=(inputs_q, "[B] T D"),
        inputs_kv=(inputs_kv, "[B] S E"),
        query_kernel=(query_kernel, "D N H"),
        key_kernel=(key_kernel, "E K H"),
        value_kernel=(value_kernel, "E K O"),
        out_kernel=(out_kernel, "N O M"),
        query_bias=(query_bias, "N H"),
        key_bias=(key_bias, "K H"),
        value_bias=(value_bias, "K O"),
        out_bias=(out_bias, "M"),
        query_scale=(query_scale, "H"),
        key_scale=(key_scale, "H"),
    )
    *batch, T, _ = inputs_q.shape
    S = inputs_kv.shape[-2]
    # Only the shapes are validated here: the masked rows must be zero before the projections.
    query, key, value = (
        jax.ShapeDtypeStruct((*batch, length, *kernel.shape[1:]), inputs_q.dtype)
        for length, kernel in ((T, query_kernel), (S, key_kernel), (S, value_kernel))
    )
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
    )
    inputs = validate(inputs).with_masked_rows()
    # A NaN in a masked row would enter the gradients of the kernels as 0 * NaN.
    rows = inputs.masked_rows
    inputs_q = rows.zero_inputs_q(with_batch(inputs_q, 3))
    inputs_kv = rows.zero_inputs_kv(with_batch(inputs_kv, 3))
    query = linear(inputs_q, query_kernel, query_bias)
    key = linear(inputs_kv, key_kernel, key_bias)
    value = linear(inputs_kv, value_kernel, value_bias)
    if query_scale is not None:
        query = rms_norm(query, query_scale, epsilon=norm_epsilon)
    if key_scale is not None:
        key = rms_norm(key, key_scale, epsilon=norm_epsilon)
    if rotary is not None:
        query, key = rotary.turn(query), rotary.turn(key)
    inputs = replace(inputs, query=query, key=key, value=value)
    if rows.differ_by_head:  # otherwise the masked rows are finite already
        inputs = inputs.zero_masked_rows()
    result = compute_attention(inputs, implementation)
    if not batch:
        result = result.without_batch()
    output = linear(result.output, out_kernel, out_bias, axes=2)
    return output if result.weights is None else (output, result.weights)
