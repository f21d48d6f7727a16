"""The T x S matrix of queries and keys cut into blocks, and which blocks a mask lets through.

For each block a mask tells whether it lets anything through, and whether it lets everything
through. It decides this from the smallest and the largest position (or segment) of the block's
queries and keys, so that nothing of size T x S is computed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from transformer_jax.attention.rule import Block, positions_of_keys, positions_of_queries


@dataclass(frozen=True)
class Grid:
    """Blocks of `queries` rows and `keys` columns that cover the T x S matrix from the top left.

    The last block of an axis may be smaller.
    """

    T: int
    S: int
    queries: int
    keys: int

    @property
    def rows(self) -> int:
        """The number of blocks of queries."""
        return -(-self.T // self.queries)

    @property
    def columns(self) -> int:
        """The number of blocks of keys."""
        return -(-self.S // self.keys)

    @property
    def whole(self) -> Block:
        """The block that covers the whole matrix."""
        return Block.whole(self.T, self.S)


class Coverage(NamedTuple):
    """Two flags for each block of a grid.

    `some` is True if a mask lets anything through, `every` if it lets everything through. A mask
    that cannot tell sets `some` to True and `every` to False.
    """

    some: Bool[Array, "#B rows columns"]
    every: Bool[Array, "#B rows columns"]

    def over(self, grid: Grid) -> "Coverage":
        """Return the coverage with axes of size 1 repeated over the blocks of the grid."""
        return Coverage(*(jnp.broadcast_to(x, (x.shape[0], grid.rows, grid.columns)) for x in self))


def split_axis(array: Shaped[Array, "..."], axis: int, size: int) -> Shaped[Array, "..."]:
    """Split an axis into blocks of `size`: [..., L, ...] -> [..., blocks, size, ...].

    The last block is filled up with copies of the last entry.
    """
    length = array.shape[axis]
    blocks = -(-length // size)
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, blocks * size - length)
    array = jnp.pad(array, widths, mode="edge")
    return array.reshape(*array.shape[:axis], blocks, size, *array.shape[axis + 1 :])


def least_and_largest(array: Shaped[Array, "*B L"], size: int) -> tuple[Array, Array]:
    """Return the smallest and the largest entry of each block of `size`, each [#B, blocks]."""
    blocks = split_axis(jnp.atleast_2d(array), 1, size)
    return blocks.min(axis=2), blocks.max(axis=2)


def position_ranges(rule, grid: Grid) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the smallest and the largest position of each block of queries, and of keys.

    The two arrays for the queries are [#B, rows, 1], the two for the keys [#B, 1, columns].
    """
    queries = positions_of_queries(rule.query_positions, grid.whole)[:, 0, :, 0]
    first, last = least_and_largest(queries, grid.queries)
    return (first[:, :, None], last[:, :, None]), key_position_range(rule, grid)


def key_position_range(rule, grid: Grid) -> tuple[Array, Array]:
    """Return the smallest and the largest position of each block of keys, each [#B, 1, columns]."""
    keys = positions_of_keys(rule.key_positions, grid.whole)[:, 0, 0, :]
    first, last = least_and_largest(keys, grid.keys)
    return first[:, None, :], last[:, None, :]
