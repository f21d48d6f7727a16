"""Attention of a few rows, in expressions that XLA:CPU computes in one kernel each.

The logits then stay in the caches. XLA hands a whole expression over to YNNPACK, its library for
products, if the expression ends in one array, has no `where`, and has three axes. YNNPACK then
keeps the logits of only a few rows, if their sum is computed next to the product over them. This
explains the forms below: a large number is subtracted from hidden logits, statistics are returned
as columns of the output, and sums that nobody needs are multiplied by zero and added. Other
backends compute the same numbers, without a gain in speed.

The arrays are [n, t, ...] for queries and [n, s, ...] for keys: examples and heads are one axis.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

# Added to the logits of hidden keys. It outweighs every logit, and it is finite so that differences
# of hidden logits are finite too.
HIDDEN = -1e37


def mask_as_bias(mask: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the bias that applies the mask: 0 where it is True, else a large negative number."""
    return jnp.where(mask, jnp.float32(0), jnp.float32(HIDDEN))


def attend(
    query: Float[Array, "n t H"],
    key: Float[Array, "n s H"],
    value: Float[Array, "n s O"],
    bias: Float[Array, "#n #t s"] | None,
) -> Float[Array, "n t O"]:
    """Return softmax(Q K^T + bias) V. A query that sees nothing gets the mean of the values."""
    _, weights = _exponentials(query, key, bias)
    return jnp.einsum("nts,nso->nto", weights, value) / _sum(weights)


def attend_with_statistics(
    query: Float[Array, "n t H"],
    key: Float[Array, "n s H"],
    value: Float[Array, "n s O"],
    bias: Float[Array, "#n #t s"] | None,
) -> tuple[Float[Array, "n t O"], Float[Array, "n t"], Float[Array, "n t"]]:
    """Return the result of `attend`, the largest logits, and the log of the sum over the keys."""
    highest, weights = _exponentials(query, key, bias)
    features = value.shape[2]
    last_two = jnp.eye(2, features + 2, k=features, dtype=value.dtype)
    value = jnp.pad(value, ((0, 0), (0, 0), (0, 2)))
    output = jnp.einsum("nts,nso->nto", weights, value)
    output += _sum(weights) * last_two[0] + highest * last_two[1]
    total, highest = output[..., features], output[..., features + 1]
    return output[..., :features] / total[..., None], highest, jnp.log(total)


def gradients(
    query: Float[Array, "n t H"],
    key: Float[Array, "n s H"],
    value: Float[Array, "n s O"],
    bias: Float[Array, "#n #t s"] | None,
    shift: Float[Array, "n t"],
    d_output: Float[Array, "n t O"],
    delta: Float[Array, "n t"],
) -> tuple[Float[Array, "n t H"], Float[Array, "n s H"], Float[Array, "n s O"]]:
    """Return the gradients dQ, dK and dV of `attend`.

    With P = e^(Q K^T + bias - shift) and dS = P (dO V^T - delta) they are

        dQ = dS K    dK = dS^T Q    dV = P^T dO

    P are the weights if the shift is the logsumexp. If it is the largest logit of each query,
    d_output and delta must be divided by the row sums of P. P is computed anew for each of the
    three; for dK and dV as P^T, with the keys as rows.
    """
    given, found = (query, key, value, bias, shift, d_output, delta), ()
    for gradient in (_d_query, _d_key, _d_value):
        # The barrier separates them. Otherwise XLA would compute only once, and store, what they
        # share with each other and with the output.
        given, found = lax.optimization_barrier((given, found))
        found += (gradient(*given),)
    return found


def _d_query(query, key, value, bias, shift, d_output, delta):
    weights = _weights(query, key, bias, shift[..., None])
    d_weights = jnp.einsum("nto,nso->nts", d_output, value)
    d_logits = weights * (d_weights - delta[..., None])
    return jnp.einsum("nts,nsh->nth", d_logits, key) + 0 * _sum(d_logits)


def _d_key(query, key, value, bias, shift, d_output, delta):
    weights = _weights(key, query, _transposed(bias), shift[:, None])
    d_weights = jnp.einsum("nso,nto->nst", value, d_output)
    d_logits = weights * (d_weights - delta[:, None])
    return jnp.einsum("nst,nth->nsh", d_logits, query) + 0 * _sum(d_logits)


def _d_value(query, key, value, bias, shift, d_output, delta):
    weights = _weights(key, query, _transposed(bias), shift[:, None])
    return jnp.einsum("nst,nto->nso", weights, d_output) + 0 * _sum(weights)


def _transposed(bias):
    return None if bias is None else bias.swapaxes(1, 2)


def _exponentials(query, key, bias):
    logits = jnp.einsum("nth,nsh->nts", query, key)
    logits = logits if bias is None else logits + bias
    highest = lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    return highest, jnp.exp(logits - highest)


def _weights(rows, columns, bias, shift):
    logits = jnp.einsum("nth,nsh->nts", rows, columns)
    return jnp.exp((logits if bias is None else logits + bias) - shift)


def _sum(x):
    return x.sum(axis=-1, keepdims=True)
