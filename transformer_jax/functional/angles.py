"""The cosine and the sine of the angles by which positions rotate."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional.checks import are_numbers

# XLA may compute so few again wherever they are used.
FEW = 2**11


def cos_and_sin(
    angles: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return the cosine and the sine of angles, computed once however often they are used.

    XLA on a CPU would fuse them into the loops over heads, features and examples that read them,
    and compute them again for each.
    """
    is_fused = jax.default_backend() == "cpu" and are_numbers(*angles.shape)
    if not is_fused or angles.size <= FEW:
        return jnp.cos(angles), jnp.sin(angles)
    cos, sin = _in_a_loop(angles)
    return cos, sin


@jax.jit
def _in_a_loop(angles):
    """Return both from a loop of two iterations, out of which XLA fuses nothing."""
    return lax.map(lambda is_sine: lax.cond(is_sine, jnp.sin, jnp.cos, angles), jnp.arange(2) == 1)
