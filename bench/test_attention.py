"""Attention by length: nested loops, NumPy, this library and `jax.nn` on the same numbers.

    pytest --benchmark-only bench/test_attention.py

One table a length, then one over all lengths with the growth from each to the next. No contestant
is timed before its value agrees with NumPy's. The loops stop at T = 64, where a call takes a good
part of a second; the others go on to T = 2048.
"""

from collections.abc import Callable
from functools import cache

import jax
import numpy as np
import pytest

from bench import harness, naive
from transformer_jax.attention import dot_product_attention

B, N, H = 1, 8, 64
LENGTHS = [16, 32, 64, 128, 256, 512, 1024, 2048]
CONTESTANTS = {
    "naive": naive.attention,
    "numpy": naive.numpy_attention,
    "jitted": dot_product_attention,
    "jax.nn": jax.nn.dot_product_attention,
}
LONGEST = {"naive": 64}
# Float32 sums in another order; accelerators multiply float32 in fewer bits.
ATOL = 1e-5 if jax.default_backend() == "cpu" else 1e-2


def attention_flops(B: int, T: int, S: int, N: int, H: int) -> int:
    """Q K^T and weights V: 2 B N T S H multiply-adds in all, each counted as 2 operations.

    4 B N T S H, then; the softmax, a few operations for each of B N T S weights, is left out, as is
    usual. The backward pass has four such products where the forward pass has two: 3 times as many
    for both together.
    """
    return 4 * B * N * T * S * H


@cache
def inputs(T: int) -> tuple[np.ndarray, ...]:
    """Query, key, value and the cotangent of the output; constant data would run faster."""
    rng = np.random.default_rng(T)
    return tuple(rng.standard_normal((B, T, N, H), dtype=np.float32) for _ in range(4))


@cache
def expected(T: int) -> np.ndarray:
    return naive.numpy_attention(*inputs(T)[:3])


@cache
def expected_with_gradient(T: int) -> tuple:
    """The NumPy value, and the gradient by hand: the equations that autodiff arrives at."""
    query, key, value, cotangent = (x.astype(np.float64).swapaxes(1, 2) for x in inputs(T))
    logits = query @ key.swapaxes(2, 3) / np.sqrt(H)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    d_weights = cotangent @ value.swapaxes(2, 3)
    d_logits = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    d_logits /= np.sqrt(H)
    gradient = d_logits @ key, d_logits.swapaxes(2, 3) @ query, weights.swapaxes(2, 3) @ cotangent
    return expected(T), tuple(x.swapaxes(1, 2) for x in gradient)


@cache  # one function object, compiled once a shape
def with_gradient(attention: Callable) -> Callable:
    def value_and_gradient(query, key, value, cotangent):
        output, pullback = jax.vjp(attention, query, key, value)
        return output, pullback(cotangent)

    return value_and_gradient


@pytest.mark.parametrize(
    ("length", "name"),
    [(T, name) for T in LENGTHS for name in CONTESTANTS if LONGEST.get(name, T) >= T],
)
def test_forward(benchmark, length, name):
    benchmark.group = f"attention forward, T = {length:4}"
    args = inputs(length)[:3]
    harness.run(
        benchmark,
        CONTESTANTS[name],
        *(args if name in ("naive", "numpy") else jax.device_put(args)),
        flops=attention_flops(B, length, length, N, H),
        expected=expected(length),
        atol=ATOL,
        subject="forward",
        implementation=name,
        length=length,
    )


@pytest.mark.parametrize("length", LENGTHS[::2])
@pytest.mark.parametrize("name", ["jitted", "jax.nn"])
def test_forward_and_backward(benchmark, length, name):
    benchmark.group = f"attention forward and backward, T = {length:4}"
    harness.run(
        benchmark,
        with_gradient(CONTESTANTS[name]),
        *jax.device_put(inputs(length)),
        flops=3 * attention_flops(B, length, length, N, H),
        expected=expected_with_gradient(length),
        atol=10 * ATOL,
        subject="forward and backward",
        implementation=name,
        length=length,
    )


@pytest.mark.parametrize("length", LENGTHS)
def test_forward_in_turns_with_jax_nn(benchmark, length):
    benchmark.group = f"attention forward, T = {length:4}, in turns"
    harness.compare(
        benchmark,
        CONTESTANTS["jitted"],
        CONTESTANTS["jax.nn"],
        *jax.device_put(inputs(length)[:3]),
        expected=expected(length),
        atol=ATOL,
        subject="forward",
        length=length,
    )


@pytest.mark.parametrize("length", LENGTHS[::2])
def test_forward_and_backward_in_turns_with_jax_nn(benchmark, length):
    benchmark.group = f"attention forward and backward, T = {length:4}, in turns"
    harness.compare(
        benchmark,
        with_gradient(CONTESTANTS["jitted"]),
        with_gradient(CONTESTANTS["jax.nn"]),
        *jax.device_put(inputs(length)),
        expected=expected_with_gradient(length),
        atol=10 * ATOL,
        subject="forward and backward",
        length=length,
    )
