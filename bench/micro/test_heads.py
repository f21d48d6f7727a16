"""Benchmarks of three ways to write multi-head attention: loop, split projection, head axis.

    pytest --benchmark-only bench/micro/test_heads.py

All three are compiled and do the same multiplications; only the code that the compiler sees
differs.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import naive
from bench.measure import harness
from bench.measure.harness import Contestant
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.multi_head import multi_head_attention

B, N, H = 1, 8, 64
D = N * H
LENGTHS = harness.lengths(32, 128, 512, 1024, full=[64, 256, 2048])
ATOL = 2e-5 if jax.default_backend() == "cpu" else 1e-2


def head_loop(x, query_kernel, key_kernel, value_kernel, out_kernel):
    """Compute Concat(head_1, ..., head_N) W^O as it is written.

    These are N small attentions, one after the other.
    """
    heads = []
    for n in range(N):
        query, key, value = (
            (x @ kernel[:, n])[:, :, None] for kernel in (query_kernel, key_kernel, value_kernel)
        )
        heads.append(dot_product_attention(query, key, value)[:, :, 0])
    return jnp.concatenate(heads, axis=-1) @ out_kernel.reshape(N * H, D)


def split_weights(x, query_kernel, key_kernel, value_kernel, out_kernel):
    """Compute one projection to 3 N H features and split it.

    It is split into query, key and value, and each of these into heads.
    """
    kernels = [k.reshape(D, N * H) for k in (query_kernel, key_kernel, value_kernel)]
    query, key, value = (
        part.reshape(*x.shape[:2], N, H)
        for part in jnp.split(x @ jnp.concatenate(kernels, axis=1), 3, axis=-1)
    )
    merged = dot_product_attention(query, key, value).reshape(*x.shape[:2], N * H)
    return merged @ out_kernel.reshape(N * H, D)


def head_axis(x, *kernels, implementation=None):
    return multi_head_attention(x, x, *kernels, implementation=implementation)


def numpy_heads(x, query_kernel, key_kernel, value_kernel, out_kernel):
    """Compute multi-head attention in float64 with `numpy_attention` of bench/naive.py."""
    x, *kernels, out_kernel = (
        a.astype(np.float64) for a in (x, query_kernel, key_kernel, value_kernel, out_kernel)
    )
    heads = naive.numpy_attention(*(np.tensordot(x, kernel, 1) for kernel in kernels))
    return np.tensordot(heads, out_kernel, 2)


CONTESTANTS = {
    "head axis": Contestant(head_axis),
    "split weights": Contestant(split_weights),
    "loop over heads": Contestant(head_loop),
}


@cache
def inputs(T: int) -> list[tuple[np.ndarray, ...]]:
    shapes = (B, T, D), (D, N, H), (D, N, H), (D, N, H), (N, H, D)
    return [
        (x, *(kernel / np.float32(np.sqrt(D)) for kernel in kernels))
        for x, *kernels in harness.random_inputs(*shapes, seed=T)
    ]


@cache
def expected(T: int) -> list[np.ndarray]:
    return [numpy_heads(*args) for args in inputs(T)]


@pytest.mark.parametrize(("length", "name"), harness.every(CONTESTANTS, LENGTHS, {}))
def test_forward(benchmark, length, name):
    benchmark.group = f"multi-head attention, T = {length:4}"
    harness.run(
        benchmark,
        CONTESTANTS[name],
        inputs(length),
        flops=harness.flops(partial(head_axis, implementation="reference"), inputs(length)[0]),
        expected=expected(length),
        atol=ATOL,
        subject="multi-head attention",
        implementation=name,
        length=length,
    )


@pytest.mark.parametrize("length", harness.lengths(128, full=[512]))
@pytest.mark.parametrize("name", list(CONTESTANTS)[1:])
def test_forward_in_turns(benchmark, length, name):
    benchmark.group = f"multi-head attention, T = {length:4}, interleaved"
    harness.compare(
        benchmark,
        CONTESTANTS[name],
        CONTESTANTS["head axis"],
        inputs(length),
        expected=expected(length),
        atol=ATOL,
        subject="multi-head attention",
        implementation=name,
        reference="head axis",
        length=length,
    )
