"""The T x S matrix of queries and keys cut into blocks, and what of them a mask lets through:
something, or all.

A rule answers from the least and the largest position (or segment) of a block's queries and keys,
so nothing of size T x S is made.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from transformer_jax.attention.rule import Block, positions_of_keys, positions_of_queries


@dataclass(frozen=True)
class Grid:
    """Blocks of `queries` rows and `keys` columns from the top left; the last ones have what is
    left.
    """

    T: int
    S: int
    queries: int
    keys: int

    @property
    def rows(self) -> int:
        """Blocks of queries."""
        return -(-self.T // self.queries)

    @property
    def columns(self) -> int:
        """Blocks of keys."""
        return -(-self.S // self.keys)

    @property
    def whole(self) -> Block:
        """All of the matrix."""
        return Block.whole(self.T, self.S)


class Coverage(NamedTuple):
    """What a mask lets through of each block. Where it cannot tell, `some` is True and `every` is
    False.
    """

    some: Bool[Array, "#B rows columns"]
    every: Bool[Array, "#B rows columns"]

    def over(self, grid: Grid) -> "Coverage":
        """With axes of size 1 repeated over the blocks."""
        return Coverage(*(jnp.broadcast_to(x, (x.shape[0], grid.rows, grid.columns)) for x in self))


def split_axis(array: Shaped[Array, "..."], axis: int, size: int) -> Shaped[Array, "..."]:
    """Split an axis into blocks: [..., L, ...] -> [..., blocks, size, ...].

    What the last block lacks repeats its last entry.
    """
    length = array.shape[axis]
    blocks = -(-length // size)
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, blocks * size - length)
    array = jnp.pad(array, widths, mode="edge")
    return array.reshape(*array.shape[:axis], blocks, size, *array.shape[axis + 1 :])


def least_and_largest(array: Shaped[Array, "#B L"], size: int) -> tuple[Array, Array]:
    """Of each block of `size`: [#B, blocks] twice."""
    blocks = split_axis(array, 1, size)
    return blocks.min(axis=2), blocks.max(axis=2)


def position_ranges(rule, grid: Grid) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The least and the largest position of each block of queries [#B, rows, 1], then of keys [#B,
    1, columns].
    """
    queries = positions_of_queries(rule.query_positions, grid.whole)[:, 0, :, 0]
    first, last = least_and_largest(queries, grid.queries)
    return (first[:, :, None], last[:, :, None]), key_position_range(rule, grid)


def key_position_range(rule, grid: Grid) -> tuple[Array, Array]:
    """The least and the largest position of each block of keys: [#B, 1, columns] twice."""
    keys = positions_of_keys(rule.key_positions, grid.whole)[:, 0, 0, :]
    first, last = least_and_largest(keys, grid.keys)
    return first[:, None, :], last[:, None, :]
