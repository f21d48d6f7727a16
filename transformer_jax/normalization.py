"""Normalisation of activations."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def layer_norm(
    x: Float[Array, "... D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None,
    *,
    epsilon: float = 1e-5,
) -> Float[Array, "... D"]:
    """scale (x - mean) / sqrt(variance + epsilon) + bias, over the last axis.

    Ba et al., 2016, https://arxiv.org/abs/1607.06450. Statistics in float32 or wider.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    # Two passes: E[x^2] - E[x]^2 loses every digit when the mean is large (nnx.LayerNorm's default does).
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    y = centred * lax.rsqrt(variance + epsilon) * scale
    if bias is not None:
        y = y + bias
    return y.astype(x.dtype)
