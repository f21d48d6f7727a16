"""NVIDIA's fused attention, called through `jax.nn`, with this library's mask contract around it.

cuDNN takes causal masks and windows to the left by name, padding as a length, and other masks as an
array. It gives a query that sees nothing the mean of the values, which is replaced by 0 here.

Its dropout is not used. XLA fixes the seed when it compiles, and the compiled function counts its
own runs: two calls with the same arguments drop different weights. A layer that is computed again
for the gradient (`remat`) would drop other weights than before, and so would a run that is resumed.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from transformer_jax.attention.inputs import AttentionInputs, AttentionResult
from transformer_jax.attention.kernels.known_masks import is_causal, left_window, padded_keys
from transformer_jax.attention.rule import rendered
from transformer_jax.functional.checks import are_numbers
from transformer_jax.functional.linear_map import reverse_mode_only

REVERSE_ONLY = (
    'cuDNN\'s attention has no forward mode; pass implementation="blockwise" or "reference"'
)


def cudnn_attention(
    inputs: AttentionInputs, implementation: Literal["xla", "cudnn"] = "cudnn"
) -> AttentionResult:
    """Return the attention computed by NVIDIA's kernel, for inputs that `why_not_cudnn` accepts.

    The masked rows must have been found and must be finite. A bias is rounded to the dtype of the
    query.
    """
    # The kernel of `jax.nn` is a `jax.custom_vjp`, whose own message does not say what to pass.
    query, key, value = reverse_mode_only((inputs.query, inputs.key, inputs.value), REVERSE_ONLY)
    mask, (_, _, T, S) = inputs.mask, inputs.sizes
    bias, seen = _finite_bias(inputs)
    if bias is not None:
        (bias,) = reverse_mode_only((bias,), REVERSE_ONLY)
    name = mask_name(inputs)
    named: dict[str, Any] = {}
    array = None
    if name == "causal":
        named = {"is_causal": True}
    elif name == "window":
        named = {"is_causal": True, "local_window_size": (left_window(mask), 0)}
    elif name == "padding":
        key, value, lengths = _tokens_first(key, value, padded_keys(mask))
        everyone = jnp.full_like(lengths, T)
        named = {"query_seq_lengths": everyone, "key_value_seq_lengths": lengths}
    elif mask is not None:
        array = mask.to_array(T, S)
    output = jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias,
        array,
        scale=inputs.scale,
        implementation=implementation,
        **named,
    )
    # cuDNN gives a query that sees no key the mean of the values; the contract wants 0.
    output = inputs.masked_rows.zero_queries(output)
    if seen is not None:
        output = jnp.where(seen.swapaxes(1, 2)[..., None], output, 0)
    return AttentionResult(output)


def _finite_bias(inputs):
    """Return the bias without -inf, and which queries [#B, #N, T] it lets see a key."""
    if inputs.bias is None:
        return None, None
    (_, _, T, S), dtype = inputs.sizes, inputs.query.dtype
    bias = inputs.bias.to_array(T, S).astype(dtype)
    hidden = bias == -jnp.inf
    seen = ~hidden if inputs.mask is None else ~hidden & rendered(inputs.mask, T, S)
    # cuDNN would compute -inf - (-inf) in a row of -inf. Half of the least number leaves room for
    # the logit to which it is added.
    return jnp.where(hidden, jnp.finfo(dtype).min / 2, bias), seen.any(axis=3)


def mask_name(inputs: AttentionInputs) -> str | None:
    """Return the name by which cuDNN takes the mask without an array, or None.

    The names are none, causal, window and padding.
    """
    mask, (_, _, T, S) = inputs.mask, inputs.sizes
    if mask is None:
        return "none"
    if T == S and is_causal(mask):
        return "causal"
    if T == S and left_window(mask) is not None:
        return "window"
    return "padding" if inputs.bias is None and padded_keys(mask) is not None else None


def _tokens_first(key, value, is_token):
    """Return keys and values with the real tokens first, and their number, 1 or more."""
    # The sum over the keys does not depend on their order. The rest is filled with zeros.
    is_token = jnp.broadcast_to(is_token, key.shape[:2])
    order = jnp.argsort(~is_token, axis=1, stable=True)
    lengths = is_token.sum(axis=1, dtype=jnp.int32)
    is_real = (jnp.arange(key.shape[1]) < lengths[:, None])[:, :, None, None]
    key, value = (jnp.where(is_real, _permuted(x, order), 0) for x in (key, value))
    return key, value, jnp.maximum(lengths, 1)


@jax.custom_vjp
def _permuted(x, order):
    """Return the rows x[b, order[b]]; the gradient is a gather too, not the scatter of autodiff."""
    return jnp.take_along_axis(x, order[:, :, None, None], axis=1, mode="promise_in_bounds")


def _permuted_forward(x, order):
    return _permuted(x, order), order


def _permuted_backward(order, cotangent):
    gradient = _permuted(cotangent, jnp.argsort(order, axis=1))
    # Otherwise XLA:GPU gathers into a transposed array, for the product that follows, and writes
    # single numbers in place of rows.
    return with_layout_constraint(gradient, Layout(major_to_minor=(0, 1, 2, 3))), None


_permuted.defvjp(_permuted_forward, _permuted_backward)


def why_not_cudnn(inputs: AttentionInputs) -> str | None:
    """Return the reason why cuDNN cannot compute the inputs, or None if it can."""
    query, value = inputs.query, inputs.value
    B, _, T, S = inputs.sizes
    H = query.shape[3]
    devices = jax.devices() if jax.default_backend() == "gpu" else []
    capability = min((_capability(device) for device in devices), default=0.0)
    widest = 256 if capability >= 9 else 128
    reasons = {
        "there is no NVIDIA GPU": not devices,
        "the GPU is older than Ampere": 0 < capability < 8,
        f"it takes float16 and bfloat16, not {query.dtype}": query.dtype
        not in (jnp.float16, jnp.bfloat16),
        f"it takes {widest} features a head, in multiples of 8, not {H}": widest < H or H % 8,
        "the values are of another width than the keys": value.shape[3] != H,
        "it has no soft cap": inputs.soft_cap is not None,
        "its dropout cannot be repeated": inputs.has_dropout,
        "it returns no weights": inputs.return_weights,
        "it returns no logsumexp": inputs.return_logsumexp,
        "it takes lengths that are numbers": not are_numbers(T, S),
        "with a bias, or a mask that it has no name for, it takes even lengths": (
            inputs.bias is not None or mask_name(inputs) is None
        )
        and not (T % 2 == 0 and S % 2 == 0),
        "there is nothing to attend to": 0 in (B, T, S),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _capability(device) -> float:
    try:
        return float(device.compute_capability)
    except (AttributeError, ValueError):  # a GPU of another vendor
        return 0.1
