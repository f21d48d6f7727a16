"""N-gram evidence: each sequence of a few tokens has its own weights, in a table found by hashing.

Wang and Manning, 2012, "Baselines and bigrams" (https://aclanthology.org/P12-2018), section 2.3: a
linear model over the n-grams that a text contains, each scaled by how far its count in one class
differs from that in the others. Hashing: Weinberger et al., 2009, https://arxiv.org/abs/0902.2206.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.positions import lookup
from transformer_jax.functional.precision import wide_dtype

# Odd multipliers with well-spread bits: the constants of MurmurHash3 (Appleby, 2011, public domain)
# and 2**32 / golden ratio.
STEP, MIX, END = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
# Added to the squared norm of a text's n-grams, so that a text that says little counts less. The
# squared norm of IMDb reviews is 240 in the median and at least 55.
PRIOR = 10.0


def ngram_rows(
    tokens: Int[Array, "*B T"], is_token: Bool[Array, "*B T"], longest: int, bits: int
) -> tuple[Int[Array, "*B T N"], Bool[Array, "*B T N"]]:
    """Return the table rows of the n-grams that begin at each token, for n = 1 to `longest`.

    The second array tells whether there is such an n-gram: n real tokens must follow each other.
    The table has 2**bits rows. Two n-grams share a row with probability 2**-bits (Weinberger et
    al., 2009, https://arxiv.org/abs/0902.2206). The rows are the same on every device, because they
    are computed in 32-bit integers, which wrap around. Raises ValueError if axes or numbers do not
    fit, TypeError for arrays of another kind. All functions of this file take one text without the
    batch axis too.

    >>> is_token = jnp.array([[True, True, True, True]])
    >>> rows, there = ngram_rows(jnp.array([[7, 5, 7, 5]]), is_token, 2, 22)
    >>> bool(rows[0, 0, 1] == rows[0, 2, 1])  # "7 5" twice
    True
    >>> bool(rows[0, 0, 1] == rows[0, 1, 1])  # "7 5" and "5 7"
    False
    >>> there[0, :, 1]
    Array([ True,  True,  True, False], dtype=bool)
    """
    check_arrays(tokens=(tokens, "int [B] T"), is_token=(is_token, "bool [B] T"))
    if longest < 1:
        raise ValueError(f"longest must be 1 or more; got {longest}")
    if not 1 <= bits <= 31:
        raise ValueError(f"bits must be from 1 to 31; got {bits}")
    *batch, length = tokens.shape
    ends = [(0, 0)] * len(batch) + [(0, longest - 1)]
    tokens, is_token = jnp.pad(tokens.astype(jnp.uint32), ends), jnp.pad(is_token, ends)
    state = jnp.zeros((*batch, length), jnp.uint32)
    there = jnp.ones_like(state, bool)
    rows, found = [], []
    for n in range(longest):
        here = slice(n, n + length)
        state = (state ^ (tokens[..., here] + 1)) * jnp.uint32(STEP)
        state ^= state >> 15
        there = there & is_token[..., here]
        mixed = (state + jnp.uint32(n + 1)) * jnp.uint32(MIX)
        mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(END)
        rows.append((mixed >> (32 - bits)).astype(jnp.int32))
        found.append(there)
    return jnp.stack(rows, axis=-1), jnp.stack(found, axis=-1)


def ngram_shares(
    rows: Int[Array, "*B T N"], is_ngram: Bool[Array, "*B T N"]
) -> Float[Array, "*B T N"]:
    """Return 1 / the number of times that the n-gram occurs in its text, or 0 if there is none.

    Over a text the shares of one n-gram add up to 1: whether a review says "great" counts, not how
    often (Wang and Manning, 2012, section 2.3: binarized). Raises as `ngram_rows` does.

    >>> ngram_shares(jnp.array([[[7], [5], [7]]]), jnp.array([[[True], [True], [True]]]))[0, :, 0]
    Array([0.5, 1. , 0.5], dtype=float32)
    """
    check_arrays(rows=(rows, "int [B] T N"), is_ngram=(is_ngram, "bool [B] T N"))
    flat = jnp.where(is_ngram, rows, -1).reshape(*rows.shape[:-2], -1)
    order = jnp.argsort(flat, axis=-1)
    ordered = jnp.take_along_axis(flat, order, axis=-1)
    place = jnp.broadcast_to(jnp.arange(flat.shape[-1]), flat.shape)
    changes = ordered[..., 1:] != ordered[..., :-1]
    edge = jnp.ones_like(flat[..., :1], bool)
    begins = jnp.concatenate([edge, changes], axis=-1)
    ends = jnp.concatenate([changes, edge], axis=-1)
    axis = flat.ndim - 1
    first = jax.lax.cummax(jnp.where(begins, place, 0), axis=axis)
    last = jax.lax.cummin(jnp.where(ends, place, flat.shape[-1]), axis=axis, reverse=True)
    times = jnp.take_along_axis(last - first + 1, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(is_ngram, 1 / times.reshape(rows.shape).astype(jnp.float32), 0)


def ngram_evidence(
    weight: Float[Array, "R K"],
    square: Float[Array, "R K"],
    rows: Int[Array, "*B T N"],
    share: Float[Array, "*B T N"],
    presence: Float[Array, "*B T"] | None = None,
) -> Float[Array, "*B K"]:
    """Return the evidence of a text's n-grams for each class k.

        z_k = sum_g p_g weight[g, k] / sqrt(10 + sum_g p_g^2 square[g, k])

    The sums are over the n-grams g of the text, each counted once. With the log-count ratio r_g,
    `square` = r_g^2 and `weight` = r_g w_g, z is w . x / sqrt(10 + ||x||^2) for x_g = r_g: a text
    counts the same whatever its length, unless it says little (Wang and Manning, 2012, except for
    the norm). An occurrence of an n-gram counts by its `share`. Its p is the product of the
    `presence` of its tokens, or 1 if that is not given. The evidence is in float32 or wider. Raises
    as `ngram_rows` does.

    >>> weight, square = jnp.array([[0.0], [6.0], [-1.0]]), jnp.array([[1.0], [26.0], [1.0]])
    >>> ngram_evidence(weight, square, jnp.array([[[1], [2]]]), jnp.array([[[1.0], [0.0]]]))
    Array([[1.]], dtype=float32)
    """
    check_arrays(
        weight=(weight, "R K"),
        square=(square, "R K"),
        rows=(rows, "int [B] T N"),
        share=(share, "[B] T N"),
        presence=(presence, "[B] T"),
    )
    share = share[..., None].astype(wide_dtype(weight.dtype))
    terms, squares = (
        jnp.where(share > 0, lookup(table, rows).astype(share.dtype), 0) * share
        for table in (weight, square)
    )
    if presence is not None:
        # The presence is not read where there is no token: a NaN there would turn gradients that do
        # not depend on it into NaN.
        presence = jnp.where(share[..., 0, 0] > 0, presence.astype(share.dtype), 1)
        p = _products(presence, rows.shape[-1])[..., None]
        terms, squares = terms * p, squares * p * p
    return terms.sum(axis=(-3, -2)) / jnp.sqrt(PRIOR + squares.sum(axis=(-3, -2)))


def _products(presence: Float[Array, "*B T"], longest: int) -> Float[Array, "*B T N"]:
    """Return products of the presence of n tokens from each on, n = 1..longest; 1 past the end."""
    *batch, length = presence.shape
    ends = [(0, 0)] * len(batch) + [(0, longest - 1)]
    padded = jnp.pad(presence, ends, constant_values=1)
    places = jnp.stack([padded[..., n : n + length] for n in range(longest)], axis=-1)
    return jnp.cumprod(places, axis=-1)
