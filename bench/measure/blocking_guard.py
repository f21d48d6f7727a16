"""A `benchmark` fixture that fails if the benchmarked function does not wait for its result.

JAX hands work to the device and returns at once: a matrix product that takes a tenth of a second
*returns* after fifteen microseconds, and a clock would report those. The `benchmark` fixture of
this folder therefore checks the return value of every call. An array that is still being computed
was not waited for, so the benchmark fails. A function that returns nothing hides its arrays and
fails too.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
from pytest_benchmark.fixture import BenchmarkFixture


class NotBlocked(AssertionError):
    """An error: the clock was stopped before the work was done."""


def blocked(fn: Callable) -> Callable:
    """Wrap `fn` so that it raises NotBlocked if its value is not computed when it returns.

    The check adds about a microsecond to each call.
    """

    @wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        value = fn(*args, **kwargs)
        leaves = jax.tree.leaves(value)
        if not leaves:
            raise NotBlocked(
                "the benchmarked function returned nothing: return what it computed, so that the "
                "benchmark can check that it was waited for"
            )
        for leaf in leaves:
            if isinstance(leaf, jax.Array) and not leaf.is_ready():
                raise NotBlocked(
                    "the benchmarked function returned an array that was still being computed: "
                    "end it with jax.block_until_ready(...)"
                )
        return value

    return checked


class BlockingBenchmark(BenchmarkFixture):
    """The fixture of pytest-benchmark, which raises NotBlocked for functions that do not wait."""

    def __call__(self, function_to_benchmark: Callable, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(blocked(function_to_benchmark), *args, **kwargs)

    def pedantic(self, target: Callable, *args: Any, **kwargs: Any) -> Any:
        return super().pedantic(blocked(target), *args, **kwargs)
