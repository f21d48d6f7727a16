"""Products in the dtype that a machine multiplies fastest, without losing digits.

Gradients are included.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from transformer_jax.functional.linear_map import linear_map
from transformer_jax.runtime.processor import processor_has


def operands_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype in which products of arrays of this dtype are computed.

    It is the dtype itself, but float32 for a short one (below 4 bytes) on a CPU, unless it is
    bfloat16 and the CPU has AMX. Other CPUs have no short products: XLA would convert the operands
    inside every one of them. The processor decides, not a measured time, so that a run and its
    continuation choose the same.
    """
    dtype = jnp.dtype(dtype)
    short = dtype.itemsize < 4 and jnp.issubdtype(dtype, jnp.floating)
    if (
        not short
        or jax.default_backend() != "cpu"
        or (dtype == jnp.bfloat16 and processor_has("amx_bf16"))
    ):
        return dtype
    return jnp.dtype(jnp.float32)


def widest(*dtypes: DTypeLike) -> jnp.dtype:
    """Return the dtype that holds the numbers of all dtypes, also under strict promotion.

    Outside 64-bit mode float64, which arrays of NumPy have, counts as float32. Strict promotion
    forbids the silent conversions of a caller, not the documented ones of a function.
    """
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*map(jax.dtypes.canonicalize_dtype, dtypes))


def wide_dtype(*dtypes: DTypeLike) -> jnp.dtype:
    """Return float32, or the widest of the dtypes if that is wider: the dtype for sums.

    In bfloat16 a sum of equal terms no longer grows beyond 256 of them.
    """
    return widest(*dtypes, jnp.float32)


def wide(x: Array) -> Array:
    """Return x in its `wide_dtype`."""
    return x.astype(wide_dtype(x.dtype))


def added(one: Array, other: Array) -> Array:
    """Return the sum of two arrays in the widest of their dtypes."""
    dtype = widest(one.dtype, other.dtype)
    return one.astype(dtype) + other.astype(dtype)


def returned_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype in which to return a product that is soon rounded to this dtype.

    On an accelerator it is this dtype: a short product is summed in float32 and rounded on the way
    out, so that half the bytes are written. On a CPU it is float32 or wider, which a CPU writes
    anyway.
    """
    on_cpu = jax.default_backend() == "cpu"
    return wide_dtype(dtype) if on_cpu else jnp.dtype(dtype)


def product(spec: str, one: Array, other: Array, dtype: jnp.dtype) -> Array:
    """Return `jnp.einsum` of two arrays, summed and returned in `dtype`.

    Arrays of different dtypes are multiplied in the wider one.

    Its gradients multiply in the dtype of the operands. Otherwise the cotangent of a short product,
    which is long, would make both gradients long products. Every axis of an array must be in the
    other array or in the result.
    """
    common = widest(one.dtype, other.dtype)
    one, other = one.astype(common), other.astype(common)
    is_short = common.itemsize < jnp.dtype(dtype).itemsize
    if is_short and operands_dtype(common) == common:
        return _short_product(spec, dtype, one, other)
    return jnp.einsum(spec, one, other, preferred_element_type=dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _short_product(spec, dtype, one, other):
    return jnp.einsum(spec, one, other, preferred_element_type=dtype)


@_short_product.defjvp
def _short_product_jvp(spec, dtype, operands, tangents):
    def tangent(operands, tangents):
        (one, other), (d_one, d_other) = operands, tangents
        return [product(spec, d_one, other, dtype) + product(spec, one, d_other, dtype)]

    value = _short_product(spec, dtype, *operands)
    transpose = partial(_short_product_transpose, spec)
    (d_value,) = linear_map(tangent, transpose, operands, tangents, [value])
    return value, d_value


def _short_product_transpose(spec, operands, cotangents):
    """Return the cotangents of both operands, computed in the dtype of the operands."""
    (one, other), cotangent = operands, cotangents[0].astype(operands[0].dtype)
    (first, second), result = spec.split("->")[0].split(","), spec.split("->")[1]
    dtype = returned_dtype(one.dtype)
    d_one = product(f"{result},{second}->{first}", cotangent, other, dtype)
    d_other = product(f"{first},{result}->{second}", one, cotangent, dtype)
    return [d_one.astype(one.dtype), d_other.astype(other.dtype)]
