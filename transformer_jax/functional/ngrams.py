"""The evidence of n-grams: every stretch of a few tokens has a weight of its own in a table that is
found by hashing.

Wang and Manning, 2012, "Baselines and bigrams" (https://aclanthology.org/P12-2018), section 2.3: a
linear model over which n-grams a text holds, each as large as its count in one class differs from
that in the others. Hashing: Weinberger et al., 2009, https://arxiv.org/abs/0902.2206.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.positions import lookup

# Odd, their bits well spread: the constants of MurmurHash3 (Appleby, 2011, public domain) and 2**32
# / golden ratio.
STEP, MIX, END = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
# What a text's n-grams must come to before it counts whole: the reviews of IMDb have 240 in the
# median, 55 at least.
PRIOR = 10.0


def ngram_rows(
    tokens: Int[Array, "B T"], is_token: Bool[Array, "B T"], longest: int, bits: int
) -> tuple[Int[Array, "B T N"], Bool[Array, "B T N"]]:
    """The row, of 2**bits, of the n-gram of n tokens that begins at t, for n = 1 to `longest`; and
    whether there is one.

    There is where n real tokens follow each other. Two n-grams share a row with a chance of
    2**-bits (Weinberger et al., 2009, https://arxiv.org/abs/0902.2206). The rows are the same on
    every device: 32-bit integers, which wrap around. Raises ValueError where axes or numbers do not
    fit, TypeError for arrays of another kind.

    >>> is_token = jnp.array([[True, True, True, True]])
    >>> rows, there = ngram_rows(jnp.array([[7, 5, 7, 5]]), is_token, 2, 22)
    >>> bool(rows[0, 0, 1] == rows[0, 2, 1])  # "7 5" twice
    True
    >>> bool(rows[0, 0, 1] == rows[0, 1, 1])  # "7 5" and "5 7"
    False
    >>> there[0, :, 1]
    Array([ True,  True,  True, False], dtype=bool)
    """
    check_arrays(tokens=(tokens, "int B T"), is_token=(is_token, "bool B T"))
    if longest < 1:
        raise ValueError(f"longest must be 1 or more; got {longest}")
    if not 1 <= bits <= 31:
        raise ValueError(f"bits must be from 1 to 31; got {bits}")
    length = tokens.shape[1]
    ends = ((0, 0), (0, longest - 1))
    tokens, is_token = jnp.pad(tokens.astype(jnp.uint32), ends), jnp.pad(is_token, ends)
    state = jnp.zeros((tokens.shape[0], length), jnp.uint32)
    there = jnp.ones_like(state, bool)
    rows, found = [], []
    for n in range(longest):
        here = slice(n, n + length)
        state = (state ^ (tokens[:, here] + 1)) * jnp.uint32(STEP)
        state ^= state >> 15
        there = there & is_token[:, here]
        mixed = (state + jnp.uint32(n + 1)) * jnp.uint32(MIX)
        mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(END)
        rows.append((mixed >> (32 - bits)).astype(jnp.int32))
        found.append(there)
    return jnp.stack(rows, axis=-1), jnp.stack(found, axis=-1)


def ngram_shares(
    rows: Int[Array, "B T N"], is_ngram: Bool[Array, "B T N"]
) -> Float[Array, "B T N"]:
    """1 / how often the n-gram stands in its text, 0 where there is none: over a text they add up
    to 1 for each n-gram.

    Whether a review says "great" at all counts, not how often (Wang and Manning, 2012, section 2.3:
    binarized). Raises as `ngram_rows` does.

    >>> ngram_shares(jnp.array([[[7], [5], [7]]]), jnp.array([[[True], [True], [True]]]))[0, :, 0]
    Array([0.5, 1. , 0.5], dtype=float32)
    """
    check_arrays(rows=(rows, "int B T N"), is_ngram=(is_ngram, "bool B T N"))
    flat = jnp.where(is_ngram, rows, -1).reshape(rows.shape[0], -1)
    order = jnp.argsort(flat, axis=-1)
    ordered = jnp.take_along_axis(flat, order, axis=-1)
    place = jnp.broadcast_to(jnp.arange(flat.shape[1]), flat.shape)
    changes = ordered[:, 1:] != ordered[:, :-1]
    edge = jnp.ones_like(flat[:, :1], bool)
    begins = jnp.concatenate([edge, changes], axis=-1)
    ends = jnp.concatenate([changes, edge], axis=-1)
    first = jax.lax.cummax(jnp.where(begins, place, 0), axis=1)
    last = jax.lax.cummin(jnp.where(ends, place, flat.shape[1]), axis=1, reverse=True)
    times = jnp.take_along_axis(last - first + 1, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(is_ngram, 1 / times.reshape(rows.shape), 0)


def ngram_evidence(
    weight: Float[Array, "R K"],
    square: Float[Array, "R K"],
    rows: Int[Array, "B T N"],
    share: Float[Array, "B T N"],
    presence: Float[Array, "B T"] | None = None,
) -> Float[Array, "B K"]:
    """z_k = sum_g p_g weight[g, k] / sqrt(10 + sum_g p_g^2 square[g, k]) over the n-grams g of a
    text, each once.

    With the log-count ratio r_g, `square` = r_g^2 and `weight` = r_g w_g it is w . x / sqrt(10 +
    ||x||^2) for x_g = r_g: a text counts the same whatever its length, unless it says little (Wang
    and Manning, 2012, but for the norm). A place of an n-gram counts by its `share`, times the
    `presence` of the tokens there where it is given. Raises as `ngram_rows` does.

    >>> weight, square = jnp.array([[0.0], [6.0], [-1.0]]), jnp.array([[1.0], [26.0], [1.0]])
    >>> ngram_evidence(weight, square, jnp.array([[[1], [2]]]), jnp.array([[[1.0], [0.0]]]))
    Array([[1.]], dtype=float32)
    """
    check_arrays(
        weight=(weight, "R K"),
        square=(square, "R K"),
        rows=(rows, "int B T N"),
        share=(share, "B T N"),
        presence=(presence, "B T"),
    )
    there = share[..., None] > 0
    terms = jnp.where(there, lookup(weight, rows), 0) * share[..., None]
    squares = jnp.where(there, lookup(square, rows), 0) * share[..., None]
    if presence is not None:
        # Not read where there is no token: a NaN there would make NaN of gradients that do not
        # depend on it.
        p = _products(jnp.where(there[:, :, 0, 0], presence, 1), rows.shape[2])[..., None]
        terms, squares = terms * p.astype(terms.dtype), squares * (p * p).astype(squares.dtype)
    return terms.sum(axis=(1, 2)) / jnp.sqrt(PRIOR + squares.sum(axis=(1, 2)))


def _products(presence: Float[Array, "B T"], longest: int) -> Float[Array, "B T N"]:
    """Of the n tokens from each on, for n = 1 to `longest`; what is behind the end counts as 1."""
    length = presence.shape[1]
    padded = jnp.pad(presence, ((0, 0), (0, longest - 1)), constant_values=1)
    places = jnp.stack([padded[:, n : n + length] for n in range(longest)], axis=-1)
    return jnp.cumprod(places, axis=-1)
