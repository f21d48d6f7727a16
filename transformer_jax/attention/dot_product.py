"""Attention (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2), the readable
reference.

What computes it is chosen by `plan.attention_plan`; the equation is here, and its faster forms give
its answer. Masks and rows follow one contract. A query that sees no key gets output 0 and weights
0. What no query of its example may see, and a query that sees nothing, reaches no output and no
gradient, NaN and inf included.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.attention.biases import BiasLike
from transformer_jax.attention.kernels.blockwise import blockwise_attention
from transformer_jax.attention.kernels.cudnn import cudnn_attention
from transformer_jax.attention.kernels.dispatch import Implementation, attention_plan, fitting_rules
from transformer_jax.attention.masked_rows import sight
from transformer_jax.attention.masks import Mask, MaskLike, as_mask
from transformer_jax.attention.rule import check_fit, rendered
from transformer_jax.attention.softmax import masked_logsumexp, masked_softmax
from transformer_jax.functional.checks import check_arrays, check_attention
from transformer_jax.functional.dropout import check_rate, dropout_weights
from transformer_jax.functional.linear import linear
from transformer_jax.functional.normalization import rms_norm
from transformer_jax.functional.precision import product
from transformer_jax.functional.rotary import Rotary


def attention_weights(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    bias: BiasLike = None,
    mask: MaskLike = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Float[Array, "B N T S"]:
    """softmax(scale Q K^T + bias) over the keys that the mask lets through; scale is 1/sqrt(H) by
    default.

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, equation 1. Float32 or wider. Heads
    share keys in groups of N/K (grouped-query attention, Ainslie et al., 2023,
    https://arxiv.org/abs/2305.13245). For `soft_cap`, and for what raises, see
    `dot_product_attention`.

    >>> query = key = jnp.eye(2)[None, :, None]  # one example, two tokens, one head
    >>> attention_weights(query, key, mask=causal())[0, 0].round(3)
    Array([[1.  , 0.  ],
           [0.33, 0.67]], dtype=float32)
    """
    check_attention(query, key, None, soft_cap)
    bias, mask = fitting_rules(query, key, bias, mask)
    query, key, _ = _hidden(query, key, None, mask)
    logits = _logits(query, key, bias, scale, soft_cap)
    return _softmax(logits, rendered(mask, *logits.shape[2:]))


def dot_product_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K O"],
    *,
    bias: BiasLike = None,
    mask: MaskLike = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    implementation: Implementation | None = None,
) -> Float[Array, "B T N O"] | tuple[Array, ...]:
    """softmax(scale Q K^T + bias) V: `attention_weights` times the values, in the dtype of the
    query.

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, equation 1. With a `soft_cap` c the
    products are bounded before the bias: c tanh(scale Q K^T / c) (Gemma 2,
    https://arxiv.org/abs/2408.00118, section 2). With a `dropout_rng`, weights are dropped with
    probability `dropout_rate` and the rest scaled up. A query that sees no key gets 0.

    Returns the output; after it, where asked for, the weights [B, N, T, S] as they were used, and
    the log of the softmax's denominator [B, T, N], -inf where a query sees no key: two parts of the
    keys are joined by it.

    The `implementation` is "reference" (below, which stores T x S logits), "blockwise" (which does
    not, and skips what the mask hides), "cudnn" (NVIDIA's, which rounds a bias to the dtype of the
    query), or chosen where it is None: `attention_plan` says which and why.

    Raises ValueError where axes do not fit, K does not divide N, or a key comes without a rate,
    TypeError where arrays are not floating point or a mask is not boolean, or the implementation
    asked for cannot be had.

    >>> query = key = value = jnp.eye(2)[None, :, None]
    >>> output, logsumexp = dot_product_attention(query, key, value, return_logsumexp=True)
    >>> output[0, :, 0].round(3)
    Array([[0.67, 0.33],
           [0.33, 0.67]], dtype=float32)
    """
    return _attention(
        query,
        key,
        value,
        is_hidden=False,
        bias=bias,
        mask=mask,
        scale=scale,
        soft_cap=soft_cap,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
        return_weights=return_weights,
        return_logsumexp=return_logsumexp,
        implementation=implementation,
    )


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
    query_scale: Float[Array, " H"] | None = None,
    key_scale: Float[Array, " H"] | None = None,
    norm_epsilon: float = 1e-6,
    rotary: Rotary | None = None,
    bias: BiasLike = None,
    mask: MaskLike = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: Implementation | None = None,
) -> Float[Array, "B T M"] | tuple[Float[Array, "B T M"], Float[Array, "B N T S"]]:
    """Concat(head_1, ..., head_N) W^O with head_n = Attention(X_q W_n^Q, X_kv W_n^K, X_kv W_n^V).

    The concatenation and W^O are one sum over heads and features, so nothing is ever split or
    merged. Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.2. Self-attention is
    inputs_q = inputs_kv, cross-attention is not; the biases of the projections are those that most
    implementations add. With `query_scale` and `key_scale` every head's queries and keys pass an
    `rms_norm` (Qwen3). With `rotary` queries and keys, which then stand at the same positions, are
    turned by them. Raises as `dot_product_attention` does.

    >>> x, kernel = jnp.ones((1, 3, 4)), jnp.ones((4, 2, 2))  # D = 4 features, N = 2 heads of H = 2
    >>> multi_head_attention(x, x, kernel, kernel, kernel, jnp.ones((2, 2, 4))).shape
    (1, 3, 4)
    """
    check_arrays(
        inputs_q=(inputs_q, "B T D"),
        inputs_kv=(inputs_kv, "B S E"),
        query_kernel=(query_kernel, "D N H"),
        key_kernel=(key_kernel, "E K H"),
        value_kernel=(value_kernel, "E K O"),
        out_kernel=(out_kernel, "N O M"),
        query_bias=(query_bias, "N H"),
        key_bias=(key_bias, "K H"),
        value_bias=(value_bias, "K O"),
        out_bias=(out_bias, "M"),
        query_scale=(query_scale, "H"),
        key_scale=(key_scale, "H"),
    )
    (B, T, _), S, N = inputs_q.shape, inputs_kv.shape[1], query_kernel.shape[1]
    mask, is_hidden = as_mask(mask), False
    check_fit("mask", mask, (B, N, T, S))
    if mask is not None:
        # An unseen NaN would enter the gradient of the kernels as 0 * NaN.
        seen = sight(mask, T, S)
        is_hidden = not seen.by_head  # what is zero here is finite after the projections
        inputs_q, inputs_kv = seen.of_inputs_q(inputs_q), seen.of_inputs_kv(inputs_kv)
    query = linear(inputs_q, query_kernel, query_bias)
    key = linear(inputs_kv, key_kernel, key_bias)
    if query_scale is not None:
        query = rms_norm(query, query_scale, epsilon=norm_epsilon)
    if key_scale is not None:
        key = rms_norm(key, key_scale, epsilon=norm_epsilon)
    if rotary is not None:
        query, key = rotary.turn(query), rotary.turn(key)
    attended = _attention(
        query,
        key,
        linear(inputs_kv, value_kernel, value_bias),
        is_hidden=is_hidden,
        bias=bias,
        mask=mask,
        scale=scale,
        soft_cap=soft_cap,
        dropout_rate=dropout_rate,
        dropout_rng=dropout_rng,
        return_weights=return_weights,
        implementation=implementation,
    )
    if return_weights:
        attended, weights = attended
        return linear(attended, out_kernel, out_bias, axes=2), weights
    return linear(attended, out_kernel, out_bias, axes=2)


def additive_attention(
    query: Float[Array, "B T D"],
    key: Float[Array, "B S E"],
    value: Float[Array, "B S O"],
    query_kernel: Float[Array, "D A"],
    key_kernel: Float[Array, "E A"],
    score_kernel: Float[Array, " A"],
    *,
    score_bias: Float[Array, " A"] | None = None,
    mask: MaskLike = None,
    return_weights: bool = False,
) -> Float[Array, "B T O"] | tuple[Float[Array, "B T O"], Float[Array, "B T S"]]:
    """softmax_s(w . tanh(W_q q_t + W_k k_s + b)) V: the alignment of Bahdanau et al., 2015.

    https://arxiv.org/abs/1409.0473, appendix A.1.2. The weights are the alignment matrix. A mask is
    one of a single head. Takes memory for B T S A numbers, where a dot product takes B T S. Raises
    as `dot_product_attention` does.

    >>> x, kernel = jnp.eye(2)[None], jnp.eye(2)
    >>> additive_attention(x, x, x, kernel, kernel, jnp.ones(2))[0].round(3)
    Array([[0.364, 0.636],
           [0.636, 0.364]], dtype=float32)
    """
    check_arrays(
        query=(query, "B T D"),
        key=(key, "B S E"),
        value=(value, "B S O"),
        query_kernel=(query_kernel, "D A"),
        key_kernel=(key_kernel, "E A"),
        score_kernel=(score_kernel, "A"),
        score_bias=(score_bias, "A"),
    )
    # One head, so that the contract on masks is kept by the same lines as above.
    query, key, value = (x[:, :, None] for x in (query, key, value))
    _, mask = fitting_rules(query, key, None, mask)
    query, key, value = (x[:, :, 0] for x in _hidden(query, key, value, mask))
    query, key = (
        linear(x, kernel).astype(jnp.promote_types(x.dtype, jnp.float32))
        for x, kernel in ((query, query_kernel), (key, key_kernel))
    )
    aligned = query[:, :, None] + key[:, None]
    aligned = jnp.tanh(aligned if score_bias is None else aligned + score_bias)
    logits = (aligned @ score_kernel.astype(aligned.dtype))[:, None]
    weights = _softmax(logits, rendered(mask, *logits.shape[2:]))[:, 0]
    output = jnp.einsum(
        "BTS,BSO->BTO",
        weights.astype(value.dtype),
        value,
        preferred_element_type=weights.dtype,
    ).astype(value.dtype)
    return (output, weights) if return_weights else output


def _attention(
    query,
    key,
    value,
    *,
    is_hidden,
    bias,
    mask,
    scale,
    soft_cap,
    dropout_rate,
    dropout_rng,
    return_weights=False,
    return_logsumexp=False,
    implementation=None,
):
    """`dot_product_attention`; where `is_hidden`, what the mask hides from everybody is finite
    already.
    """
    check_rate(dropout_rate, dropout_rng)
    plan = attention_plan(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        soft_cap=soft_cap,
        dropout=dropout_rng is not None,
        return_weights=return_weights,
        return_logsumexp=return_logsumexp,
        implementation=implementation,
    )
    bias, mask = fitting_rules(query, key, bias, mask)
    if not is_hidden:
        query, key, value = _hidden(query, key, value, mask)
    if plan.implementation == "cudnn":
        return cudnn_attention(query, key, value, bias=bias, mask=mask, scale=scale)
    if plan.implementation == "blockwise":
        output, logsumexp = blockwise_attention(
            query,
            key,
            value,
            bias=bias,
            mask=mask,
            scale=scale,
            soft_cap=soft_cap,
            dropout_rate=dropout_rate,
            dropout_rng=dropout_rng,
            return_logsumexp=return_logsumexp,
        )
        return (output, logsumexp) if return_logsumexp else output

    logits = _logits(query, key, bias, scale, soft_cap)
    seen = rendered(mask, *logits.shape[2:])
    weights = dropout_weights(_softmax(logits, seen), dropout_rate, dropout_rng)
    output = product(
        "BKGTS,BKSO->BKGTO",
        _group(weights, value.shape[2]).astype(value.dtype),
        value.swapaxes(1, 2),
        weights.dtype,
    )
    output = output.reshape(*weights.shape[:3], value.shape[3]).swapaxes(1, 2).astype(query.dtype)
    returned = (output,) + (weights,) * return_weights
    if return_logsumexp:
        returned += (masked_logsumexp(logits, True if seen is None else seen).swapaxes(1, 2),)
    return returned if len(returned) > 1 else output


def _hidden(query, key, value, mask: Mask | None):
    """What the mask hides from everybody taken out before any product."""
    if mask is None:
        return query, key, value
    # 0 * NaN is NaN: a weight of zero does not keep an unseen value out of the product.
    seen = sight(mask, query.shape[1], key.shape[1])
    value = None if value is None else seen.of_keys(value)
    return seen.of_queries(query), seen.of_keys(key), value


def _logits(query, key, bias, scale, soft_cap):
    N, H = query.shape[2:]
    scale = H**-0.5 if scale is None else scale
    # Heads next to the batch and the scale on the query, not on the T x S logits: on a CPU twice as
    # fast.
    query = _group((query * scale).astype(query.dtype).swapaxes(1, 2), key.shape[2])
    logits = product(
        "BKGTH,BKSH->BKGTS",
        query,
        key.swapaxes(1, 2),
        jnp.promote_types(query.dtype, jnp.float32),
    )
    logits = logits.reshape(logits.shape[0], N, *logits.shape[3:])
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    return logits if bias is None else logits + rendered(bias, *logits.shape[2:])


def _softmax(logits, mask):
    return jax.nn.softmax(logits, axis=-1) if mask is None else masked_softmax(logits, mask)


def _group(x: Float[Array, "B N T L"], K: int) -> Float[Array, "B K G T L"]:
    """The N heads as K groups that share a key head."""
    return x.reshape(x.shape[0], K, x.shape[1] // K, *x.shape[2:])
