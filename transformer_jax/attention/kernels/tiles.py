"""What blockwise attention works on in one step: some examples, some key heads, a block of queries
and one of keys.

The last block of an axis ends with the axis and has the size of the others, so that no array is
padded and no slice leaves its array. What it shares with the block before is masked where it would
count twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from transformer_jax.attention.biases import Bias
from transformer_jax.attention.kernels.tile_sizes import Tiling
from transformer_jax.attention.masks import Mask
from transformer_jax.attention.rule import Block
from transformer_jax.functional.dropout import keep_weights
from transformer_jax.functional.precision import product


@dataclass(frozen=True)
class Settings:
    """What is known before tracing."""

    tiling: Tiling
    scale: float
    soft_cap: float | None
    dropout_rate: float
    operands: jnp.dtype  # of the matrix products
    returns_logsumexp: bool


class Tile(NamedTuple):
    """Where a tile lies."""

    block: Block
    group: Array  # of examples
    row: Array
    key_head: Array
    new_key: Array | int  # the first that no block before has


class Visits(NamedTuple):
    """What each block of queries visits: the bounds of the loops. X is 1 where all examples have
    the same.

    The columns of the grid are in the order: those seen whole, those seen in part, the others.
    """

    columns: Int[Array, "X rows columns"]
    whole: Int[Array, "X rows"]  # how many are seen whole
    seen: Int[Array, "X rows"]  # how many are seen whole or in part
    first: Int[Array, "X rows"]  # the first of them from the left


def visits(mask: Mask | None, tiling: Tiling) -> Visits:
    """The blocks of keys by block of queries; X is else the number of groups of examples."""
    grid = tiling.grid
    if mask is None:
        some = every = jnp.ones((1, grid.rows, grid.columns), bool)
    else:
        some, every = mask.coverage(grid)
    if grid.S % grid.keys:  # the last column has keys that the one before has
        every = every.at[:, :, -1].set(False)
    if some.shape[0] > 1 or every.shape[0] > 1:
        shape = (-1, tiling.examples, grid.rows, grid.columns)
        some, every = jnp.broadcast_arrays(some, every)
        some, every = some.reshape(shape).any(axis=1), every.reshape(shape).all(axis=1)
    every &= some
    columns = jnp.argsort(jnp.where(every, 0, jnp.where(some, 1, 2)), axis=2, stable=True)
    return Visits(columns, every.sum(axis=2), some.sum(axis=2), some.argmax(axis=2))


class Tiles:
    """Reads, writes and masks tiles; the arrays are [B, K, G, T, ...] and [B, K, S, ...], N = K G."""

    def __init__(
        self,
        settings: Settings,
        query: Float[Array, "B K G T H"],
        bias: Bias | None,
        mask: Mask | None,
        rng: PRNGKeyArray | None,
    ):
        self.settings, self.bias, self.mask, self.rng = settings, bias, mask, rng
        self.tiling, self.grid = settings.tiling, settings.tiling.grid
        self.batch, self.key_heads, self.share = query.shape[:3]
        self.visits = visits(mask, self.tiling)
        self.groups_of_heads = self.key_heads // self.tiling.key_heads
        self.steps = self.batch // self.tiling.examples * self.groups_of_heads * self.grid.rows

    def row(self, index: Int[Array, ""]) -> Tile:
        """The tile of one block of queries, its keys not yet chosen. Rows come before heads before
        examples.
        """
        grid, row, heads = self.grid, index % self.grid.rows, index // self.grid.rows
        group, key_head = heads // self.groups_of_heads, heads % self.groups_of_heads
        key_head = key_head * self.tiling.key_heads
        block = Block(
            jnp.minimum(row * grid.queries, grid.T - grid.queries),
            grid.queries,
            0,
            grid.keys,
            grid.T,
            grid.S,
            group * self.tiling.examples,
            self.tiling.examples,
            key_head * self.share,
            self.tiling.key_heads * self.share,
        )
        return Tile(block, group, row, key_head, 0)

    def run(self, row: Tile) -> Tile:
        """The row's tile with all the keys that it sees, and perhaps more."""
        first = self.visits.first[row.group if self.visits.first.shape[0] > 1 else 0, row.row]
        run = self.tiling.run
        start = jnp.minimum(first * self.grid.keys, self.grid.S - run)
        return row._replace(block=replace(row.block, key_start=start, keys=run))

    def over_keys(self, body: Callable, row: Tile, state: Any) -> Any:
        """`body(tile, state, seen)` for each block of keys that the row visits.

        `seen` is the mask of the tile, None for those that are seen whole: most, so they pay
        nothing for it.
        """
        at = (row.group if self.visits.seen.shape[0] > 1 else 0, row.row)

        def tile(j):
            new_key = self.visits.columns[*at, j] * self.grid.keys
            key_start = jnp.minimum(new_key, self.grid.S - self.grid.keys)
            return row._replace(block=replace(row.block, key_start=key_start), new_key=new_key)

        def whole(j, state):
            return body(tile(j), state, None)

        def in_part(j, state):
            return body(tile(j), state, self._seen(tile(j)))

        middle = self.visits.whole[at]
        state = lax.fori_loop(0, middle, whole, state)
        if self.mask is None and self.grid.S % self.grid.keys == 0:
            return state
        return lax.fori_loop(middle, self.visits.seen[at], in_part, state)

    def of_queries(self, array: Float[Array, "B K G T ..."], tile: Tile) -> Array:
        """The tile's rows of an array over queries."""
        starts, sizes = self._queries(array, tile)
        return lax.dynamic_slice(array, starts, sizes)

    def write(self, array: Array, rows: Array, tile: Tile) -> Array:
        """The array with these rows; what the block before has written stays."""
        if self.grid.T % self.grid.queries:
            rows = jnp.where(self._new_rows(rows, tile), rows, self.of_queries(array, tile))
        return lax.dynamic_update_slice(array, rows, self._queries(array, tile)[0])

    def once(self, rows: Array, tile: Tile) -> Array:
        """Zeros in the rows that the block before has done."""
        if self.grid.T % self.grid.queries:
            return jnp.where(self._new_rows(rows, tile), rows, 0)
        return rows

    def of_keys(self, array: Float[Array, "B K S L"], tile: Tile) -> Array:
        """The tile's rows of an array over keys."""
        starts, sizes = self._keys(array, tile)
        return lax.dynamic_slice(array, starts, sizes).astype(self.settings.operands)

    def write_keys(self, array: Float[Array, "B K S L"], rows: Array, tile: Tile) -> Array:
        """The array with these rows."""
        starts, sizes = self._keys(array, tile)
        return lax.dynamic_update_slice(array, rows.reshape(sizes).astype(array.dtype), starts)

    def of_keys_turned(self, array: Float[Array, "B K L S"], tile: Tile) -> Array:
        """`of_keys` of an array with its last two axes exchanged."""
        starts, sizes = self._keys_turned(array, tile)
        return lax.dynamic_slice(array, starts, sizes).astype(self.settings.operands)

    def add_turned(self, array: Float[Array, "B K L S"], part: Array, tile: Tile) -> Array:
        """The array with this added to the tile's part."""
        starts, sizes = self._keys_turned(array, tile)
        return lax.dynamic_update_slice(
            array, lax.dynamic_slice(array, starts, sizes) + part, starts
        )

    def logits(
        self, query: Float[Array, "e k g t H"], key: Float[Array, "e k H s"], tile: Tile
    ) -> tuple[Array, Array]:
        """scale Q K^T, soft-capped, with the bias, and without it."""
        dtype = jnp.promote_types(self.settings.operands, jnp.float32)
        capped = product("EKGTH,EKHS->EKGTS", query, key, dtype)
        if self.settings.soft_cap is not None:
            capped = self.settings.soft_cap * jnp.tanh(capped / self.settings.soft_cap)
        if self.bias is None:
            return capped, capped
        return capped + self._split(self.bias.render(tile.block)), capped

    def drop(self, weights: Float[Array, "e k g t s"], tile: Tile) -> Float[Array, "e k g t s"]:
        """Dropout of weights, by the indices that they have in the whole."""
        if self.rng is None:
            return weights
        block, rate = tile.block, self.settings.dropout_rate
        kept = keep_weights(
            self.rng,
            rate,
            block.example_start + jnp.arange(block.examples),
            block.head_start + jnp.arange(block.heads),
            block.query_start + jnp.arange(block.queries),
            block.key_start + jnp.arange(block.keys),
        )
        return jnp.where(self._split(kept), weights / (1.0 - rate), 0)

    def add_to_bias(self, total, d_logits: Float[Array, "e k g t s"], tile: Tile):
        """The gradient of the bias so far, with this tile's."""
        if self.bias is None:
            return None
        merged = d_logits.reshape(d_logits.shape[0], -1, *d_logits.shape[3:])
        return self.bias.add_gradient(total, tile.block, merged)

    def seen_of_run(self, tile: Tile) -> Bool[Array, "#e #k #g #t s"] | None:
        """The mask of a row's run of keys; None where there is none."""
        if self.mask is None:
            return None
        seen = self._split(self.mask.render(tile.block))
        return jnp.broadcast_to(seen, (*seen.shape[:4], tile.block.keys))

    def _seen(self, tile: Tile) -> Bool[Array, "#e #k #g t s"]:
        """The mask of the tile; keys that the block before has are hidden."""
        new = tile.block.key_start + jnp.arange(self.grid.keys) >= tile.new_key
        new = new[None, None, None, None]
        if self.mask is None:
            return new
        seen = self._split(self.mask.render(tile.block))
        return seen & new if self.grid.S % self.grid.keys else seen

    def _split(self, array):
        """[#e, #n, t, s] -> [#e, #k, #g, t, s]."""
        heads = (1, 1) if array.shape[1] == 1 else (self.tiling.key_heads, self.share)
        return array.reshape(array.shape[0], *heads, *array.shape[2:])

    def _new_rows(self, rows, tile):
        new = tile.block.query_start + jnp.arange(self.grid.queries)
        return (new >= tile.row * self.grid.queries).reshape(1, 1, 1, -1, *(1,) * (rows.ndim - 4))

    def _queries(self, array, tile):
        block, rest = tile.block, array.shape[4:]
        starts = (block.example_start, tile.key_head, 0, block.query_start, *(0,) * len(rest))
        sizes = (block.examples, self.tiling.key_heads, self.share, block.queries, *rest)
        return starts, sizes

    def _keys_turned(self, array, tile):
        starts = (tile.block.example_start, tile.key_head, 0, tile.block.key_start)
        return starts, (tile.block.examples, self.tiling.key_heads, array.shape[2], self.grid.keys)

    def _keys(self, array, tile):
        starts = (tile.block.example_start, tile.key_head, tile.block.key_start, 0)
        return starts, (tile.block.examples, self.tiling.key_heads, tile.block.keys, array.shape[3])
