"""The reference: attention as its equation is written, with all T x S logits stored."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.attention.inputs import AttentionInputs, AttentionResult
from transformer_jax.attention.rule import rendered
from transformer_jax.attention.softmax import masked_logsumexp, softmax_over_visible
from transformer_jax.functional.dropout import dropout_weights
from transformer_jax.functional.precision import product


def reference_weights(inputs: AttentionInputs) -> Float[Array, "B N T S"]:
    """Return softmax(scale Q K^T + bias) over the visible keys, before dropout."""
    return softmax_over_visible(_logits(inputs), _visible(inputs))


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
