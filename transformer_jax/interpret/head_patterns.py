"""Patterns of attention heads: scores that summarize attention weights, and PCA.

Clark et al., 2019, "What does BERT look at?" (https://arxiv.org/abs/1906.04341), describe heads
that attend to the previous token, the next token, the separator, or broadly to all tokens. Every
score in this file is a mean over the queries that are not padding, and is between 0 and 1.
Positions are counted without padding, and the weights of padding are never read.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.positions import count_positions


def weight_at_offset(
    weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"], offset: int | Int[Array, ""]
) -> Float[Array, " N"]:
    """Compute the mean of w[t, t + offset] for each head.

    The mean is over the queries t for which t and t + offset are both real tokens; it is 0 if there
    are none. An offset of -1 is the previous token, 0 the token itself, +1 the next.
    """
    position = count_positions(is_token)
    there = (position[:, None, :] - position[:, :, None] == offset) & _pairs(is_token)
    return _mean(jnp.where(there[:, None], weights, 0).sum(axis=-1), there.any(axis=-1))


def best_offset(
    weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"]
) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """Find the offset with the largest `weight_at_offset` for each head, and that weight.

    Only offsets that at least half of the real queries have are compared, because a single query
    would decide the score of a far offset.
    """
    offsets = jnp.arange(1 - is_token.shape[1], is_token.shape[1])
    offsets = offsets[jnp.argsort(jnp.abs(offsets))]  # the nearest offset wins a tie
    tokens = is_token.sum(axis=-1)

    def score(offset):
        have = jnp.maximum(tokens - jnp.abs(offset), 0).sum()
        return jnp.where(
            2 * have >= tokens.sum(), weight_at_offset(weights, is_token, offset), -jnp.inf
        )

    # One offset after another: all at once would take T times the memory of the weights.
    scores = lax.map(score, offsets)
    # With a tolerance, so that rounding does not decide between equal scores.
    best = (scores >= scores.max(axis=0) - 1e-6).argmax(axis=0)
    return offsets[best], jnp.take_along_axis(scores, best[None], axis=0)[0]


def weight_on(
    weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"], is_target: Bool[Array, "B T"]
) -> Float[Array, " N"]:
    """Compute the mean total weight of real queries on the keys in `is_target`, for each head.

    The keys may be the separators, for example.
    """
    there = _pairs(is_token) & is_target[:, None, :]
    return _mean(jnp.where(there[:, None], weights, 0).sum(axis=-1), is_token)


def first_tokens(is_token: Bool[Array, "B T"]) -> Bool[Array, "B T"]:
    """Mark the first real token of each row, for use with `weight_on`."""
    return is_token & (jnp.cumsum(is_token, axis=-1) == 1)


def weight_received(
    weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"]
) -> Float[Array, "B N T"]:
    """Compute the share of a text's attention weight that each key receives, for each head.

    The shares of the real keys sum to 1.
    """
    weights = jnp.where(_pairs(is_token)[:, None], weights, 0)
    return _divide(weights.sum(axis=2), is_token.sum(axis=-1)[:, None, None])


def broadness(weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"]) -> Float[Array, " N"]:
    """Compute the mean normalized entropy of the attention weights, for each head:

        -sum_s w[t, s] log w[t, s] / log(number of real keys)

    1 is uniform attention, 0 is attention to a single key. The query of a text of one token scores
    0.
    """
    weights = jnp.where(_pairs(is_token)[:, None], weights, 0)
    entropy = -jax.scipy.special.xlogy(weights, weights).sum(axis=-1)
    keys = jnp.maximum(is_token.sum(axis=-1), 2).astype(weights.dtype)[:, None, None]
    return _mean(entropy / jnp.log(keys), is_token)


def head_scores(
    weights: Float[Array, "B N T T"],
    is_token: Bool[Array, "B T"],
    is_separator: Bool[Array, "B T"],
) -> dict[str, Array]:
    """Compute all scores of this file by name, each of shape [N].

    "offset" is the offset of the score "fixed".
    """
    offset, fixed = best_offset(weights, is_token)
    return {
        "previous": weight_at_offset(weights, is_token, -1),
        "next": weight_at_offset(weights, is_token, 1),
        "itself": weight_at_offset(weights, is_token, 0),
        "first": weight_on(weights, is_token, first_tokens(is_token)),
        "separator": weight_on(weights, is_token, is_separator),
        "fixed": fixed,
        "offset": offset,
        "broad": broadness(weights, is_token),
    }


def pca(x: Float[Array, "n D"], components: int = 2) -> Float[Array, "n k"]:
    """Project points onto their principal components: U S of the SVD of x minus its mean.

    Pearson, 1901. The sign of a component is arbitrary; it is chosen so that the coordinate of
    largest absolute value is positive. If there are fewer points or features than components, the
    remaining coordinates are zeros.
    """
    u, s, _ = jnp.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    points = (u * s)[:, :components]
    largest = jnp.take_along_axis(points, jnp.abs(points).argmax(axis=0)[None], axis=0)
    points = points * jnp.where(largest < 0, -1, 1).astype(points.dtype)
    return jnp.pad(points, ((0, 0), (0, components - points.shape[1])))


def _pairs(is_token: Bool[Array, "B T"]) -> Bool[Array, "B T T"]:
    """Mark the pairs of a real query and a real key."""
    return is_token[:, :, None] & is_token[:, None, :]


def _mean(scores: Float[Array, "B N T"], counted: Bool[Array, "B T"]) -> Float[Array, " N"]:
    return _divide(jnp.where(counted[:, None], scores, 0).sum(axis=(0, 2)), counted.sum())


def _divide(total: Array, count: Array) -> Array:
    """Divide, with 0 / 0 = 0."""
    return total / jnp.maximum(count, 1).astype(total.dtype)


BROAD = 0.9  # normalized entropy from which a head is called broad
MOST = 0.5  # mean weight from which a head has a pattern, as in Clark et al.


def head_name(scores: dict[str, float]) -> str:
    """Choose the name of a head's pattern from its scores.

    It is "broad" if that score is 0.9 or more. Otherwise it is the highest of the other scores (the
    first of equal ones) if this is 0.5 or more, or "other".
    """
    if scores["broad"] >= BROAD:
        return "broad"
    names = ("previous", "next", "itself", "first", "separator", "fixed")
    best = max(names, key=lambda name: scores[name])
    if scores[best] < MOST:
        return "other"
    return f"offset {int(scores['offset']):+d}" if best == "fixed" else best
