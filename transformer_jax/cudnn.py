"""NVIDIA's fused attention, as `jax.nn` calls it, with this library's contract on masks around it.

cuDNN takes causal masks and windows to the left by name, other masks as an array, and gives a query that sees
nothing the mean of the values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.biases import Bias
from transformer_jax.masks import Mask, is_causal, left_window
from transformer_jax.unseen import sight


def cudnn_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K H"],
    *,
    bias: Bias | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    implementation: str = "cudnn",
) -> Float[Array, "B T N H"]:
    """`dot_product_attention` on an NVIDIA GPU, where `why_not_cudnn` has no objection.

    What the mask hides from everybody must be zero already (`unseen.sight`).
    """
    T, S = query.shape[1], key.shape[1]
    if bias is not None:
        bias = bias.to_array(T, S).astype(query.dtype)
    named = {}
    if T == S and is_causal(mask):
        named, mask = {"is_causal": True}, None
    elif T == S and (left := left_window(mask)) is not None:
        named, mask = {"is_causal": True, "local_window_size": (left, 0)}, None
    output = jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias,
        None if mask is None else mask.to_array(T, S),
        scale=scale,
        implementation=implementation,
        **named,
    )
    # A query that sees nothing has got the mean of the values.
    return output if mask is None else sight(mask, T, S).of_queries(output)


def why_not_cudnn(
    query, key, value, bias, mask, soft_cap, dropout, weights, logsumexp
) -> str | None:
    """What keeps cuDNN from computing this, or None."""
    T, H, S = query.shape[1], query.shape[3], key.shape[1]
    devices = jax.devices() if jax.default_backend() == "gpu" else []
    capability = min((_capability(device) for device in devices), default=0.0)
    widest = 256 if capability >= 9 else 128
    reasons = {
        "there is no NVIDIA GPU": not devices,
        "the GPU is older than Ampere": 0 < capability < 8,
        f"it takes float16 and bfloat16, not {query.dtype}": query.dtype
        not in (jnp.float16, jnp.bfloat16),
        "query, key and value differ in dtype": not query.dtype == key.dtype == value.dtype,
        f"it takes {widest} features a head, in multiples of 8, not {H}": widest < H or H % 8,
        "the values are of another width than the keys": value.shape[3] != H,
        "it has no soft cap": soft_cap is not None,
        "its dropout drops other weights": dropout,
        "it returns no weights": weights,
        "it returns no logsumexp": logsumexp,
        "with a mask or a bias it takes even lengths": (bias is not None or mask is not None)
        and (T % 2 or S % 2),
        "there is nothing to attend to": 0 in (query.shape[0], T, S),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _capability(device) -> float:
    try:
        return float(device.compute_capability)
    except (AttributeError, ValueError):  # a GPU of another maker
        return 0.1
