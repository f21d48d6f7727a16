"""Pooling: one vector for a whole text. Padding never counts; a row without tokens gives zeros.

The arrays are a batch, x [B, T, D] and is_token [B, T], or one text, [T, D] and [T].
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.positions import count_positions
from transformer_jax.functional.precision import wide, wide_dtype


def cls_pool(x: Float[Array, "*B T D"], is_token: Bool[Array, "*B T"]) -> Float[Array, "*B D"]:
    """Return the vector of the first real token, on whichever side the padding is.

    [CLS] is there (Devlin et al., 2019). All poolings raise ValueError if axes do not fit, and
    TypeError if `is_token` is not boolean.

    >>> x = jnp.array([[[9.0], [1.0], [2.0]]])
    >>> cls_pool(x, jnp.array([[False, True, True]]))
    Array([[1.]], dtype=float32)
    """
    _check(x, is_token)
    first = is_token & (count_positions(is_token) == 0)
    return _select(x, first)


def last_pool(x: Float[Array, "*B T D"], is_token: Bool[Array, "*B T"]) -> Float[Array, "*B D"]:
    """Return the vector of the last real token.

    With causal attention, it is the token that has seen the whole text. Radford et al., 2018,
    "Improving language understanding by generative pre-training", section 3.2. Raises as `cls_pool`
    does.

    >>> last_pool(jnp.array([[[1.0], [2.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[2.]], dtype=float32)
    """
    _check(x, is_token)
    count = is_token.sum(axis=-1, keepdims=True, dtype=jnp.int32)
    return _select(x, is_token & (count_positions(is_token) == count - 1))


def mean_pool(x: Float[Array, "*B T D"], is_token: Bool[Array, "*B T"]) -> Float[Array, "*B D"]:
    """Return the mean of the vectors of the real tokens.

        sum_t x_t / count

    The sum is in float32 or wider. Reimers and Gurevych, 2019, https://arxiv.org/abs/1908.10084,
    section 3. Raises as `cls_pool` does.

    >>> mean_pool(jnp.array([[[1.0], [2.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[1.5]], dtype=float32)
    """
    _check(x, is_token)
    x = jnp.asarray(x)
    dtype = wide_dtype(x.dtype)
    total = jnp.where(is_token[..., None], x, 0).sum(axis=-2, dtype=dtype)
    count = jnp.maximum(is_token.sum(axis=-1, keepdims=True), 1)
    return (total / count.astype(dtype)).astype(x.dtype)


def max_pool(x: Float[Array, "*B T D"], is_token: Bool[Array, "*B T"]) -> Float[Array, "*B D"]:
    """Return the maximum of each feature over the real tokens.

        max_t x_t

    Collobert et al., 2011, https://arxiv.org/abs/1103.0398: the maximum over time. Raises as
    `cls_pool` does.

    >>> x = jnp.array([[[1.0, 5.0], [2.0, 3.0], [9.0, 9.0]]])
    >>> max_pool(x, jnp.array([[True, True, False]]))
    Array([[2., 5.]], dtype=float32)
    """
    _check(x, is_token)
    # Selected by index instead of `.max()`, whose gradient looks for the entries equal to the
    # maximum. XLA may compute `x` once for the maximum and again where it is compared. On a CPU the
    # two may round differently, and then no entry is equal. A barrier does not prevent this.
    x = jnp.asarray(x)
    # At least this, so that a token with -inf is chosen before padding.
    seen = jnp.maximum(jax.lax.stop_gradient(x), jnp.finfo(x.dtype).min)
    visible = jnp.where(is_token[..., None], seen, -jnp.inf)
    largest = jnp.argmax(visible, axis=-2, keepdims=True)
    is_largest = jnp.arange(x.shape[-2])[:, None] == largest
    return jnp.where(is_largest & is_token[..., None], x, 0).sum(axis=-2, dtype=x.dtype)


def layer_weighted_pool(
    layers: Float[Array, "L *B T D"], is_token: Bool[Array, "*B T"], logits: Float[Array, " L"]
) -> Float[Array, "*B D"]:
    """Return a weighted sum of the mean poolings of all layers, with learned weights.

        sum_l softmax(logits)_l mean_pool(layers[l])

    Peters et al., 2018 (ELMo), https://arxiv.org/abs/1802.05365, equation 1, over whole texts.
    Raises as the other poolings do, and ValueError if there is not one logit for each layer.

    >>> layers = jnp.stack([jnp.zeros((1, 2, 1)), jnp.full((1, 2, 1), 4.0)])
    >>> layer_weighted_pool(layers, jnp.ones((1, 2), bool), jnp.zeros(2))
    Array([[2.]], dtype=float32)
    """
    check_arrays(
        is_token=(is_token, "bool [B] T"),
        layers=(layers, f"L {'B T' if np.ndim(is_token) == 2 else 'T'} D"),
        logits=(logits, "L"),
    )
    layers = jnp.asarray(layers)
    pooled = jax.vmap(mean_pool, in_axes=(0, None))(wide(layers), is_token)
    share = jax.nn.softmax(logits.astype(pooled.dtype))
    return jnp.einsum("L,L...->...", share, pooled).astype(layers.dtype)


def _check(x, is_token):
    check_arrays(x=(x, "[B] T D"), is_token=(is_token, "bool [B] T"))


def _select(x, one_hot):
    # `where` and a sum, not a product: 0 * NaN in the padding would be NaN.
    x = jnp.asarray(x)
    return jnp.where(one_hot[..., None], x, 0).sum(axis=-2, dtype=x.dtype)


POOLINGS = {"cls": cls_pool, "mean": mean_pool, "max": max_pool, "last": last_pool}
