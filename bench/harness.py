"""Measures a function, with compile time, first call, steady state and memory kept apart.

JAX returns before it has computed, compiles at the first call and copies NumPy arguments to the
device at every call; a clock around a bare call measures any of these. Here JAX arguments are on
the device beforehand, the function is compiled beforehand, and every call is waited for.
A function of NumPy arrays is called as it is: nothing compiles.
"""

import os
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import jax
import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

WARMUP_ROUNDS = 2
SECONDS = 0.6  # of measuring, for one benchmark
MIN_ROUNDS, MAX_ROUNDS = 5, 200


@dataclass(frozen=True)
class Prepared:
    """A function ready to be timed, and what it cost to get there."""

    call: Callable[[], Any]
    value: Any  # of the first call
    compile_seconds: float | None
    first_call_seconds: float
    peak_bytes: int | None


def prepare(fn: Callable, *args: Any) -> Prepared:
    """Compiles `fn` when its arguments are JAX arrays, calls it once, and waits.

    JAX keeps what it has compiled: the same function for the same shapes is free the second time.
    `peak_bytes` is what the call allocates beyond its arguments: XLA's own plan, or for NumPy and
    Python the peak that tracemalloc sees in a further call.
    """
    if not any(isinstance(arg, jax.Array) for arg in args):
        first, value = _clock(fn, *args)
        tracemalloc.start()
        fn(*args)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return Prepared(lambda: fn(*args), value, None, first, peak)

    jax.block_until_ready(args)
    start = time.perf_counter()
    compiled = jax.jit(fn).lower(*args).compile()
    compile_seconds = time.perf_counter() - start
    first, value = _clock(lambda: jax.block_until_ready(compiled(*args)))
    memory = compiled.memory_analysis()  # None where the backend does not say
    return Prepared(
        lambda: jax.block_until_ready(compiled(*args)),
        value,
        compile_seconds,
        first,
        memory and memory.temp_size_in_bytes + memory.output_size_in_bytes,
    )


def run(
    benchmark: BenchmarkFixture,
    fn: Callable,
    *args: Any,
    flops: int,
    expected: Any = None,
    atol: float = 0.0,
    **labels: Any,
) -> Any:
    """Measures `fn(*args)` into `benchmark`, once its value is `expected` within `atol`.

    The rows of the table are the steady state. `extra_info` holds the rest, `flops` (counted by
    the caller), the rate from the median, and the `labels`.
    """
    prepared = prepare(fn, *args)
    _check(prepared.value, expected, atol)
    value = benchmark.pedantic(
        prepared.call, rounds=_rounds(prepared.call), warmup_rounds=WARMUP_ROUNDS, iterations=1
    )
    benchmark.extra_info |= labels | {
        "compile_seconds": prepared.compile_seconds,
        "first_call_seconds": prepared.first_call_seconds,
        "peak_bytes": prepared.peak_bytes,
        "flops": flops,
        **_machine(args),
    }
    if benchmark.stats:  # none with --benchmark-disable
        rate = flops / benchmark.stats.stats.median / 1e9
        benchmark.extra_info["gflops_per_second"] = rate
    return value


def compare(
    benchmark: BenchmarkFixture,
    fn: Callable,
    peer: Callable,
    *args: Any,
    expected: Any = None,
    atol: float = 0.0,
    **labels: Any,
) -> float:
    """The median over rounds of the time of `fn` over the time of `peer`, called in turns.

    Whatever slows the machine for a while slows both, so the ratio holds where two separate
    timings would not. `extra_info` holds it with its quartiles; the table row is the two together.
    """
    ours, theirs = prepare(fn, *args), prepare(peer, *args)
    for prepared in (ours, theirs):
        _check(prepared.value, expected, atol)
    ratios = []

    def both() -> None:
        ratios.append(_clock(ours.call)[0] / _clock(theirs.call)[0])

    rounds = 2 * _rounds(both)  # a ratio is worth more rounds than a time
    benchmark.pedantic(both, rounds=rounds, warmup_rounds=WARMUP_ROUNDS, iterations=1)
    ratios = ratios[-rounds:]  # without the warm-up
    benchmark.extra_info |= labels | {
        "ratio": median(ratios),
        "ratio_quartiles": quantiles(ratios, n=4)[::2],
        **_machine(args),
    }
    return median(ratios)


def _clock(call: Callable, *args: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call(*args)
    return time.perf_counter() - start, value


def _rounds(call: Callable) -> int:
    """As many as fit into SECONDS, judged by the faster of two calls."""
    seconds = min(_clock(call)[0] for _ in range(2))
    return min(max(int(SECONDS / seconds), MIN_ROUNDS), MAX_ROUNDS)


def _check(value: Any, expected: Any, atol: float) -> None:
    """Refuses to time a function that computes something else."""
    if expected is not None:
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), value, expected
        )


def _machine(args: tuple) -> dict[str, Any]:
    """On what it ran; arguments that are not JAX arrays stay with the host."""
    devices = [device for arg in args if isinstance(arg, jax.Array) for device in arg.devices()]
    return {
        "jax_version": jax.__version__,
        "device_kind": devices[0].device_kind if devices else "host",
        "cpu_count": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
