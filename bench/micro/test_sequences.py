"""Benchmarks of layers that read a sequence: recurrence, convolution and self-attention.

    pytest --benchmark-only bench/micro/test_sequences.py

The layers have the same width D. The stack of dilated convolutions is as deep as the last token
needs to see the first (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, table 1). The path
length is the number of layers or steps between the first token and the last;
tests/bench/test_benchmarks_report.py counts it in the functions below.

    LSTM              O(T D^2)         path T            each step waits for the one before
    convolution       O(W T D^2)       path T - 1 at width W = 3, of layers like this one
    dilated stack     O(W T D^2 log T) path log_W (2 T - 1)
    self-attention    O(T^2 D + T D^2) path 1
"""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bench import naive
from bench.measure import harness
from bench.measure.harness import Contestant
from transformer_jax.attention.multi_head import multi_head_attention

B, N, H, WIDTH = 1, 4, 64, 3
D = N * H
LENGTHS = harness.lengths(16, 64, 128, 256, 512, 1024, 2048, full=[32, 4096])
ATOL = 2e-5 if jax.default_backend() == "cpu" else 1e-2


def lstm(x, input_kernel, state_kernel, bias):
    """Apply an LSTM to x [B, T, D].

        c' = f c + i g, h' = o tanh(c')

    Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000. Both kernels are
    [D, 4 D], with the gates in the order i, f, g, o. The products with the input need no state and
    are one matrix product beforehand.
    """

    def step(carry, from_input):
        state, memory = carry
        gates = from_input + state @ state_kernel
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        state = jax.nn.sigmoid(o) * jnp.tanh(memory)
        return (state, memory), state

    start = jnp.zeros((2, x.shape[0], x.shape[2]), x.dtype)
    _, states = lax.scan(step, (start[0], start[1]), (x @ input_kernel + bias).swapaxes(0, 1))
    return states.swapaxes(0, 1)


def convolution(x, kernel, bias, dilation=1):
    """Apply a dilated convolution with a kernel [W, D, D].

        y_t = sum_w x_{t + (w - (W - 1) / 2) dilation} K_w + b

    Positions beyond both ends are zeros. It is computed as one product of [T, W D] and [W D, D],
    because XLA's own dilated convolution is many times slower on a CPU.
    """
    width, T = len(kernel), x.shape[1]
    reach = (width - 1) // 2 * dilation
    padded = jnp.pad(x, ((0, 0), (reach, reach), (0, 0)))
    neighbours = [padded[:, w * dilation : w * dilation + T] for w in range(width)]
    return jnp.concatenate(neighbours, axis=-1) @ kernel.reshape(-1, kernel.shape[2]) + bias


def stack_depth(T: int, width: int = WIDTH) -> int:
    """Return the number of layers of dilation 1, W, W^2, ... through which token T sees token 1.

    It is the smallest L with (W^L - 1) / 2 >= T - 1.
    """
    return math.ceil(round(math.log(2 * T - 1, width), 9))


def dilated_stack(x, kernel, bias):
    """Apply `stack_depth` convolutions with a ReLU after each.

    All layers share one kernel, which does not change the cost.
    """
    for layer in range(stack_depth(x.shape[1])):
        x = jax.nn.relu(convolution(x, kernel, bias, WIDTH**layer))
    return x


def self_attention(x, *kernels, implementation=None):
    return multi_head_attention(x, x, *kernels, implementation=implementation)


def numpy_lstm(x, input_kernel, state_kernel, bias):
    x = x.astype(np.float64)
    state, memory, states = np.zeros((2, B, D))[0], np.zeros((B, D)), []
    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ input_kernel + state @ state_kernel + bias, 4, axis=-1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        memory = f * memory + i * np.tanh(g)
        state = o * np.tanh(memory)
        states.append(state)
    return np.stack(states, axis=1)


def numpy_convolution(x, kernel, bias, dilation=1):
    x, T = x.astype(np.float64), x.shape[1]
    output = np.zeros_like(x) + bias
    for w, tap in enumerate(kernel):
        shift = (w - (len(kernel) - 1) // 2) * dilation
        inside = np.arange(max(0, -shift), min(T, T - shift))
        output[:, inside] += x[:, inside + shift] @ tap
    return output


def numpy_dilated_stack(x, kernel, bias):
    for layer in range(stack_depth(x.shape[1])):
        x = np.maximum(numpy_convolution(x, kernel, bias, WIDTH**layer), 0)
    return x


def numpy_self_attention(x, query_kernel, key_kernel, value_kernel, out_kernel):
    kernels = (query_kernel, key_kernel, value_kernel)
    heads = naive.numpy_attention(*(np.tensordot(x.astype(np.float64), k, 1) for k in kernels))
    return np.tensordot(heads, out_kernel, 2)


CONTESTANTS = {
    "LSTM": Contestant(lstm),
    "convolution": Contestant(convolution),
    "dilated stack": Contestant(dilated_stack),
    "self-attention": Contestant(self_attention),
}
DEFINITIONS = {
    "LSTM": numpy_lstm,
    "convolution": numpy_convolution,
    "dilated stack": numpy_dilated_stack,
    "self-attention": numpy_self_attention,
}
SHAPES = {
    "LSTM": [(D, 4 * D), (D, 4 * D), (4 * D,)],
    "convolution": [(WIDTH, D, D), (D,)],
    "dilated stack": [(WIDTH, D, D), (D,)],
    "self-attention": [(D, N, H), (D, N, H), (D, N, H), (N, H, D)],
}
COUNTED = {name: contestant.fn for name, contestant in CONTESTANTS.items()} | {
    "self-attention": partial(self_attention, implementation="reference")
}
PATHS = {
    "LSTM": lambda T: T,
    "convolution": lambda T: T - 1,
    "dilated stack": stack_depth,
    "self-attention": lambda T: 1,
}


def inputs(name: str, T: int) -> list[tuple[np.ndarray, ...]]:
    """Draw inputs, and kernels of a size that keeps activations near one at any depth."""
    fan_in = np.float32(WIDTH * D if len(SHAPES[name]) == 2 else D)
    return [
        (x, *(p / np.sqrt(fan_in) for p in parameters))
        for x, *parameters in harness.random_inputs((B, T, D), *SHAPES[name], seed=T)
    ]


@cache
def inputs_and_values(name: str, T: int) -> tuple[list, list]:
    args = inputs(name, T)
    return args, [DEFINITIONS[name](*one) for one in args]


@pytest.mark.parametrize(("length", "name"), harness.every(CONTESTANTS, LENGTHS, {}))
def test_forward(benchmark, length, name):
    benchmark.group = f"layers that read a sequence, T = {length:4}"
    args, expected = inputs_and_values(name, length)
    harness.run(
        benchmark,
        CONTESTANTS[name],
        args,
        flops=harness.flops(COUNTED[name], args[0]),
        expected=expected,
        atol=ATOL,
        subject="layers that read a sequence",
        implementation=name,
        length=length,
        path_length=PATHS[name](length),
        sizes={"D": D},
    )
