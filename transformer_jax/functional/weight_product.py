"""The product of features with a weight matrix: of few rows on one CPU by a kernel in C++.

Generation with a cache multiplies one row of each text with every weight. Its time is that of
reading the weights from memory. For a few rows XLA's products take about twice as long, and they
convert bfloat16 weights to float32 first. `cpu/skinny_product.h` reads either once.
"""

import math
from functools import partial
from string import ascii_lowercase

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from transformer_jax.cpu.library import DTYPES, is_built, is_one_cpu, lower_by_kernel
from transformer_jax.functional.checks import are_numbers
from transformer_jax.functional.precision import product

MOST_ROWS = 32  # with more, a product takes longer than reading the weights
LEAST_WEIGHTS = 2**16  # fewer are in the processor's cache, and XLA multiplies with them at once
MULTIPLE = 16  # of the contiguous axis of the weights: of the floats in a vector


def weight_product(
    x: Float[Array, "... D"],
    weights: Float[Array, "D F"] | Float[Array, "F D"],
    dtype: DTypeLike,
    *,
    transposed: bool = False,
) -> Float[Array, "... F"]:
    """Return x W, or x W^T if `transposed`, summed and returned in `dtype`."""
    dtype, (*rows, depth) = jnp.dtype(dtype), x.shape
    if len(rows) != 1 and is_one_cpu() and are_numbers(*rows):
        # The gradient of the weights would be a sum over several axes, and XLA on a CPU would first
        # move the arrays in memory. Devices may share these axes, so that there they stay.
        y = weight_product(x.reshape(math.prod(rows), depth), weights, dtype, transposed=transposed)
        return y.reshape(*rows, y.shape[1])
    if _is_skinny(x, weights, dtype):
        return _skinny_product.bind(x.astype(dtype), weights, transposed=transposed)
    letters = ascii_lowercase[: len(rows)]
    of_weights = "FD" if transposed else "DF"
    return product(f"{letters}D,{of_weights}->{letters}F", x, weights, dtype)


def _is_skinny(x, weights, dtype):
    """Return whether the kernel computes the product."""
    return (
        is_one_cpu()
        and dtype == jnp.float32
        and x.dtype.name in DTYPES
        and weights.dtype.name in DTYPES
        and are_numbers(*x.shape, *weights.shape)
        and 0 < x.shape[0] <= MOST_ROWS
        and weights.size >= LEAST_WEIGHTS
        and weights.shape[1] % MULTIPLE == 0
        and is_built()
    )


_skinny_product = Primitive("skinny_product")


@_skinny_product.def_abstract_eval
def _type(x, weights, *, transposed):
    return ShapedArray((x.shape[0], weights.shape[0 if transposed else 1]), x.dtype)


def _by_kernel(x, weights, *, transposed):
    y = jax.ShapeDtypeStruct((x.shape[0], weights.shape[0 if transposed else 1]), x.dtype)
    name = f"transformer_jax_skinny_product_{weights.dtype}"
    return jax.ffi.ffi_call(name, y)(x, weights, transposed=transposed)


def _by_xla(x, weights, *, transposed):
    return product("BD,FD->BF" if transposed else "BD,DF->BF", x, weights, x.dtype)


def _skinny_product_jvp(primals, tangents, **params):
    """The product is linear in either factor; XLA computes its derivatives."""
    (x, weights), (d_x, d_weights) = primals, tangents
    terms = []
    if type(d_x) is not ad.Zero:
        terms.append(_by_xla(d_x, weights, **params))
    if type(d_weights) is not ad.Zero:
        terms.append(_by_xla(x, d_weights, **params))
    return _skinny_product.bind(x, weights, **params), sum(terms[1:], start=terms[0])


def _skinny_product_vmap(arrays, axes, **params):
    return jax.vmap(partial(_by_xla, **params), in_axes=tuple(axes))(*arrays), 0


lower_by_kernel(_skinny_product, _by_kernel, _by_xla)
ad.primitive_jvps[_skinny_product] = _skinny_product_jvp
batching.primitive_batchers[_skinny_product] = _skinny_product_vmap
