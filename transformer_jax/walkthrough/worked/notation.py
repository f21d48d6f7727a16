"""What the worked examples share: one short way to write a step, and compiled forms of what they
call often.
"""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.softmax import masked_softmax
from transformer_jax.functional.linear import linear
from transformer_jax.walkthrough.step import Step


def tell(name, equation, array, axes="", rows=(), columns=(), note="") -> Step:
    """A step from any array, number or list."""
    return Step(name, equation, np.asarray(array), axes, tuple(rows), tuple(columns), note)


def numbers(values) -> np.ndarray:
    """JSON to an array; "-inf" is how JSON spells minus infinity."""
    return np.asarray(values, dtype=float)


def compiled(function, **options):
    """`jax.jit` of a library function, from and to NumPy: what is left for the examples is
    arithmetic.
    """
    jitted = jax.jit(function, **options)
    return lambda *args, **kwargs: jax.tree.map(np.asarray, jitted(*args, **kwargs))


def _softmax(scores, mask=True):
    return masked_softmax(scores, jnp.broadcast_to(mask, scores.shape))


def _attend(query, key, value):
    batch = (x[None, :, None] for x in (query, key, value))
    output, weights = dot_product_attention(*batch, return_weights=True)
    return output[0, :, 0], weights[0, 0]


project = compiled(linear)  # x W
softmax = compiled(_softmax)  # over the keys of a mask, or all
attend = compiled(
    _attend
)  # one head, no batch: [T, H], [S, H], [S, O] -> output [T, O], weights [T, S]
