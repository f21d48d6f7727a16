"""Attention (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2), the readable reference.

Masks and rows follow one contract. A query that sees no key gets output 0 and weights 0. What no query of its
example may see, and a query that sees nothing, reaches no output and no gradient, NaN and inf included.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from transformer_jax.dropout import dropout
from transformer_jax.linear import linear
from transformer_jax.masks import MaskLike, render


def attention_weights(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    bias: Float[Array, "#B #N #T #S"] | None = None,
    mask: MaskLike = None,
    scale: float | None = None,
) -> Float[Array, "B N T S"]:
    """softmax(scale Q K^T + bias) over the keys that the mask lets through; scale is 1/sqrt(H) by default.

    Float32 or wider. Heads share keys in groups of N/K (grouped-query attention, Ainslie et al., 2023).
    """
    _check_shapes(query, key, key)
    mask = render(mask, query.shape[1], key.shape[1])
    return _weights(*_hide_unseen(query, key, mask), bias, mask, scale)


def dot_product_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K O"],
    *,
    bias: Float[Array, "#B #N #T #S"] | None = None,
    mask: MaskLike = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
    return_weights: bool = False,
) -> Float[Array, "B T N O"] | tuple[Float[Array, "B T N O"], Float[Array, "B N T S"]]:
    """softmax(scale Q K^T + bias) V: `attention_weights` times the values, in the dtype of the query.

    With a `dropout_rng`, weights are dropped with probability `dropout_rate` and the rest scaled up; the
    weights returned are those that were used.
    """
    _check_shapes(query, key, value)
    mask = render(mask, query.shape[1], key.shape[1])
    query, key = _hide_unseen(query, key, mask)
    weights = _weights(query, key, bias, mask, scale)
    weights = dropout(weights, dropout_rate, dropout_rng)
    if mask is not None:
        # 0 * NaN is NaN: a weight of zero does not keep an unseen value out of the product.
        value = jnp.where(_seen_keys(mask, value.shape[2]), value, 0)

    output = jnp.einsum(
        "BKGTS,BKSO->BKGTO",
        _group(weights, value.shape[2]).astype(value.dtype),
        value.swapaxes(1, 2),
        preferred_element_type=weights.dtype,
    )
    output = output.reshape(*weights.shape[:3], -1).swapaxes(1, 2).astype(query.dtype)
    return (output, weights) if return_weights else output


def multi_head_attention(
    inputs_q: Float[Array, "B T D"],
    inputs_kv: Float[Array, "B S E"],
    query_kernel: Float[Array, "D N H"],
    key_kernel: Float[Array, "E K H"],
    value_kernel: Float[Array, "E K O"],
    out_kernel: Float[Array, "N O M"],
    *,
    query_bias: Float[Array, "N H"] | None = None,
    key_bias: Float[Array, "K H"] | None = None,
    value_bias: Float[Array, "K O"] | None = None,
    out_bias: Float[Array, " M"] | None = None,
    bias: Float[Array, "#B #N #T #S"] | None = None,
    mask: MaskLike = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
    return_weights: bool = False,
) -> Float[Array, "B T M"] | tuple[Float[Array, "B T M"], Float[Array, "B N T S"]]:
    """Concat(head_1, ..., head_N) W^O with head_n = Attention(X_q W_n^Q, X_kv W_n^K, X_kv W_n^V).

    The concatenation and W^O are one sum over heads and features, so nothing is ever split or merged.
    Self-attention is inputs_q = inputs_kv; the biases are those that most implementations add.
    """
    mask = render(mask, inputs_q.shape[1], inputs_kv.shape[1])
    if mask is not None:
        # An unseen NaN would enter the gradient of the kernels as 0 * NaN.
        inputs_q = jnp.where(_seeing_queries(mask).any(axis=2), inputs_q, 0)
        inputs_kv = jnp.where(_seen_keys(mask, 1)[..., 0], inputs_kv, 0)
    attended = dot_product_attention(
        linear(inputs_q, query_kernel, query_bias),
        linear(inputs_kv, key_kernel, key_bias),
        linear(inputs_kv, value_kernel, value_bias),
        bias=bias,
        mask=mask,
        scale=scale,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
        return_weights=return_weights,
    )
    if return_weights:
        attended, weights = attended
        return linear(attended, out_kernel, out_bias, axes=2), weights
    return linear(attended, out_kernel, out_bias, axes=2)


def _weights(query, key, bias, mask, scale):
    scale = query.shape[3] ** -0.5 if scale is None else scale
    # Heads next to the batch and the scale on the query, not on the T x S logits: on a CPU twice as fast.
    query = _group((query * scale).astype(query.dtype).swapaxes(1, 2), key.shape[2])
    logits = jnp.einsum(
        "BKGTH,BKSH->BKGTS",
        query,
        key.swapaxes(1, 2),
        preferred_element_type=jnp.promote_types(query.dtype, jnp.float32),
    )
    logits = logits.reshape(logits.shape[0], -1, *logits.shape[3:])
    if bias is not None:
        logits = logits + bias
    return jax.nn.softmax(logits, axis=-1) if mask is None else masked_softmax(logits, mask)


@jax.custom_jvp
def masked_softmax(
    logits: Float[Array, "*B S"], mask: Bool[Array, "*#B #S"]
) -> Float[Array, "*B S"]:
    """exp(x_s) / sum_r exp(x_r) over the s that the mask lets through, 0 elsewhere and in a row without any.

    `jax.nn.softmax(where=)` gives the same in more passes over the logits: on a CPU it nearly doubles the
    time of attention with its gradient.
    """
    logits = jnp.where(mask, logits, -jnp.inf)
    highest = logits.max(axis=-1, keepdims=True)
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


def _group(x: Float[Array, "B N T L"], K: int) -> Float[Array, "B K G T L"]:
    """The N heads as K groups that share a key head."""
    return x.reshape(x.shape[0], K, -1, *x.shape[2:])


def _hide_unseen(query, key, mask):
    """Zeros in place of queries that see nothing and keys that nobody sees, before any product."""
    if mask is None:
        return query, key
    query = jnp.where(_seeing_queries(mask), query, 0)
    return query, jnp.where(_seen_keys(mask, key.shape[2]), key, 0)


def hide_lone_rows(
    x: Float[Array, "B T D"], mask: Bool[Array, "#B #N #T #T"]
) -> Float[Array, "B T D"]:
    """Zeros in the rows of a self-attention that see nothing and that nobody sees.

    Norms and feed-forward networks read every row: a NaN there would reach their gradients as 0 * NaN.
    """
    return jnp.where(_seeing_queries(mask).any(axis=2) | _seen_keys(mask, 1)[..., 0], x, 0)


def _seeing_queries(mask: Bool[Array, "#B #N #T #S"]) -> Bool[Array, "#B #T #N 1"]:
    return mask.any(axis=3).swapaxes(1, 2)[..., None]


def _seen_keys(mask: Bool[Array, "#B #N #T #S"], K: int) -> Bool[Array, "#B #S #K 1"]:
    """A key head is seen where any query of any of its group's heads may see it."""
    seen = mask.any(axis=2)
    if seen.shape[1] > 1:
        seen = seen.reshape(seen.shape[0], K, -1, seen.shape[2]).any(axis=2)
    return seen.swapaxes(1, 2)[..., None]


def _check_shapes(query, key, value):
    """The mistakes that would otherwise surface as a reshape error deep inside."""
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"key and value must agree in batch, length and heads; got {key.shape} and {value.shape}"
        )
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"query and key must agree in batch and features; got {query.shape} and {key.shape}"
        )
    if query.shape[2] % key.shape[2]:
        raise ValueError(
            f"the key heads must divide the query heads; got {key.shape[2]} and {query.shape[2]}"
        )
