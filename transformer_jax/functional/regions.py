"""Region embeddings, which embed a token together with its neighbours, and patches of them.

Johnson and Zhang, 2015, "Effective use of word order for text categorization with convolutional
neural networks" (https://arxiv.org/abs/1412.1058): a convolution over one-hot words. "not good" and
"good, not" share no vector, which a sum of plain word embeddings cannot express.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.pooling import max_pool
from transformer_jax.functional.precision import wide


def region_embedding(
    table: Float[Array, "R V D"],
    tokens: Int[Array, "*B T"],
    is_token: Bool[Array, "*B T"],
    presence: Float[Array, "*B T"] | None = None,
) -> Float[Array, "*B T D"]:
    """Return an embedding of each token together with its neighbours, each in its own place.

        x_t = sum_r table[r, token_(t + r - R//2)]

    The sum is over the places r whose token is real. Johnson and Zhang, 2015,
    https://arxiv.org/abs/1412.1058: R one-hot words, concatenated, times a matrix. If `presence` is
    given, every row is multiplied by the presence of its token; the presence of padding is not
    read. Raises ValueError if axes do not fit, TypeError for tokens that are not integers or an
    `is_token` that is not boolean. The other functions of this file do the same, and take one text
    without the batch axis too.

    >>> table = jnp.array([[[0.0], [10.0]], [[0.0], [1.0]], [[0.0], [0.1]]])  # R = 3, V = 2, D = 1
    >>> region_embedding(table, jnp.array([[1, 0, 1]]), jnp.array([[True, True, True]]))[0, :, 0]
    Array([ 1. , 10.1,  1. ], dtype=float32)
    """
    check_arrays(
        table=(table, "R V D"),
        tokens=(tokens, "int [B] T"),
        is_token=(is_token, "bool [B] T"),
        presence=(presence, "[B] T"),
    )
    if not table.shape[0]:
        raise ValueError(f"table must hold a place at least; got the shape {table.shape}")
    places = table.shape[0]
    length, reach = tokens.shape[-1], places // 2
    ends = ((0, 0),) * (len(tokens.shape) - 1) + ((reach, reach),)
    tokens, is_token = jnp.pad(tokens, ends), jnp.pad(is_token, ends)
    presence = None if presence is None else jnp.pad(presence, ends)
    # Widened once, and indexed by place and token, so that the gradients of all places are added
    # into one array, in float32. An id outside the vocabulary gives NaN, as in `lookup`.
    table = jnp.asarray(table)
    table, dtype = wide(table), table.dtype

    def place(r: int) -> Float[Array, "*B T D"]:
        here = slice(r, r + length)
        is_real, index = is_token[..., here, None], (r, tokens[..., here])
        rows = (
            table.at[index]
            .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
            .astype(dtype)
        )
        if presence is not None:
            rows = weaken(rows, is_token[..., here], presence[..., here])
        return jnp.where(is_real, rows, 0)

    # One lookup for each place. A single lookup of all places is no faster on a CPU, and its result
    # is R times as large.
    return jnp.asarray(sum(place(r) for r in range(places)))


def weaken(
    rows: Float[Array, "*B T D"], is_token: Bool[Array, "*B T"], presence: Float[Array, "*B T"]
) -> Float[Array, "*B T D"]:
    """Multiply the row of each real token by its presence; rows of padding stay as they are.

        presence_t rows_t

    The presence is 1 for a token that is read in full, 0 for one that is absent. It is the path of
    integrated gradients between a text and the empty baseline (Sundararajan et al., 2017,
    https://arxiv.org/abs/1703.01365); see `attribution.py`. Raises as `region_embedding` does.

    >>> is_token = jnp.array([[True, True, False]])
    >>> weaken(jnp.ones((1, 3, 1)), is_token, jnp.array([[1.0, 0.5, 0.0]]))[0, :, 0]
    Array([1. , 0.5, 1. ], dtype=float32)
    """
    check_arrays(
        rows=(rows, "[B] T D"), is_token=(is_token, "bool [B] T"), presence=(presence, "[B] T")
    )
    # The presence of padding is not read: a row of NaN there would turn its gradient, on which
    # nothing depends, into NaN.
    return rows * jnp.where(is_token, presence, 1)[..., None].astype(rows.dtype)


def to_front(
    tokens: Int[Array, "*B T"],
    is_token: Bool[Array, "*B T"],
    presence: Float[Array, "*B T"] | None = None,
) -> tuple[Array, ...]:
    """Move the real tokens of every row to the front, in their order.

    The result does not show where the padding was. A `presence` of the tokens moves with them and
    comes third.

    >>> to_front(jnp.array([[0, 7, 5]]), jnp.array([[False, True, True]]))
    (Array([[7, 5, 0]], dtype=int32), Array([[ True,  True, False]], dtype=bool))
    """
    check_arrays(
        tokens=(tokens, "int [B] T"),
        is_token=(is_token, "bool [B] T"),
        presence=(presence, "[B] T"),
    )
    order = jnp.argsort(~is_token, axis=-1, stable=True)
    moved = (tokens, is_token) if presence is None else (tokens, is_token, presence)
    return tuple(jnp.take_along_axis(x, order, axis=-1) for x in moved)


def max_patches(
    x: Float[Array, "*B T D"], is_token: Bool[Array, "*B T"], width: int
) -> tuple[Float[Array, "*B P D"], Bool[Array, "*B P"]]:
    """Return the maximum of each feature over the real tokens of every patch of `width` neighbours.

    There are P = ceil(T / width) patches. The second array tells which patches hold a real token;
    the others are zero.

    >>> x, is_token = jnp.array([[[1.0], [3.0], [2.0]]]), jnp.array([[True, True, True]])
    >>> max_patches(x, is_token, 2)[0]
    Array([[[3.],
            [2.]]], dtype=float32)
    """
    check_arrays(x=(x, "[B] T D"), is_token=(is_token, "bool [B] T"))
    if width < 1:
        raise ValueError(f"width must be 1 or more; got {width}")
    *batch, T, D = x.shape
    if width == 1:
        return jnp.where(is_token[..., None], x, 0), is_token
    patches = -(-T // width)
    end = patches * width - T
    texts, ends = math.prod(batch), [(0, 0)] * len(batch) + [(0, end)]
    x = jnp.pad(x, (*ends, (0, 0))).reshape(texts * patches, width, D)
    is_token = jnp.pad(is_token, ends).reshape(texts * patches, width)
    patch, is_patch = max_pool(x, is_token), is_token.any(axis=-1)
    return patch.reshape(*batch, patches, D), is_patch.reshape(*batch, patches)
