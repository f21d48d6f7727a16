"""Which dtype to compute in: measured once on this machine, not guessed from its name."""

import time

import jax
import jax.numpy as jnp

from transformer_jax.linear import linear


def compute_dtype(requested: str | None = None) -> str:
    """The dtype asked for, or the faster of float32 and bfloat16 on this machine."""
    return requested or _faster()


def _faster() -> str:
    """Times the projection of a layer, forward and backward, in both dtypes, A B A B.

    A CPU without bfloat16 units is slower in it, one with AMX much faster, and a GPU or TPU always is: the
    product tells. The shortest times are compared, since other work on the machine only adds to them, and bfloat16
    must win by a quarter, since it costs digits.
    """

    @jax.jit
    def step(x, kernel):
        return jax.grad(lambda *args: linear(*args).astype(jnp.float32).sum(), (0, 1))(x, kernel)

    keys = jax.random.split(jax.random.key(0))
    arguments = {}
    for dtype in ("float32", "bfloat16"):
        x = jax.random.normal(keys[0], (2048, 256), jnp.float32).astype(dtype)
        kernel = jax.random.normal(keys[1], (256, 512), jnp.float32).astype(dtype)
        arguments[dtype] = (x, kernel)
        jax.block_until_ready(step(x, kernel))
    seconds = {"float32": [], "bfloat16": []}
    for _ in range(7):
        for dtype, times in seconds.items():
            start = time.perf_counter()
            jax.block_until_ready(step(*arguments[dtype]))
            times.append(time.perf_counter() - start)
    return "bfloat16" if min(seconds["bfloat16"]) < 0.75 * min(seconds["float32"]) else "float32"
