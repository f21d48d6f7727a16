"""Additive attention (Bahdanau et al., 2015): scores from a small feed-forward network."""

from typing import Literal, overload

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.attention.inputs import validate_mask, with_batch
from transformer_jax.attention.mask_rule import MaskLike
from transformer_jax.attention.masked_rows import find_masked_rows
from transformer_jax.attention.rule import rendered
from transformer_jax.attention.softmax import softmax_over_visible
from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.linear import linear
from transformer_jax.functional.precision import product, wide, widest


@overload
def additive_attention(
    query: Float[Array, "*B T D"],
    key: Float[Array, "*B S E"],
    value: Float[Array, "*B S O"],
    query_kernel: Float[Array, "D A"],
    key_kernel: Float[Array, "E A"],
    score_kernel: Float[Array, " A"],
    *,
    score_bias: Float[Array, " A"] | None = None,
    mask: MaskLike = None,
    return_weights: Literal[False] = False,
) -> Float[Array, "*B T O"]: ...


@overload
def additive_attention(
    query: Float[Array, "*B T D"],
    key: Float[Array, "*B S E"],
    value: Float[Array, "*B S O"],
    query_kernel: Float[Array, "D A"],
    key_kernel: Float[Array, "E A"],
    score_kernel: Float[Array, " A"],
    *,
    score_bias: Float[Array, " A"] | None = None,
    mask: MaskLike = None,
    return_weights: Literal[True],
) -> tuple[Float[Array, "*B T O"], Float[Array, "*B T S"]]: ...


@overload
def additive_attention(
    query: Float[Array, "*B T D"],
    key: Float[Array, "*B S E"],
    value: Float[Array, "*B S O"],
    query_kernel: Float[Array, "D A"],
    key_kernel: Float[Array, "E A"],
    score_kernel: Float[Array, " A"],
    *,
    score_bias: Float[Array, " A"] | None = None,
    mask: MaskLike = None,
    return_weights: bool,
) -> Float[Array, "*B T O"] | tuple[Float[Array, "*B T O"], Float[Array, "*B T S"]]: ...


def additive_attention(
    query: Float[Array, "*B T D"],
    key: Float[Array, "*B S E"],
    value: Float[Array, "*B S O"],
    query_kernel: Float[Array, "D A"],
    key_kernel: Float[Array, "E A"],
    score_kernel: Float[Array, " A"],
    *,
    score_bias: Float[Array, " A"] | None = None,
    mask: MaskLike = None,
    return_weights: bool = False,
) -> Float[Array, "*B T O"] | tuple[Float[Array, "*B T O"], Float[Array, "*B T S"]]:
    """Return additive attention: the values averaged by weights from a small feed-forward network.

        softmax_s(w . tanh(W_q q_t + W_k k_s + b)) V

    This is the alignment of Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2;
    the weights [B, T, S] are the alignment matrix. There is a single head, so the mask must not
    differ by head. It needs memory for B T S A numbers, where a dot product needs memory for B T S.
    Arrays without a batch axis give results without one. Raises as `dot_product_attention` does.

    >>> x, kernel = jnp.eye(2)[None], jnp.eye(2)
    >>> additive_attention(x, x, x, kernel, kernel, jnp.ones(2))[0].round(3)
    Array([[0.364, 0.636],
           [0.636, 0.364]], dtype=float32)
    """
    check_arrays(
        query=(query, "[B] T D"),
        key=(key, "[B] S E"),
        value=(value, "[B] S O"),
        query_kernel=(query_kernel, "D A"),
        key_kernel=(key_kernel, "E A"),
        score_kernel=(score_kernel, "A"),
        score_bias=(score_bias, "A"),
    )
    batched = len(query.shape) == 3
    query, key, value = (with_batch(x, 3) for x in (query, key, value))
    (B, T, _), S, dtype = query.shape, key.shape[1], widest(query.dtype)
    mask = validate_mask(mask, (B, 1, T, S), batched=batched)
    rows = find_masked_rows(mask, T, S)
    query, key, value = rows.zero_inputs_q(query), *map(rows.zero_inputs_kv, (key, value))
    query, key = (
        wide(linear(x, kernel)) for x, kernel in ((query, query_kernel), (key, key_kernel))
    )
    aligned = query[:, :, None] + key[:, None].astype(query.dtype)
    if score_bias is not None:
        aligned = aligned + score_bias.astype(aligned.dtype)
    logits = (jnp.tanh(aligned) @ score_kernel.astype(aligned.dtype))[:, None]
    weights = softmax_over_visible(logits, rendered(mask, T, S))[:, 0]
    value = jnp.asarray(value)
    weighted = weights.astype(value.dtype)
    output = product("BTS,BSO->BTO", weighted, value, weights.dtype).astype(dtype)
    if not batched:
        output, weights = output.squeeze(0), weights.squeeze(0)
    return (output, weights) if return_weights else output
