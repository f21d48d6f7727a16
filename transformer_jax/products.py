"""Which dtype a machine multiplies fastest in, without losing digits."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array


def operands_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """What products of arrays of this dtype are computed in: itself, or float32 for a short one on a CPU without AMX.

    Such a CPU has no short products: XLA would convert the operands inside every one of them. Said by the
    processor, not by a clock, so that a run and its continuation choose the same.
    """
    dtype = jnp.dtype(dtype)
    short = dtype.itemsize < 4 and jnp.issubdtype(dtype, jnp.floating)
    if not short or jax.default_backend() != "cpu" or (dtype == jnp.bfloat16 and _has_amx()):
        return dtype
    return jnp.dtype(jnp.float32)


@cache
def _has_amx() -> bool:
    info = Path("/proc/cpuinfo")
    return info.exists() and " amx_bf16" in info.read_text(encoding="utf-8", errors="replace")


def product(spec: str, one: Array, other: Array, dtype: jnp.dtype) -> Array:
    """`jnp.einsum` that is summed, and returned, in `dtype`."""
    return jnp.einsum(spec, one, other, preferred_element_type=dtype)
