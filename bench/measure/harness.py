"""Measures a function, with compile time, first call, steady state and memory kept apart.

JAX returns before it has computed, compiles at the first call and copies NumPy arguments to the
device at every call; a clock around a bare call measures any of these. Here the arguments are on
the device beforehand, the function is compiled beforehand and every call is waited for. The
arguments are random and rotate: no call sees the numbers of the call before. A function is timed
once its values agree with the definition for all of them.
"""

import itertools
import math
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal

import jax
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.machine import load_average
from transformer_jax.costs.jaxpr import count

WARMUP_ROUNDS = 2
SECONDS = 0.5  # of measuring, for one benchmark
MIN_ROUNDS, MAX_ROUNDS = 5, 200
ROTATION = 3  # sets of arguments


class Disagreement(Exception):
    """An error that names who computes something else than everybody should."""


@dataclass(frozen=True)
class Contestant:
    """A function of arrays, and how it is called.

    compiled: `jax.jit`, on arrays of the device
    eager: the same without jit, an operation at a time
    host: NumPy or plain Python, on NumPy arrays
    torch: PyTorch without gradient, on its tensors
    """

    fn: Callable
    how: Literal["compiled", "eager", "host", "torch"] = "compiled"


@dataclass(frozen=True)
class Prepared:
    """A function ready to be timed, and what it cost to get there."""

    call: Callable[[], Any]  # with the next arguments in turn; returns when its value is there
    compile_seconds: float | None
    first_call_seconds: float
    peak_bytes: int | None
    bytes_moved: int


def prepare(
    contestant: Contestant, inputs: Sequence[tuple], expected: Sequence | None, atol: float
) -> Prepared:
    """Places the arguments, compiles, calls once with each and compares with what is `expected`.

    `peak_bytes` is what one call allocates: XLA's own plan (which leaves out what its CPU fusions
    allocate inside), or for NumPy and Python the peak that tracemalloc sees in a further call; None
    for eager JAX and PyTorch, whose allocators do not say; bench/micro/test_memory.py watches the
    process instead. `bytes_moved` is what any implementation must: each argument read once, the
    result written once.
    """
    if len(inputs) < 2:
        raise ValueError(f"inputs must be two or more tuples of arguments, got {len(inputs)}")
    fn, placed = place(contestant, inputs)
    compile_seconds = peak = None
    if contestant.how == "compiled":
        start = time.perf_counter()
        fn = jax.jit(contestant.fn).lower(*placed[0]).compile()
        compile_seconds = time.perf_counter() - start
        memory = fn.memory_analysis()  # None where the backend does not say
        peak = memory and memory.temp_size_in_bytes + memory.output_size_in_bytes

    def call(args: tuple) -> Any:
        return wait(fn(*args))

    first, value = clock(call, placed[0])
    values = [value, *(call(args) for args in placed[1:])]
    if expected is not None:
        for one, other in zip(values, expected, strict=True):
            check(one, other, atol)
    if contestant.how == "host":
        tracemalloc.start()
        call(placed[0])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    turns = itertools.cycle(placed)
    moved = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves((placed[0], value)))
    return Prepared(lambda: call(next(turns)), compile_seconds, first, peak, moved)


def run(
    benchmark: BenchmarkFixture,
    contestant: Contestant,
    inputs: Sequence[tuple],
    *,
    flops: int | None,
    expected: Sequence | None = None,
    atol: float = 0.0,
    **labels: Any,
) -> None:
    """Measures the contestant into `benchmark`, once its values for `inputs` are `expected` within
    `atol`.

    The rows of the table are the steady state. `extra_info` holds the rest, `flops` (counted by the
    caller) and the `labels`, of which the report needs subject, implementation and length.
    """
    prepared = prepare(contestant, inputs, expected, atol)
    benchmark.pedantic(
        prepared.call, rounds=_rounds(prepared.call), warmup_rounds=WARMUP_ROUNDS, iterations=1
    )
    benchmark.extra_info |= {
        "how": contestant.how,
        "compile_seconds": prepared.compile_seconds,
        "first_call_seconds": prepared.first_call_seconds,
        "peak_bytes": prepared.peak_bytes,
        "bytes_moved": prepared.bytes_moved,
        "flops": flops,
        "load_average": load_average(),
    } | labels


def compare(
    benchmark: BenchmarkFixture,
    one: Callable[[], Any] | Contestant,
    other: Callable[[], Any] | Contestant,
    inputs: Sequence[tuple] = (),
    *,
    expected: Sequence | None = None,
    atol: float = 0.0,
    **labels: Any,
) -> float:
    """The median over rounds of the time of `one` over the time of `other`, called in turns.

    Whatever slows the machine for a while slows both, so the ratio holds where two separate timings
    would not. `extra_info` holds it with its quartiles; the table row is the two together. A plain
    function instead of a contestant keeps its own state, takes no arguments, waits by itself and
    returns what it computed.
    """
    calls = [
        prepare(contestant, inputs, expected, atol).call
        if isinstance(contestant, Contestant)
        else contestant
        for contestant in (one, other)
    ]
    ratios = []

    def both() -> tuple[Any, Any]:
        (first, value), (second, peer) = clock(calls[0]), clock(calls[1])
        ratios.append(first / second)
        return value, peer

    rounds = 2 * _rounds(both)  # a ratio is worth more rounds than a time
    benchmark.pedantic(both, rounds=rounds, warmup_rounds=WARMUP_ROUNDS, iterations=1)
    ratios = ratios[-rounds:]  # without the warm-up
    benchmark.extra_info |= labels | {
        "ratio": median(ratios),
        "ratio_quartiles": quantiles(ratios, n=4)[::2],
        "load_average": load_average(),
    }
    return median(ratios)


def flops(fn: Callable, args: tuple) -> int:
    """Return the operations of `fn(*args)`, matrix products alone, counted in its jaxpr.

    Norms, softmax and activations are a few operations for each of their elements and are left
    out, as is usual. `fn` must be a form without loops whose end is found while they run: the
    reference of attention, or `jax.nn`.
    """
    return count(fn, *args).flops


def random_inputs(*shapes: tuple[int, ...], scale: float = 1.0, seed: int = 0) -> list[tuple]:
    """ROTATION tuples of standard normal float32 arrays of these shapes; constant data would run
    faster.
    """
    rng = np.random.default_rng([seed, *map(len, shapes)])
    return [
        tuple(scale * rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        for _ in range(ROTATION)
    ]


class Long(int):
    """A length that only `--bench-full` runs."""


def lengths(*default: int, full: Sequence[int] = ()) -> list[int]:
    """Parameters of a test: the default ones, and those that only `--bench-full` runs."""
    return sorted([*default, *map(Long, full)])


def every(
    implementations: Iterable[str], some: Sequence[int], longest: dict[str, int]
) -> list[tuple[int, str]]:
    """Parameters (length, implementation), without the lengths that would take an implementation
    minutes.
    """
    return [
        (length, name)
        for length in some
        for name in implementations
        if length <= longest.get(name, math.inf)
    ]


def clock(call: Callable, *args: Any) -> tuple[float, Any]:
    """Seconds, and the value."""
    start = time.perf_counter()
    value = call(*args)
    return time.perf_counter() - start, value


def check(value: Any, expected: Any, atol: float) -> None:
    """Refuses to time a function that computes something else."""
    np_value, np_expected = (jax.tree.map(to_numpy, tree) for tree in (value, expected))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), np_value, np_expected
    )


def place(contestant: Contestant, inputs: Sequence[tuple]) -> tuple[Callable, list[tuple]]:
    """The function and its arguments in the form that `how` asks for."""
    if contestant.how == "host":
        return contestant.fn, list(inputs)
    if contestant.how != "torch":
        return contestant.fn, jax.block_until_ready(jax.device_put(list(inputs)))
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    placed = jax.tree.map(lambda x: to_torch(x).to(device), list(inputs))
    return torch.no_grad()(contestant.fn), placed


def ready(
    contestant: Contestant, inputs: Sequence[tuple], arrays: tuple
) -> tuple[Callable, list[tuple]]:
    """Return the function, compiled and waited for, and its arguments where it wants them."""
    fn, placed = place(contestant, [(*args, *arrays) for args in inputs])
    if contestant.how == "compiled":
        fn = jax.jit(fn).lower(*placed[0]).compile()
    return lambda *args: wait(fn(*args)), placed


def wait(value: Any) -> Any:
    """The same, when it is there."""
    if any(getattr(leaf, "is_cuda", False) for leaf in jax.tree.leaves(value)):  # PyTorch's
        import torch

        torch.cuda.synchronize()
    return jax.block_until_ready(value)  # leaves that are not of JAX pass


def to_torch(x: np.ndarray) -> Any:
    """A tensor of the same numbers; NumPy has no bfloat16 of its own."""
    import torch

    if x.dtype == jax.numpy.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def to_numpy(x: Any) -> np.ndarray:
    """An array of the same numbers, of JAX, PyTorch or NumPy; bfloat16 widened."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        return (x if x.dtype.itemsize != 2 else x.float()).numpy()
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == jax.numpy.bfloat16 else x


def _rounds(call: Callable) -> int:
    """As many as fit into SECONDS, judged by the faster of two calls."""
    seconds = min(clock(call)[0] for _ in range(2))
    return min(max(int(SECONDS / seconds), MIN_ROUNDS), MAX_ROUNDS)
