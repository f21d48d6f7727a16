"""Which dtype to compute in."""

import jax.numpy as jnp

from transformer_jax.functional.precision import operands_dtype


def compute_dtype(requested: str | None = None) -> str:
    """The dtype asked for, or the faster: bfloat16 on a GPU, a TPU and a CPU with AMX, on others
    float32.

    The processor says so. A clock, which chose before, took now one and now the other for the same
    run.
    """
    return requested or str(operands_dtype(jnp.dtype(jnp.bfloat16)))
