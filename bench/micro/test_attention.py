"""Benchmarks of attention by length: loops, NumPy, this library, `jax.nn`, Flax and PyTorch.

    pytest --benchmark-only bench/micro/test_attention.py

All get the same numbers. A contestant is timed only after its values agree with NumPy's, which
tests/bench/peers/test_naive.py compares with the loops. The loops stop at T = 64, where a call
takes a good part of a second; the others run up to T = 2048.
"""

from collections.abc import Callable
from functools import cache, partial

import jax
import numpy as np
import pytest
from flax import nnx

from bench import naive
from bench.measure import harness
from bench.measure.harness import Contestant
from transformer_jax.attention.dot_product import dot_product_attention

B, N, H = 1, 8, 64
LENGTHS = harness.lengths(16, 32, 64, 128, 256, 512, 1024, 2048, full=[4096])
# float32 sums differ by their order; accelerators multiply float32 with fewer bits.
ATOL = 1e-5 if jax.default_backend() == "cpu" else 1e-2


def numpy_loop(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Compute attention for one query and head at a time, as a first NumPy program would."""
    output = np.empty_like(query)
    for b, t, n in np.ndindex(query.shape[:3]):
        logits = key[b, :, n] @ query[b, t, n] / np.sqrt(np.float32(query.shape[3]))
        weights = np.exp(logits - logits.max())
        output[b, t, n] = weights / weights.sum() @ value[b, :, n]
    return output


def torch_attention(query, key, value):
    from torch.nn.functional import scaled_dot_product_attention

    heads_first = (x.transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(*heads_first).transpose(1, 2)


CONTESTANTS = {
    "Python loops": Contestant(naive.attention, "host"),
    "NumPy, loop over queries": Contestant(numpy_loop, "host"),
    "NumPy": Contestant(naive.numpy_attention, "host"),
    "eager": Contestant(dot_product_attention, "eager"),
    "transformer_jax": Contestant(dot_product_attention),
    "blockwise": Contestant(partial(dot_product_attention, implementation="blockwise")),
    "jax.nn": Contestant(jax.nn.dot_product_attention),
    "flax.nnx": Contestant(nnx.dot_product_attention),
    "PyTorch": Contestant(torch_attention, "torch"),
}
LONGEST = {"Python loops": 64, "NumPy, loop over queries": 1024}
SHORT = [4, 8]  # for the loops only, so that a law can be fitted to them too
PEERS = [name for name in CONTESTANTS if name not in ("Python loops", "transformer_jax")]


@cache
def inputs(T: int, arrays: int = 3) -> list[tuple[np.ndarray, ...]]:
    """Draw query, key, value and, as the fourth array, the cotangent of the output."""
    return harness.random_inputs(*[(B, T, N, H)] * arrays, seed=T)


@cache
def expected(T: int, arrays: int = 3) -> list[np.ndarray]:
    return [naive.numpy_attention(*args[:3]) for args in inputs(T, arrays)]


@cache
def expected_with_gradient(T: int) -> list[tuple]:
    return list(zip(expected(T, 4), [gradient(*args) for args in inputs(T, 4)], strict=True))


def gradient(*args: np.ndarray) -> tuple[np.ndarray, ...]:
    """Compute the gradients of query, key and value from hand-derived equations."""
    query, key, value, cotangent = (x.astype(np.float64).swapaxes(1, 2) for x in args)
    logits = query @ key.swapaxes(2, 3) / np.sqrt(H)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    d_weights = cotangent @ value.swapaxes(2, 3)
    d_logits = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    d_logits /= np.sqrt(H)
    parts = d_logits @ key, d_logits.swapaxes(2, 3) @ query, weights.swapaxes(2, 3) @ cotangent
    return tuple(x.swapaxes(1, 2) for x in parts)


def with_gradient(attention: Callable) -> Contestant:
    def value_and_gradient(query, key, value, cotangent):
        output, pullback = jax.vjp(attention, query, key, value)
        return output, pullback(cotangent)

    return Contestant(value_and_gradient)


def torch_with_gradient(query, key, value, cotangent):
    import torch

    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (query, key, value)]
        output = torch_attention(*leaves)
        gradients = torch.autograd.grad(output, leaves, cotangent)
    return output.detach(), gradients


WITH_GRADIENT = {
    "transformer_jax": with_gradient(dot_product_attention),
    "blockwise": with_gradient(partial(dot_product_attention, implementation="blockwise")),
    "jax.nn": with_gradient(jax.nn.dot_product_attention),
    "flax.nnx": with_gradient(nnx.dot_product_attention),
    "PyTorch": Contestant(torch_with_gradient, "torch"),
}


@pytest.mark.parametrize(
    ("length", "name"),
    [(T, "Python loops") for T in SHORT] + harness.every(CONTESTANTS, LENGTHS, LONGEST),
)
def test_forward(benchmark, length, name):
    benchmark.group = f"attention, T = {length:4}"
    harness.run(
        benchmark,
        CONTESTANTS[name],
        inputs(length),
        flops=harness.flops(jax.nn.dot_product_attention, inputs(length)[0]),
        expected=expected(length),
        atol=ATOL,
        subject="attention",
        implementation=name,
        length=length,
        sizes={"N": N, "H": H},
    )


@pytest.mark.parametrize(
    ("length", "name"),
    harness.every(WITH_GRADIENT, harness.lengths(64, 256, 512, 1024, full=[16, 128, 2048]), {}),
)
def test_forward_and_backward(benchmark, length, name):
    benchmark.group = f"attention with its gradient, T = {length:4}"
    harness.run(
        benchmark,
        WITH_GRADIENT[name],
        inputs(length, 4),
        flops=harness.flops(WITH_GRADIENT["jax.nn"].fn, inputs(length, 4)[0]),
        expected=expected_with_gradient(length),
        atol=10 * ATOL,
        subject="attention with its gradient",
        implementation=name,
        length=length,
    )


@pytest.mark.parametrize(
    ("length", "name"),
    [(T, "Python loops") for T in (16, 64)]
    + harness.every(PEERS, harness.lengths(128, 512, full=[1024, 2048]), LONGEST),
)
def test_forward_in_turns(benchmark, length, name):
    benchmark.group = f"attention, T = {length:4}, interleaved"
    harness.compare(
        benchmark,
        CONTESTANTS[name],
        CONTESTANTS["transformer_jax"],
        inputs(length),
        expected=expected(length),
        atol=ATOL,
        subject="attention",
        implementation=name,
        reference="transformer_jax",
        length=length,
    )


@pytest.mark.parametrize(
    ("length", "name"),
    harness.every(list(WITH_GRADIENT)[1:], harness.lengths(512, full=[128, 1024, 2048]), {}),
)
def test_forward_and_backward_in_turns(benchmark, length, name):
    benchmark.group = f"attention with its gradient, T = {length:4}, interleaved"
    harness.compare(
        benchmark,
        WITH_GRADIENT[name],
        WITH_GRADIENT["transformer_jax"],
        inputs(length, 4),
        expected=expected_with_gradient(length),
        atol=10 * ATOL,
        subject="attention with its gradient",
        implementation=name,
        reference="transformer_jax",
        length=length,
    )
