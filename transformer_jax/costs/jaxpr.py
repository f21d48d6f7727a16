"""What a JAX function computes, counted from its jaxpr: nothing runs and nothing is compiled.

XLA's own figure, `jax.jit(fn).lower(*args).compile().cost_analysis()`, counts the body of a scan
once however often it runs. Here it counts as often as it runs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax

# They move or name data: no arithmetic.
MOVES = frozenset(
    "broadcast_in_dim reshape transpose squeeze slice dynamic_slice dynamic_update_slice "
    "gather scatter concatenate split pad rev iota copy copy_p name stop_gradient pvary "
    "reduce_precision "
    "convert_element_type bitcast_convert_type device_put sharding_constraint optimization_barrier "
    "random_wrap random_unwrap random_seed get swap layout_constraint empty2 "
    "all_gather all_to_all ppermute axis_index mesh_cast".split()
)
# One operation for each element that comes in, not that goes out; by the beginning of their names.
REDUCTIONS = ("reduce_", "argm", "cum")
# How much they compute does not follow from their shapes.
OPAQUE = frozenset(
    "sort top_k approx_top_k fft cholesky eig eigh lu qr svd schur hessenberg householder_product "
    "triangular_solve tridiagonal_solve tridiagonal custom_linear_solve ragged_dot_general "
    "pallas_call ffi_call tpu_custom_call pure_callback io_callback reduce "
    "reduce_window reduce_window_sum reduce_window_max reduce_window_min "
    "select_and_scatter select_and_scatter_add select_and_gather_add".split()
)


@dataclass(frozen=True)
class Count:
    """What `count` finds."""

    flops: int = 0  # of matrix products and convolutions; a multiply-add is two
    elementwise: int = 0  # of everything else: an operation for each element
    largest_bytes: int = 0  # of the largest array that an operation makes
    largest_shape: tuple[int, ...] = ()  # its shape
    unknown: tuple[str, ...] = ()  # operations that are not in the figures, or only once

    def __add__(self, other: "Count") -> "Count":
        """One after the other: operations add up, the larger array is the largest."""
        larger = max(self, other, key=lambda one: one.largest_bytes)
        return replace(
            larger,
            flops=self.flops + other.flops,
            elementwise=self.elementwise + other.elementwise,
            unknown=tuple(sorted({*self.unknown, *other.unknown})),
        )

    def times(self, repetitions: int) -> "Count":
        """As often over; no array becomes larger."""
        return replace(
            self, flops=repetitions * self.flops, elementwise=repetitions * self.elementwise
        )


def count(fn: Callable, *args: Any) -> Count:
    """The operations of `fn(*args)` and the largest array it makes; arguments may be
    `jax.ShapeDtypeStruct`s.

    A product of [M, K] and [K, N] is 2 M K N operations. The body of a scan counts as often as it
    runs, that of a `shard_map` once for each device; of a cond the branch with the larger figure.
    How often a while loop runs is not in the jaxpr: its body counts once, and "while" is among the
    `unknown`. What is written counts, also where a compiler would drop it as unused, and an array
    counts as large even if a compiler would fuse it away.
    """
    return _walk(jax.make_jaxpr(fn)(*args))


def _walk(jaxpr: Any) -> Count:
    return sum(map(_equation, jaxpr.eqns), start=Count())


def _equation(equation: Any) -> Count:
    name, params = equation.primitive.name, equation.params
    sizes = [math.prod(_shape(v)) for v in equation.outvars]
    made = sum((Count(0, 0, *_bytes_and_shape(v)) for v in equation.outvars), start=Count())
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        summed = math.prod(_shape(equation.invars[0])[axis] for axis in contracted)
        return made + Count(flops=2 * sizes[0] * summed)
    if name == "conv_general_dilated":
        kernel, (outputs, *_) = _shape(equation.invars[1]), params["dimension_numbers"].rhs_spec
        summed = math.prod(kernel) // max(kernel[outputs], 1)
        return made + Count(flops=2 * sizes[0] * summed)
    if name in MOVES:
        return made
    if name in OPAQUE:
        return made + Count(unknown=(name,))
    if name.startswith("scatter"):  # before the look inside: its jaxpr adds two numbers
        return made + Count(elementwise=math.prod(_shape(equation.invars[2])))
    if name.startswith(REDUCTIONS):
        return made + Count(elementwise=math.prod(_shape(equation.invars[0])))
    inner = [_walk(jaxpr) for jaxpr in _inner_jaxprs(params)]
    if name == "scan":
        return made + inner[0].times(params["length"])
    if name == "while":
        return made + inner[0] + inner[1] + Count(unknown=("while",))
    if name == "cond":
        return made + _largest(inner)
    if name == "shard_map":
        mesh = params["mesh"].shape
        axes = params.get("newly_manual_axes", mesh)  # over the others its shapes are the whole
        return made + inner[0].times(math.prod(mesh[axis] for axis in axes))
    if inner:  # jit, remat, custom_jvp_call, custom_vjp_call, closed_call: what is inside runs once
        return sum(inner, start=made)
    return made + Count(elementwise=max(sizes, default=0))


def _largest(counts: list[Count]) -> Count:
    """Of each figure the largest."""
    larger = max(counts, key=lambda one: one.largest_bytes)
    return replace(
        larger,
        flops=max(one.flops for one in counts),
        elementwise=max(one.elementwise for one in counts),
        unknown=tuple(sorted({name for one in counts for name in one.unknown})),
    )


def _inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns"):  # a Jaxpr or a ClosedJaxpr: what they are called changes
                yield one


def _shape(var: Any) -> tuple[int, ...]:
    return getattr(var.aval, "shape", ())  # tokens have none


def _bytes_and_shape(var: Any) -> tuple[int, tuple[int, ...]]:
    shape, dtype = _shape(var), getattr(var.aval, "dtype", None)
    return (math.prod(shape) * dtype.itemsize if dtype is not None else 0), shape
