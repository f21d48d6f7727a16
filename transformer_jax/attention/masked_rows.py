"""Zeros in place of what a mask hides from everybody, before any product: 0 * NaN is NaN, in values
and gradients.

A weight of zero does not keep an unseen key or value out of a product, nor a query that sees
nothing out of the gradient of the keys.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Shaped

from transformer_jax.attention.coverage import Grid
from transformer_jax.attention.masks import Mask
from transformer_jax.attention.rule import Block, rendered
from transformer_jax.parallel.mesh import vary_like

# Edge of the blocks in which a mask is looked through; what is smaller than one is looked at whole.
EDGE = 512


class MaskedRows(NamedTuple):
    """Which queries see anything, and which keys are seen by anybody."""

    queries: Bool[Array, "#B #N T"]
    keys: Bool[Array, "#B #N S"]

    @property
    def by_head(self) -> bool:
        """Whether it differs from head to head."""
        return max(self.queries.shape[1], self.keys.shape[1]) > 1

    def zero_queries(self, query: Shaped[Array, "B T N H"]) -> Shaped[Array, "B T N H"]:
        """Zeros in the queries that see nothing."""
        return jnp.where(self.queries.swapaxes(1, 2)[..., None], query, 0)

    def zero_keys(self, key: Shaped[Array, "B S K H"]) -> Shaped[Array, "B S K H"]:
        """Zeros in the keys that nobody sees: a key head is seen where any head of its group may
        see it.
        """
        seen, K = self.keys, key.shape[2]
        if seen.shape[1] > 1:
            seen = seen.reshape(seen.shape[0], K, seen.shape[1] // K, seen.shape[2]).any(axis=2)
        return jnp.where(seen.swapaxes(1, 2)[..., None], key, 0)

    def zero_inputs_q(self, x: Shaped[Array, "B T D"]) -> Shaped[Array, "B T D"]:
        """Zeros in the rows that see nothing with any head."""
        return jnp.where(self.queries.any(axis=1)[..., None], x, 0)

    def zero_inputs_kv(self, x: Shaped[Array, "B S E"]) -> Shaped[Array, "B S E"]:
        """Zeros in the rows that no head sees."""
        return jnp.where(self.keys.any(axis=1)[..., None], x, 0)

    def zero_isolated_rows(self, x: Shaped[Array, "B T D"]) -> Shaped[Array, "B T D"]:
        """Zeros in the rows of a self-attention that see nothing and that nobody sees.

        Norms and feed-forward networks read every row: a NaN there would reach their gradients as 0
        * NaN.
        """
        return jnp.where((self.queries.any(axis=1) | self.keys.any(axis=1))[..., None], x, 0)


def find_masked_rows(mask: Mask, T: int, S: int) -> MaskedRows:
    """Who sees and is seen, found without the T x S matrix: only blocks that are seen in part are
    rendered.

    An accelerator renders all of it inside its sums, without storing it: loops cost it more than
    arithmetic.
    """
    if T == S and mask.includes_diagonal:
        everybody = jnp.ones((1, 1, T), bool)  # which XLA takes out again
        return MaskedRows(everybody, everybody)
    if (T <= EDGE and S <= EDGE) or jax.default_backend() != "cpu":
        array = rendered(mask, T, S)
        return MaskedRows(
            jnp.broadcast_to(array.any(axis=3), (*array.shape[:2], T)),
            jnp.broadcast_to(array.any(axis=2), (*array.shape[:2], S)),
        )
    grid = Grid(T, S, min(T, EDGE), min(S, EDGE))
    some, every = mask.coverage(grid)
    in_part = (some & ~every).any(axis=0)
    columns = jnp.argsort(~in_part, axis=1, stable=True)
    shape = jax.eval_shape(lambda: mask.block(grid.whole)).shape[:2]

    def row(i, seen):
        def block(j, seen):
            query_start = jnp.minimum(i * grid.queries, T - grid.queries)
            key_start = jnp.minimum(columns[i, j] * grid.keys, S - grid.keys)
            array = mask.block(Block(query_start, grid.queries, key_start, grid.keys, T, S))
            return MaskedRows(
                _mark(seen.queries, array.any(axis=3), query_start, grid.queries),
                _mark(seen.keys, array.any(axis=2), key_start, grid.keys),
            )

        return lax.fori_loop(0, in_part[i].sum(), block, seen)

    whole = MaskedRows(
        jnp.repeat(every.any(axis=2), grid.queries, axis=1)[:, None, :T],
        jnp.repeat(every.any(axis=1), grid.keys, axis=1)[:, None, :S],
    )
    start = MaskedRows(jnp.zeros((*shape, T), bool), jnp.zeros((*shape, S), bool))
    start = vary_like(start, mask)
    part = lax.fori_loop(0, grid.rows, row, start)
    return MaskedRows(*(a | b for a, b in zip(whole, part, strict=True)))


def _mark(seen, part, start, size):
    part = jnp.broadcast_to(part, (*seen.shape[:2], size))
    old = lax.dynamic_slice_in_dim(seen, start, size, axis=2)
    return lax.dynamic_update_slice_in_dim(seen, old | part, start, axis=2)
