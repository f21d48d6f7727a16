"""A benchmark that does not wait for its result fails, instead of reporting the time of handing
over work.

JAX hands work to the device and returns: a matrix product of a tenth of a second *returns* in
fifteen microseconds. So the `benchmark` fixture of this folder looks at what every call returns,
the moment it returns: an array that is still being computed was not waited for. A function that
returns nothing hides its arrays, and fails too.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
from pytest_benchmark.fixture import BenchmarkFixture


class NotBlocked(AssertionError):
    """The clock was stopped before the work was done."""


def blocked(fn: Callable) -> Callable:
    """`fn`, whose value must be there when it returns; a microsecond of it is this check."""

    @wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        value = fn(*args, **kwargs)
        leaves = jax.tree.leaves(value)
        if not leaves:
            raise NotBlocked(
                "the benchmarked function returned nothing: return what it computed, waited for, "
                "so that it can be seen to be there"
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
    """pytest-benchmark's fixture, whose functions must have blocked."""

    def __call__(self, function_to_benchmark: Callable, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(blocked(function_to_benchmark), *args, **kwargs)

    def pedantic(self, target: Callable, *args: Any, **kwargs: Any) -> Any:
        return super().pedantic(blocked(target), *args, **kwargs)
