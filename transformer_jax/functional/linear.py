"""The linear map that every projection is made of."""

import math

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.precision import returned_dtype, wide, widest
from transformer_jax.functional.weight_product import weight_product


def linear(
    x: Float[Array, "..."],
    kernel: Float[Array, "..."],
    bias: Float[Array, "..."] | None = None,
    *,
    axes: int = 1,
    dtype: DTypeLike | None = None,
) -> Float[Array, "..."]:
    """Return x W + b, a product over the last `axes` axes of x and the first `axes` of the kernel.

        [..., D]    x [D, F]    -> [..., F]
        [..., D]    x [D, N, H] -> [..., N, H]     a kernel with heads as axes
        [..., N, H] x [N, H, D] -> [..., D]        axes=2

    Sums are in float32 or wider. The result has `dtype`, by default that of x.

    Raises ValueError if these axes differ.

    >>> kernel = jnp.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    >>> linear(jnp.array([1.0, 2.0]), kernel, jnp.array([0.0, 0.0, 0.5]))
    Array([1. , 2. , 3.5], dtype=float32)
    """
    check_arrays(x=(x, "..."), kernel=(kernel, "..."), bias=(bias, "..."))
    if axes < 1:
        raise ValueError(f"axes must be 1 or more; got {axes}")
    if x.shape[-axes:] != kernel.shape[:axes] or x.ndim < axes:
        raise ValueError(
            f"the last {axes} of the axes of x, {x.shape}, must equal the first of the kernel's, "
            f"{kernel.shape}"
        )
    if bias is not None and bias.shape != kernel.shape[axes:]:
        raise ValueError(
            f"bias must have the shape {kernel.shape[axes:]} of the kernel's other axes; "
            f"got {bias.shape}"
        )
    # One plain matrix product is what every backend runs fastest; the reshapes cost nothing.
    rows, contracted = x.shape[: x.ndim - axes], math.prod(kernel.shape[:axes])
    x, kernel = jnp.asarray(x), jnp.asarray(kernel)
    dtype = x.dtype if dtype is None else jnp.dtype(dtype)
    y = weight_product(
        x.reshape(*rows, contracted),
        kernel.reshape(contracted, math.prod(kernel.shape[axes:])),
        returned_dtype(widest(x.dtype, dtype)),
    ).reshape(*rows, *kernel.shape[axes:])
    if bias is not None:
        y = wide(y)
        y = y + bias.astype(y.dtype)
    return y.astype(dtype)
