"""A small transformer of the library's pure functions, with switchable residuals and norms."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.functional.feed_forward import feed_forward
from transformer_jax.functional.normalization import layer_norm

Parameters = dict[str, jax.Array]


def normal(random: np.random.Generator, shape: tuple[int, ...], inputs: int = 1) -> jax.Array:
    """Draw normal numbers of variance 1 / inputs.

    They come from NumPy, because a generator of JAX takes long to compile.
    """
    return jnp.asarray(random.standard_normal(shape, np.float32) * np.float32(inputs**-0.5))


def init_layers(random: np.random.Generator, L: int, D: int, N: int, F: int) -> Parameters:
    """Draw the parameters of L layers, stacked along the first axis."""
    return {
        "query": normal(random, (L, D, N, D // N), D),
        "key": normal(random, (L, D, N, D // N), D),
        "value": normal(random, (L, D, N, D // N), D),
        "out": normal(random, (L, N, D // N, D), D),
        "up": normal(random, (L, D, F), D),
        "down": normal(random, (L, F, D), F),
    }


def layers(parameters: Parameters, x, *, residual=1.0, norm=True, depth=None, mask=None):
    """Apply attention and feed-forward sublayers in the first `depth` layers.

        x = residual x + sublayer(norm(x))

    `residual` is 1 or 0. It and `depth` may be traced, so that one compilation is enough.
    """
    L = len(parameters["up"])
    depth = L if depth is None else depth

    def normed(x):
        return layer_norm(x, jnp.ones(x.shape[-1])) if norm else x

    def layer(x, at):
        index, p = at
        y = normed(x)
        y = multi_head_attention(y, y, p["query"], p["key"], p["value"], p["out"], mask=mask)
        attended = residual * x + y
        y = feed_forward(normed(attended), p["up"], None, p["down"], None)
        return jnp.where(index < depth, residual * attended + y, x), None

    return normed(lax.scan(layer, x, (jnp.arange(L), parameters))[0])


def cross_entropy(logits, labels):
    """Return the mean cross-entropy over all tokens."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@partial(jax.jit, static_argnames="loss")
def fit(loss: Callable, parameters: Parameters, batches, rate=3e-3):
    """Minimize `loss(parameters, batch)` with Adam, once through the batches.

    Return the parameters and the loss of every step.
    """
    optimizer = optax.adam(rate)

    def step(carry, batch):
        parameters, state = carry
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(parameters, updates), state), value

    carry = parameters, optimizer.init(parameters)
    (parameters, _), losses = lax.scan(step, carry, batches)
    return parameters, losses
