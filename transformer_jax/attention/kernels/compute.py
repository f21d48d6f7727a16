"""Attention by the chosen implementation, with the conversions that all of them share."""

from dataclasses import replace

from transformer_jax.attention.inputs import AttentionInputs, AttentionResult
from transformer_jax.attention.kernels.blockwise import (
    blockwise_attention,
    cpu_attention,
    triton_attention,
)
from transformer_jax.attention.kernels.cudnn import cudnn_attention
from transformer_jax.attention.kernels.dispatch import Implementation, choose_kernel
from transformer_jax.attention.kernels.reference import reference_attention
from transformer_jax.functional.linear_map import differentiated_as
from transformer_jax.functional.precision import widest


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
        "triton": triton_attention,
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
        attend = differentiated_as(differentiated, attend)
    result = attend(inputs)
    weights, logsumexp = (
        None if array is None else array.astype(accumulated)
        for array in (result.weights, result.logsumexp)
    )
    return AttentionResult(result.output.astype(dtype), weights, logsumexp)


def _zeroed(attend):
    return lambda inputs: attend(inputs.zero_masked_rows())
