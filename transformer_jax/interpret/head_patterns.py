"""What a head attends to: the weights of attention reduced to a few scores, and points in two
dimensions.

Clark et al., 2019, "What does BERT look at?" (https://arxiv.org/abs/1906.04341): heads that look at
the token before, the token after, the separator, or broadly at everything. Every score here is a
mean over the real queries, between 0 and 1; positions are counted over the real tokens, and nothing
at a padded place is read.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.positions import count_positions


def weight_at_offset(
    weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"], offset: int | Int[Array, ""]
) -> Float[Array, " N"]:
    """The mean of w[t, t + offset] over the real queries t that have a real token there; 0 where
    none has.

    -1 is the previous token, 0 the token itself, +1 the next.
    """
    position = count_positions(is_token)
    there = (position[:, None, :] - position[:, :, None] == offset) & _pairs(is_token)
    return _mean(jnp.where(there[:, None], weights, 0).sum(axis=-1), there.any(axis=-1))


def best_offset(
    weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"]
) -> tuple[Int[Array, " N"], Float[Array, " N"]]:
    """The offset k with the largest `weight_at_offset`, and that weight.

    Only an offset that half of the real queries have is compared: at the far ends a single query
    would decide.
    """
    offsets = jnp.arange(1 - is_token.shape[1], is_token.shape[1])
    offsets = offsets[jnp.argsort(jnp.abs(offsets))]  # of equal ones the nearest
    tokens = is_token.sum(axis=-1)

    def score(offset):
        have = jnp.maximum(tokens - jnp.abs(offset), 0).sum()
        return jnp.where(
            2 * have >= tokens.sum(), weight_at_offset(weights, is_token, offset), -jnp.inf
        )

    scores = lax.map(score, offsets)  # one after another: together they would be T times the maps
    best = (scores >= scores.max(axis=0) - 1e-6).argmax(axis=0)  # not what rounding prefers
    return offsets[best], jnp.take_along_axis(scores, best[None], axis=0)[0]


def weight_on(
    weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"], is_target: Bool[Array, "B T"]
) -> Float[Array, " N"]:
    """The mean weight that the real queries put on the keys of `is_target`, together: a separator,
    for instance.
    """
    there = _pairs(is_token) & is_target[:, None, :]
    return _mean(jnp.where(there[:, None], weights, 0).sum(axis=-1), is_token)


def first_tokens(is_token: Bool[Array, "B T"]) -> Bool[Array, "B T"]:
    """True at the first real token of each row, for `weight_on`."""
    return is_token & (jnp.cumsum(is_token, axis=-1) == 1)


def weight_received(
    weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"]
) -> Float[Array, "B N T"]:
    """How much of the weight of each text goes to each of its keys: over the real keys it adds up
    to 1.
    """
    weights = jnp.where(_pairs(is_token)[:, None], weights, 0)
    return _divide(weights.sum(axis=2), is_token.sum(axis=-1)[:, None, None])


def broadness(weights: Float[Array, "B N T T"], is_token: Bool[Array, "B T"]) -> Float[Array, " N"]:
    """The mean of -sum_s w[t, s] log w[t, s] / log(number of real keys): 1 is uniform, 0 is one
    key.

    A text of one token has nothing to be broad over: its queries score 0.
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
    """Every score of this file by its name, [N] each; "offset" is the k of "fixed"."""
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
    """Coordinates along the directions of the largest variance: U S of the SVD of x minus its mean.

    Pearson, 1901. A direction is defined up to its sign: the largest coordinate of each is made
    positive. Where there are fewer points or features than components, the rest are zeros.
    """
    u, s, _ = jnp.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    points = (u * s)[:, :components]
    largest = jnp.take_along_axis(points, jnp.abs(points).argmax(axis=0)[None], axis=0)
    points = points * jnp.where(largest < 0, -1, 1).astype(points.dtype)
    return jnp.pad(points, ((0, 0), (0, components - points.shape[1])))


def _pairs(is_token: Bool[Array, "B T"]) -> Bool[Array, "B T T"]:
    """Real queries and real keys."""
    return is_token[:, :, None] & is_token[:, None, :]


def _mean(scores: Float[Array, "B N T"], counted: Bool[Array, "B T"]) -> Float[Array, " N"]:
    return _divide(jnp.where(counted[:, None], scores, 0).sum(axis=(0, 2)), counted.sum())


def _divide(total: Array, count: Array) -> Array:
    """0 where there is nothing to divide by."""
    return total / jnp.maximum(count, 1).astype(total.dtype)


BROAD = 0.9  # of the entropy of uniform weights: nothing is picked out
MOST = 0.5  # of the weight, as Clark et al. count


def head_name(scores: dict[str, float]) -> str:
    """What a head is by its scores: "broad", the highest of those that name a place (of equal ones
    the first), or "other" where no place gets half of the weight."""
    if scores["broad"] >= BROAD:
        return "broad"
    names = ("previous", "next", "itself", "first", "separator", "fixed")
    best = max(names, key=lambda name: scores[name])
    if scores[best] < MOST:
        return "other"
    return f"offset {int(scores['offset']):+d}" if best == "fixed" else best
