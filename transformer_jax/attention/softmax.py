"""The softmax of attention and its denominator, over the keys that a mask lets through."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@jax.custom_jvp
def masked_softmax(
    logits: Float[Array, "*B S"], mask: Bool[Array, "*#B #S"] | Bool[Array, ""] | bool
) -> Float[Array, "*B S"]:
    """exp(x_s) / sum_r exp(x_r) over the s that the mask lets through, 0 elsewhere and in a row
    without any.

    `jax.nn.softmax(where=)` gives the same in more passes over the logits: on a CPU it nearly
    doubles the time of attention with its gradient.
    """
    logits = jnp.where(mask, logits, -jnp.inf)
    highest = logits.max(axis=-1, keepdims=True, initial=-jnp.inf)  # of no keys at all, too
    # In a row without any, -inf - (-inf) would be NaN.
    exponentials = jnp.exp(logits - jnp.where(highest == -jnp.inf, 0, highest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


@masked_softmax.defjvp
def _masked_softmax_jvp(primals, tangents):
    """dp = p (dx - sum_r p_r dx_r): where p is 0, so is dp."""
    weights = masked_softmax(*primals)
    change = weights * tangents[0]
    return weights, change - weights * change.sum(axis=-1, keepdims=True)


@jax.custom_jvp
def masked_logsumexp(
    logits: Float[Array, "*B S"], mask: Bool[Array, "*#B #S"] | Bool[Array, ""] | bool
) -> Float[Array, "*B"]:
    """log sum_s exp(x_s) over the s that the mask lets through, -inf where it lets none."""
    logits = jnp.where(mask, logits, -jnp.inf)
    highest = logits.max(axis=-1, initial=-jnp.inf)
    highest = jnp.where(highest == -jnp.inf, 0, highest)
    return highest + jnp.log(jnp.exp(logits - highest[..., None]).sum(axis=-1))


@masked_logsumexp.defjvp
def _masked_logsumexp_jvp(primals, tangents):
    """d = sum_s p_s dx_s, p the softmax: 0 where nothing is seen, where log 0 has no derivative."""
    return masked_logsumexp(*primals), (masked_softmax(*primals) * tangents[0]).sum(axis=-1)


def softmax_over_visible(
    logits: Float[Array, "*B S"], mask: Bool[Array, "*#B #S"] | None
) -> Float[Array, "*B S"]:
    """Return `masked_softmax`, or the softmax over all keys where there is no mask."""
    return jax.nn.softmax(logits, axis=-1) if mask is None else masked_softmax(logits, mask)
