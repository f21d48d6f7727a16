"""The softmax of attention and its denominator, over the keys that a mask lets through."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@jax.custom_jvp
def masked_softmax(
    logits: Float[Array, "*B S"], mask: Bool[Array, "*#B #S"] | Bool[Array, ""] | bool
) -> Float[Array, "*B S"]:
    """Return the softmax over the keys that the mask lets through.

        exp(x_s) / sum_r exp(x_r)

    Masked keys get 0, and so does every key of a fully masked row. `jax.nn.softmax(where=)` gives
    the same in more passes over the logits: on a CPU it nearly doubles the time of attention with
    its gradient.
    """
    logits = jnp.where(mask, logits, -jnp.inf)
    highest = logits.max(axis=-1, keepdims=True, initial=-jnp.inf)  # `initial`: S may be 0
    # In a fully masked row, -inf - (-inf) would be NaN.
    exponentials = jnp.exp(logits - jnp.where(highest == -jnp.inf, 0, highest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


@masked_softmax.defjvp
def _masked_softmax_jvp(primals, tangents):
    """Return p and dp = p (dx - sum_r p_r dx_r), which is 0 where p is 0."""
    weights = masked_softmax(*primals)
    change = weights * tangents[0]
    return weights, change - weights * change.sum(axis=-1, keepdims=True)


@jax.custom_jvp
def masked_logsumexp(
    logits: Float[Array, "*B S"], mask: Bool[Array, "*#B #S"] | Bool[Array, ""] | bool
) -> Float[Array, "*B"]:
    """Return the log of the softmax's denominator over the keys that the mask lets through.

        log sum_s exp(x_s)

    It is -inf for a fully masked row.
    """
    logits = jnp.where(mask, logits, -jnp.inf)
    highest = logits.max(axis=-1, initial=-jnp.inf)
    highest = jnp.where(highest == -jnp.inf, 0, highest)
    return highest + jnp.log(jnp.exp(logits - highest[..., None]).sum(axis=-1))


@masked_logsumexp.defjvp
def _masked_logsumexp_jvp(primals, tangents):
    """Return the value and d = sum_s p_s dx_s, with p the softmax."""
    # In a fully masked row, where log 0 has no derivative, p and therefore d are 0.
    return masked_logsumexp(*primals), (masked_softmax(*primals) * tangents[0]).sum(axis=-1)


def softmax_over_visible(
    logits: Float[Array, "*B S"], mask: Bool[Array, "*#B #S"] | bool | None
) -> Float[Array, "*B S"]:
    """Return the `masked_softmax` of the logits, or their plain softmax if there is no mask.

    Without a mask every row must have a logit above -inf.
    """
    return jax.nn.softmax(logits, axis=-1) if mask is None else masked_softmax(logits, mask)
