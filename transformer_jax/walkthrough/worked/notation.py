"""Functions that the worked examples share: a short constructor of steps, and jitted functions."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.softmax import masked_softmax
from transformer_jax.functional.linear import linear
from transformer_jax.walkthrough.step import Step


def tell(name, equation, array, axes="", rows=(), columns=(), note="") -> Step:
    """Create a step from any array, number or list."""
    return Step(name, equation, np.asarray(array), axes, tuple(rows), tuple(columns), note)


def numbers(values) -> np.ndarray:
    """Convert numbers from JSON to an array. Minus infinity is written as "-inf"."""
    return np.asarray(values, dtype=float)


def compiled(function, **options):
    """Wrap a library function in `jax.jit`, with NumPy arrays as inputs and outputs."""
    jitted = jax.jit(function, **options)
    return lambda *args, **kwargs: jax.tree.map(np.asarray, jitted(*args, **kwargs))


def _softmax(scores, mask=True):
    return masked_softmax(scores, jnp.broadcast_to(mask, scores.shape))


def _attend(query, key, value):
    batch = (x[None, :, None] for x in (query, key, value))
    output, weights = dot_product_attention(*batch, return_weights=True)
    return output[0, :, 0], weights[0, 0]


project = compiled(linear)  # x W
softmax = compiled(_softmax)  # over the keys that a mask allows, or all
# One head, no batch: [T, H], [S, H], [S, O] -> output [T, O], weights [T, S].
attend = compiled(_attend)
