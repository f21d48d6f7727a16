"""Counting the operations of a JAX function from its jaxpr, without running or compiling it.

XLA's own figure, `jax.jit(fn).lower(*args).compile().cost_analysis()`, counts the body of a scan
once. This count multiplies it by the number of iterations.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax

# Primitives that move or name data, without arithmetic.
MOVES = frozenset(
    "broadcast_in_dim reshape transpose squeeze slice dynamic_slice dynamic_update_slice "
    "gather scatter concatenate split pad rev iota copy copy_p name stop_gradient pvary "
    "reduce_precision "
    "convert_element_type bitcast_convert_type device_put sharding_constraint optimization_barrier "
    "random_wrap random_unwrap random_seed get swap layout_constraint empty2 "
    "all_gather all_to_all ppermute axis_index mesh_cast".split()
)
# Prefixes of primitives with one operation per element of the input instead of the output.
REDUCTIONS = ("reduce_", "argm", "cum")
# Primitives whose number of operations does not follow from their shapes.
OPAQUE = frozenset(
    "sort top_k approx_top_k fft cholesky eig eigh lu qr svd schur hessenberg householder_product "
    "triangular_solve tridiagonal_solve tridiagonal custom_linear_solve ragged_dot_general "
    "pallas_call ffi_call tpu_custom_call pure_callback io_callback reduce "
    "reduce_window reduce_window_sum reduce_window_max reduce_window_min "
    "select_and_scatter select_and_scatter_add select_and_gather_add".split()
)


@dataclass(frozen=True)
class Count:
    """The operations of a function and its largest array, as returned by `count`."""

    flops: int = 0  # operations of matrix products and convolutions; a multiply-add is two
    elementwise: int = 0  # all other operations, one for each element
    largest_bytes: int = 0  # size of the largest array that an operation makes
    largest_shape: tuple[int, ...] = ()  # shape of that array
    unknown: tuple[str, ...] = ()  # primitives that are not counted, or whose body counts once

    def __add__(self, other: "Count") -> "Count":
        """Add the operations of two computations, and keep the larger of their largest arrays."""
        larger = max(self, other, key=lambda one: one.largest_bytes)
        return replace(
            larger,
            flops=self.flops + other.flops,
            elementwise=self.elementwise + other.elementwise,
            unknown=tuple(sorted({*self.unknown, *other.unknown})),
        )

    def times(self, repetitions: int) -> "Count":
        """Multiply the operations by `repetitions`. The largest array stays the same."""
        return replace(
            self, flops=repetitions * self.flops, elementwise=repetitions * self.elementwise
        )


def count(fn: Callable, *args: Any) -> Count:
    """Count the operations of `fn(*args)`, and find the largest array that it makes.

    Arguments may be `jax.ShapeDtypeStruct`s. A product of [M, K] and [K, N] is 2 M K N operations.
    The body of a scan counts once per iteration, that of a `shard_map` once per device. For a cond,
    each figure is the largest of its branches. The number of iterations of a while loop is not in
    the jaxpr, so its body counts once, and "while" is added to `unknown`. All operations and arrays
    of the jaxpr count, even if a compiler would remove or fuse them.
    """
    return _walk(jax.make_jaxpr(fn)(*args))


def _walk(jaxpr: Any) -> Count:
    return sum(map(_equation, jaxpr.eqns), start=Count())


def _equation(equation: Any) -> Count:
    name, params = equation.primitive.name, equation.params
    sizes = [math.prod(_shape(v)) for v in equation.outvars]
    made = sum((Count(0, 0, *_bytes_and_shape(v)) for v in equation.outvars), start=Count())
    if name in PRODUCTS:
        return made + PRODUCTS[name](equation, sizes[0])
    if name in MOVES:
        return made
    if name in OPAQUE:
        return made + Count(unknown=(name,))
    if name.startswith("scatter"):  # before inner jaxprs, because its own adds two numbers only
        return made + Count(elementwise=math.prod(_shape(equation.invars[2])))
    if name.startswith(REDUCTIONS):
        return made + Count(elementwise=math.prod(_shape(equation.invars[0])))
    inner = [_walk(jaxpr) for jaxpr in _inner_jaxprs(equation)]
    if name == "scan":
        return made + inner[0].times(params["length"])
    if name == "while":
        return made + inner[0] + inner[1] + Count(unknown=("while",))
    if name == "cond":
        return made + _largest(inner)
    if name == "shard_map":
        mesh = params["mesh"].shape
        axes = params.get("newly_manual_axes", mesh)  # the inner shapes are global in other axes
        return made + inner[0].times(math.prod(mesh[axis] for axis in axes))
    if inner:  # jit, remat, custom_jvp_call, custom_vjp_call, closed_call: the body runs once
        return sum(inner, start=made)
    return made + Count(elementwise=max(sizes, default=0))


def _dot(equation: Any, size: int) -> Count:
    (contracted, _), _ = equation.params["dimension_numbers"]
    summed = math.prod(_shape(equation.invars[0])[axis] for axis in contracted)
    return Count(flops=2 * size * summed)


def _convolution(equation: Any, size: int) -> Count:
    kernel = _shape(equation.invars[1])
    outputs, *_ = equation.params["dimension_numbers"].rhs_spec
    return Count(flops=2 * size * (math.prod(kernel) // max(kernel[outputs], 1)))


def _cpu_attention(equation: Any, size: int) -> Count:
    """Count the attention kernel in C++ with every pair of query and key, like the reference."""
    query, key, value = map(_shape, equation.invars[:3])  # [B, K, G, T, H], [B, K, S, H or O]
    logits, (H, O) = math.prod(query[:4]) * key[2], (key[3], value[3])  # noqa: E741
    # The products QK^T and PV; or QK^T again, dO V^T and the three gradients.
    products = H + O if equation.params["name"] == "attention_forward" else 3 * H + 2 * O
    # A maximum, a difference, an exponential and a sum; or two differences and two products.
    return Count(flops=2 * logits * products, elementwise=4 * logits)


def _skinny_product(equation: Any, size: int) -> Count:
    return Count(flops=2 * size * _shape(equation.invars[0])[1])


# By primitive: its products, given the equation and the size of its first result.
PRODUCTS = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "cpu_attention": _cpu_attention,
    "skinny_product": _skinny_product,
}


def _largest(counts: list[Count]) -> Count:
    """Take the largest value of each figure."""
    larger = max(counts, key=lambda one: one.largest_bytes)
    return replace(
        larger,
        flops=max(one.flops for one in counts),
        elementwise=max(one.elementwise for one in counts),
        unknown=tuple(sorted({name for one in counts for name in one.unknown})),
    )


def _inner_jaxprs(equation: Any) -> Iterator[Any]:
    params = equation.params
    if equation.primitive.name == "linear_map":  # it holds functions, not a jaxpr
        arrays = [jax.ShapeDtypeStruct(_shape(v), v.aval.dtype) for v in equation.invars]
        function, split = params["function"], params["split"]
        yield jax.make_jaxpr(lambda *x: function(x[:split], x[split:]))(*arrays)
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns"):  # a Jaxpr or ClosedJaxpr, under parameter names that change
                yield one


def _shape(var: Any) -> tuple[int, ...]:
    return getattr(var.aval, "shape", ())  # JAX's effect tokens have no shape


def _bytes_and_shape(var: Any) -> tuple[int, tuple[int, ...]]:
    shape, dtype = _shape(var), getattr(var.aval, "dtype", None)
    return (math.prod(shape) * dtype.itemsize if dtype is not None else 0), shape
