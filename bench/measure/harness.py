"""Timing of functions, with compile time, first call, steady state and memory kept apart.

JAX returns before it has computed, compiles at the first call, and copies NumPy arguments to the
device at every call. A clock around a bare call measures any of these. Here the arguments are on
the device beforehand, the function is compiled beforehand, and every call is waited for. The
arguments are random and rotate, so no call sees the numbers of the call before. A function is timed
only after its values for all arguments agree with the definition.
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
SECONDS = 0.5  # measuring time of one benchmark
MIN_ROUNDS, MAX_ROUNDS = 5, 200
ROTATION = 3  # sets of arguments that calls rotate through


class Disagreement(Exception):
    """An error that names a function whose values differ from the expected ones."""


@dataclass(frozen=True)
class Contestant:
    """A function of arrays, and how it is called.

    `how` is one of:

    - compiled: with `jax.jit`, on arrays of the device
    - eager: without `jax.jit`, one operation at a time
    - host: NumPy or plain Python, on NumPy arrays
    - torch: PyTorch without gradients, on its tensors
    """

    fn: Callable
    how: Literal["compiled", "eager", "host", "torch"] = "compiled"


@dataclass(frozen=True)
class Prepared:
    """A function that is ready to be timed, and what its preparation cost."""

    call: Callable[[], Any]  # with the next arguments; waits for its value
    compile_seconds: float | None
    first_call_seconds: float
    peak_bytes: int | None
    bytes_moved: int


def prepare(
    contestant: Contestant, inputs: Sequence[tuple], expected: Sequence | None, atol: float
) -> Prepared:
    """Place the arguments, compile, call once with each, and compare with `expected`.

    `peak_bytes` is what one call allocates. For compiled functions it is XLA's own plan, which
    leaves out what XLA's CPU fusions allocate inside. For NumPy and Python it is the peak that
    tracemalloc sees in a further call. It is None for eager JAX and PyTorch, whose allocators do
    not report it; bench/micro/test_memory.py measures the whole process instead. `bytes_moved` is
    the least that any implementation must move: each argument read once, the result written once.
    Raises ValueError for fewer than two tuples of inputs.
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
    """Measure the contestant into `benchmark`, after checking its values against `expected`.

    The values for all `inputs` must agree within `atol`. The rows of the table are the steady
    state. `extra_info` holds the rest, `flops` (counted by the caller) and the `labels`, of which
    the report needs subject, implementation and length.
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
    """Return the median over rounds of the time of `one` over the time of `other`, interleaved.

    A slowdown of the machine affects both, so the ratio holds where two separate timings would not.
    `extra_info` holds the ratio and its quartiles; the table row is the time of both together. A
    plain function instead of a contestant keeps its own state, takes no arguments, waits for its
    result and returns what it computed.
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
    """Return the operations of `fn(*args)`, matrix products only, counted in its jaxpr.

    Norms, softmax and activations are a few operations per element and are left out, as is usual.
    `fn` must not contain loops whose number of iterations is only known at run time; use the
    reference implementation of attention or `jax.nn`.
    """
    return count(fn, *args).flops


def random_inputs(*shapes: tuple[int, ...], scale: float = 1.0, seed: int = 0) -> list[tuple]:
    """Return ROTATION tuples of standard normal float32 arrays of these shapes.

    Constant data would run faster.
    """
    rng = np.random.default_rng([seed, *map(len, shapes)])
    return [
        tuple(scale * rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        for _ in range(ROTATION)
    ]


class Long(int):
    """A length that is measured only with `--bench-full`."""


def lengths(*default: int, full: Sequence[int] = ()) -> list[int]:
    """Return the lengths of a test: the default ones and those only for `--bench-full`, sorted."""
    return sorted([*default, *map(Long, full)])


def every(
    implementations: Iterable[str], some: Sequence[int], longest: dict[str, int]
) -> list[tuple[int, str]]:
    """Return the test parameters (length, implementation).

    Lengths above `longest`, for which an implementation would take minutes, are left out.
    """
    return [
        (length, name)
        for length in some
        for name in implementations
        if length <= longest.get(name, math.inf)
    ]


def clock(call: Callable, *args: Any) -> tuple[float, Any]:
    """Call the function; return the seconds it took and its value."""
    start = time.perf_counter()
    value = call(*args)
    return time.perf_counter() - start, value


def check(value: Any, expected: Any, atol: float) -> None:
    """Raise AssertionError if the value differs from the expected one by more than `atol`."""
    np_value, np_expected = (jax.tree.map(to_numpy, tree) for tree in (value, expected))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), np_value, np_expected
    )


def place(contestant: Contestant, inputs: Sequence[tuple]) -> tuple[Callable, list[tuple]]:
    """Return the function and its arguments in the form that `contestant.how` requires."""
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
    """Return the function, compiled and waiting for its result, and its arguments on its device.

    `arrays` are appended to the arguments.
    """
    fn, placed = place(contestant, [(*args, *arrays) for args in inputs])
    if contestant.how == "compiled":
        fn = jax.jit(fn).lower(*placed[0]).compile()
    return lambda *args: wait(fn(*args)), placed


def wait(value: Any) -> Any:
    """Wait until the value is computed, and return it."""
    if any(getattr(leaf, "is_cuda", False) for leaf in jax.tree.leaves(value)):  # PyTorch's
        import torch

        torch.cuda.synchronize()
    return jax.block_until_ready(value)  # ignores leaves that are not JAX arrays


def to_torch(x: np.ndarray) -> Any:
    """Convert a NumPy array to a tensor; bfloat16, which NumPy lacks, is reinterpreted."""
    import torch

    if x.dtype == jax.numpy.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def to_numpy(x: Any) -> np.ndarray:
    """Convert an array of JAX, PyTorch or NumPy to a NumPy array; bfloat16 becomes float32."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        return (x if x.dtype.itemsize != 2 else x.float()).numpy()
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == jax.numpy.bfloat16 else x


def _rounds(call: Callable) -> int:
    """Return how many rounds fit into SECONDS, estimated from the faster of two calls."""
    seconds = min(clock(call)[0] for _ in range(2))
    return min(max(int(SECONDS / seconds), MIN_ROUNDS), MAX_ROUNDS)
