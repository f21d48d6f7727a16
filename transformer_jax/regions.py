"""Region embeddings: a token is read together with its neighbours, each in its own place; patches of them.

Johnson and Zhang, 2015, "Effective use of word order for text categorization with convolutional neural
networks" (https://arxiv.org/abs/1412.1058): a convolution over one-hot words. "not good" and "good, not" share
no vector, which a sum of plain word embeddings cannot express.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.pooling import max_pool
from transformer_jax.positions import lookup
from transformer_jax.shapes import check_arrays


def region_embedding(
    table: Float[Array, "R V D"], tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"]
) -> Float[Array, "B T D"]:
    """x_t = sum_r table[r, token_(t + r - R//2)], over the places r whose token is real.

    Johnson and Zhang, 2015, https://arxiv.org/abs/1412.1058: R one-hot words, concatenated, times a matrix.
    Raises ValueError where axes do not fit, TypeError for tokens that are not integers or an `is_token` that is not
    boolean, as do the other functions of this file.

    >>> table = jnp.array([[[0.0], [10.0]], [[0.0], [1.0]], [[0.0], [0.1]]])  # R = 3 places, V = 2, D = 1
    >>> region_embedding(table, jnp.array([[1, 0, 1]]), jnp.array([[True, True, True]]))[0, :, 0]
    Array([ 1. , 10.1,  1. ], dtype=float32)
    """
    check_arrays(
        table=(table, "R V D"), tokens=(tokens, "int B T"), is_token=(is_token, "bool B T")
    )
    if not table.shape[0]:
        raise ValueError(f"table must hold a place at least; got the shape {table.shape}")
    length, reach = tokens.shape[1], table.shape[0] // 2
    ends = ((0, 0), (reach, reach))
    tokens, is_token = jnp.pad(tokens, ends), jnp.pad(is_token, ends)
    # A lookup for each place: one of all places at once is no faster on a CPU, and R times as large.
    return sum(
        jnp.where(is_token[:, r : r + length, None], lookup(table[r], tokens[:, r : r + length]), 0)
        for r in range(table.shape[0])
    )


def to_front(
    tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"]
) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    """The real tokens of every row first, in their order: where the padding stood is forgotten.

    >>> to_front(jnp.array([[0, 7, 5]]), jnp.array([[False, True, True]]))
    (Array([[7, 5, 0]], dtype=int32), Array([[ True,  True, False]], dtype=bool))
    """
    check_arrays(tokens=(tokens, "int B T"), is_token=(is_token, "bool B T"))
    order = jnp.argsort(~is_token, axis=-1, stable=True)
    return tuple(jnp.take_along_axis(x, order, axis=-1) for x in (tokens, is_token))


def max_patches(
    x: Float[Array, "B T D"], is_token: Bool[Array, "B T"], width: int
) -> tuple[Float[Array, "B P D"], Bool[Array, "B P"]]:
    """max over the real t of a patch of x_t, for every patch of `width` neighbours, P = ceil(T / width).

    With it, which patches hold a real token; the others are zero.

    >>> x, is_token = jnp.array([[[1.0], [3.0], [2.0]]]), jnp.array([[True, True, True]])
    >>> max_patches(x, is_token, 2)[0]
    Array([[[3.],
            [2.]]], dtype=float32)
    """
    check_arrays(x=(x, "B T D"), is_token=(is_token, "bool B T"))
    if width < 1:
        raise ValueError(f"width must be 1 or more; got {width}")
    B, T, D = x.shape
    if width == 1:
        return jnp.where(is_token[..., None], x, 0), is_token
    end = -T % width
    x = jnp.pad(x, ((0, 0), (0, end), (0, 0))).reshape(-1, width, D)
    is_token = jnp.pad(is_token, ((0, 0), (0, end))).reshape(-1, width)
    return max_pool(x, is_token).reshape(B, -1, D), is_token.any(axis=-1).reshape(B, -1)
