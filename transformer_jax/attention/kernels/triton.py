"""Whether attention can be computed on one NVIDIA GPU by the kernels in `triton_kernels.py`.

They are loaded with the first attention that they compute, because Pallas takes a quarter of a
second to load. JAX 0.12 says that a later version will have no Triton backend of Pallas; without it
cuDNN, the reference or blocks are chosen.
"""

from functools import cache
from importlib.util import find_spec

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.kernels.forward import Statistics
from transformer_jax.attention.kernels.known_masks import known_mask
from transformer_jax.functional.checks import are_numbers
from transformer_jax.functional.dropout import BITS, LANES

DTYPES = (jnp.float16, jnp.bfloat16)
WIDTHS = (16, 32, 64, 128)  # features of a head
MOST_BYTES = 2**31  # of an array of bytes, whose elements Pallas counts with 32 bits
LEAST_QUERIES = 64  # fewer would leave most of a block empty


def why_not_triton(inputs: AttentionInputs) -> str | None:
    """Return the reason why the Triton kernels cannot compute the inputs, or None if they can."""
    T, S = inputs.sizes[2:]
    H = inputs.query.shape[3]
    reasons = {
        "an NVIDIA GPU, Ampere or newer, is not the only device": not is_one_gpu(),
        "this version of JAX has no Triton backend of Pallas": is_one_gpu() and not has_backend(),
        f"it takes float16 and bfloat16, not {inputs.query.dtype}": inputs.query.dtype
        not in DTYPES,
        f"it takes 16, 32, 64 or 128 features a head, not {H}": H not in WIDTHS,
        "the values are of another width than the keys": inputs.value.shape[3] != H,
        "it takes no bias or soft cap": inputs.bias is not None or inputs.soft_cap is not None,
        "it takes sizes that are numbers": not are_numbers(*inputs.sizes),
        "it takes dropout of fewer weights": are_numbers(*inputs.sizes)
        and inputs.has_dropout
        and _bytes_of_bits(inputs.sizes) >= MOST_BYTES,
        "it takes a scale that is a number": isinstance(inputs.scale, Tracer),
        "it takes causal masks, windows, padding and segments (ids of int32)": known_mask(
            inputs.mask, T, S
        )
        is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def is_one_gpu() -> bool:
    """Return whether one NVIDIA GPU of the generation Ampere or newer is the only device."""
    devices = jax.devices() if jax.default_backend() == "gpu" else []
    try:
        return len(devices) == 1 and float(devices[0].compute_capability) >= 8
    except (AttributeError, ValueError):  # a GPU of another vendor
        return False


def _bytes_of_bits(sizes):
    """Return the size of the `kept_bits`."""
    B, N, T, S = sizes
    return B * N * (T + LANES) * (S // (BITS * LANES) + 1) * LANES


@cache
def has_backend() -> bool:
    """Return whether this version of JAX has the Triton backend of Pallas."""
    return find_spec("jax.experimental.pallas.triton") is not None


def compute_output_by_triton(inputs: AttentionInputs) -> tuple[Array, Statistics]:
    """Return the attention output and the statistics, which the kernel always computes."""
    from transformer_jax.attention.kernels.triton_kernels import compute_output

    return compute_output(inputs)


def compute_gradient_by_triton(
    inputs: AttentionInputs,
    statistics: Statistics,
    d_output: Array,
    output: Array,
    d_logsumexp: Array | None,
) -> list[Array]:
    """Return the gradients of query, key and value, as `gradient.compute_gradient` does."""
    from transformer_jax.attention.kernels.triton_kernels import compute_gradient

    return compute_gradient(inputs, statistics, d_output, output, d_logsumexp)
