"""Linear functions with a given transpose, for derivatives that are kernels of their own.

`jax.custom_vjp` gives a function a gradient of its own, but leaves it without forward mode. A
`jax.custom_jvp` function whose tangents are computed by `linear_map` has both: forward mode
computes the linear function, reverse mode its transpose.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive, unmapped_aval
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

# A function of residuals and of the arrays in which it is linear.
Linear = Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]]


def linear_map(
    function: Linear,
    transpose: Linear,
    residuals: Sequence[Array],
    inputs: Sequence[Array],
    like: Sequence[Array],
) -> list[Array]:
    """Return function(residuals, inputs), which is linear in the inputs.

    `transpose(residuals, cotangents)` returns the cotangents of the inputs. The results have the
    shapes and dtypes of the arrays `like`.
    """
    return _linear_map.bind(
        *residuals,
        *inputs,
        function=function,
        transpose=transpose,
        split=len(residuals),
        types=tuple(jax.typeof(array) for array in like),
    )


def perturbed(tangents: Sequence[Any]) -> list[int]:
    """Return the indices of the tangents that are not known to be zero.

    The tangents are those of a rule with `symbolic_zeros`.
    """
    return [
        i
        for i, tangent in enumerate(tangents)
        if type(tangent) is not SymbolicZero and tangent.dtype != jax.dtypes.float0
    ]


def reverse_mode_of(
    other: Callable[..., Sequence[Array]], function: Callable[..., Sequence[Array]]
) -> Callable:
    """Return the function with the derivatives of `other` in reverse mode.

    Both functions compute the same. Forward mode differentiates the function itself, and so on for
    the derivatives of its derivatives. The arguments and results are arrays.
    """

    @jax.custom_jvp
    def run(*arrays):
        return list(function(*arrays))

    @partial(run.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        outputs, indices, number = run(*primals), perturbed(tangents), len(primals)

        def tangents_of(function, *arrays):
            residuals, inputs = arrays[:number], arrays[number:]
            return jvp_of_some(lambda *x: list(function(*x)), residuals, indices, inputs)

        def differentiate(residuals, inputs):
            both = (partial(tangents_of, f) for f in (other, function))
            return reverse_mode_of(*both)(*residuals, *inputs)

        def transpose(residuals, cotangents):
            return vjp_of_some(lambda *x: list(other(*x)), residuals, indices, cotangents)

        inputs = [tangents[i] for i in indices]
        return outputs, linear_map(differentiate, transpose, primals, inputs, outputs)

    return run


def reverse_mode_only(arrays: Sequence[Array], problem: str) -> list[Array]:
    """Return the arrays, whose derivatives in forward mode raise a ValueError with `problem`."""

    def refuse(residuals, tangents):
        raise ValueError(problem)

    @jax.custom_jvp
    def same(*arrays):
        return list(arrays)

    @same.defjvp
    def rule(primals, tangents):
        outputs = same(*primals)
        return outputs, linear_map(refuse, lambda _, cotangents: cotangents, [], tangents, outputs)

    return same(*arrays)


def differentiated_as(other: Callable, function: Callable) -> Callable:
    """Return a function that computes `function`, and `other` where derivatives are taken.

    The arguments are pytrees. Both functions return the same pytree.
    """

    def run(*arguments):
        # As a list of arrays, because JAX rebuilds other pytrees that a custom derivative takes.
        arrays, structure = jax.tree.flatten(arguments)
        one, two = (
            lambda *arrays, function=function: function(*jax.tree.unflatten(structure, arrays))
            for function in (function, other)
        )
        computed = jax.custom_jvp(one)
        computed.defjvp(lambda arrays, tangents: jax.jvp(two, arrays, tangents))
        return computed(*arrays)

    return run


def jvp_of_some(function, arrays, indices, tangents):
    """Return the tangents of function(*arrays) for tangents of the arrays at `indices`.

    The function returns a list of arrays.
    """
    of_some = _of_some(function, arrays, indices)
    return jax.jvp(of_some, [arrays[i] for i in indices], list(tangents))[1]


def vjp_of_some(function, arrays, indices, cotangents):
    """Return the cotangents of the arrays at `indices` for those of function(*arrays), a list."""
    of_some = _of_some(function, arrays, indices)
    return jax.vjp(of_some, *(arrays[i] for i in indices))[1](list(cotangents))


def _of_some(function, arrays, indices):
    """Return the function of the arrays at `indices`; the others are given."""

    def run(*some):
        full = list(arrays)
        for i, array in zip(indices, some, strict=True):
            full[i] = array
        return function(*full)

    return run


_linear_map = Primitive("linear_map")
_linear_map.multiple_results = True


@_linear_map.def_abstract_eval
def _types(*_, types, **__):
    return list(types)


def _run(*arrays, function, split, **_):
    return list(function(arrays[:split], arrays[split:]))


_linear_map.def_impl(_run)
mlir.register_lowering(_linear_map, mlir.lower_fun(_run, multiple_results=True))


def _jvp_rule(primals, tangents, *, function, split, **params):
    params = {"function": function, "split": split, **params}
    outputs = _linear_map.bind(*primals, **params)
    terms = []
    if any(type(t) is not ad.Zero for t in tangents[split:]):
        inputs = map(ad.instantiate_zeros, tangents[split:])
        terms.append(_linear_map.bind(*primals[:split], *inputs, **params))
    indices = [i for i, t in enumerate(tangents[:split]) if type(t) is not ad.Zero]
    if indices:

        def of_residuals(*residuals):
            return list(function(residuals, primals[split:]))

        some = [tangents[i] for i in indices]
        terms.append(jvp_of_some(of_residuals, primals[:split], indices, some))
    return outputs, [sum(term[1:], term[0]) for term in zip(*terms, strict=True)]


def _transpose_rule(cotangents, *arrays, transpose, split, **_):
    # Computed in place and not as another linear map: nothing transposes a transpose.
    cotangents = list(map(ad.instantiate_zeros, cotangents))
    return [None] * split + list(transpose(arrays[:split], cotangents))


def _vmap_rule(arrays, axes, *, function, transpose, split, types):
    size = next(x.shape[a] for x, a in zip(arrays, axes, strict=True) if a is not None)
    over_residuals, over_inputs = list(axes[:split]), list(axes[split:])

    def run(residuals, inputs):
        each = jax.vmap(
            lambda r, x: list(function(r, x)), (over_residuals, over_inputs), axis_size=size
        )
        return each(list(residuals), list(inputs))

    def run_transpose(residuals, cotangents):
        each = jax.vmap(lambda r, c: list(transpose(r, c)), (over_residuals, 0), axis_size=size)
        found = each(list(residuals), list(cotangents))
        # An input that all examples share gets the sum of their cotangents.
        return [
            x.sum(axis=0) if axis is None else jnp.moveaxis(x, 0, axis)
            for x, axis in zip(found, over_inputs, strict=True)
        ]

    found = _linear_map.bind(
        *arrays,
        function=run,
        transpose=run_transpose,
        split=split,
        types=tuple(unmapped_aval(size, 0, aval) for aval in types),
    )
    return found, [0] * len(found)


ad.primitive_jvps[_linear_map] = _jvp_rule
ad.primitive_transposes[_linear_map] = _transpose_rule
batching.primitive_batchers[_linear_map] = _vmap_rule
