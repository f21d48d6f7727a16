"""The dtype of the computation."""

import jax.numpy as jnp

from transformer_jax.functional.precision import operands_dtype


def compute_dtype(requested: str | None = None) -> str:
    """Return the requested dtype, or else the faster one on this machine.

    The faster one is bfloat16 on a GPU, a TPU and a CPU with AMX, and float32 on other CPUs. It is
    chosen by the processor's features, not by timing, which gave different dtypes for the same
    run.
    """
    return requested or str(operands_dtype(jnp.dtype(jnp.bfloat16)))
