"""Reading, writing and masking of tiles, on which blockwise attention works one at a time.

A tile is some examples, some key heads, a block of queries and a block of keys. The last block of
an axis ends with the axis and has the size of the others, so that no array is padded and no slice
leaves its array. It may overlap the previous block. The overlap is masked where it would count
twice.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.kernels.tile_sizes import Tiling
from transformer_jax.attention.mask_rule import Mask
from transformer_jax.attention.rule import Block
from transformer_jax.functional.dropout import keep_weights, unpacked_bits
from transformer_jax.functional.precision import product


class Tile(NamedTuple):
    """The place of a tile in the inputs."""

    block: Block
    group: Array  # index of the group of examples
    row: Array  # index of the block of queries
    key_head: Array
    new_key: Array | int  # the first key that no previous block has


class Visits(NamedTuple):
    """The blocks of keys that each block of queries visits, as bounds of the loops.

    X is 1 if all examples have the same bounds, otherwise the number of groups of examples.
    `columns` lists the columns of the grid in this order: those seen whole, those seen in part, the
    others.
    """

    columns: Int[Array, "X rows columns"]
    whole: Int[Array, "X rows"]  # how many are seen whole
    seen: Int[Array, "X rows"]  # how many are seen whole or in part


def visits(mask: Mask | None, tiling: Tiling) -> Visits:
    """Return the blocks of keys that each block of queries visits under the mask."""
    grid = tiling.grid
    if mask is None:
        some = every = jnp.ones((1, grid.rows, grid.columns), bool)
    else:
        some, every = mask.coverage(grid)
    if grid.S % grid.keys:  # the last column overlaps the one before, and needs a mask
        every = every.at[:, :, -1].set(False)
    if some.shape[0] > 1 or every.shape[0] > 1:
        shape = (-1, tiling.examples, grid.rows, grid.columns)
        some, every = jnp.broadcast_arrays(some, every)
        some, every = some.reshape(shape).any(axis=1), every.reshape(shape).all(axis=1)
    every &= some
    columns = jnp.argsort(jnp.where(every, 0, jnp.where(some, 1, 2)), axis=2, stable=True)
    return Visits(columns, every.sum(axis=2), some.sum(axis=2))


class Tiles:
    """The tiles of the inputs: methods read, write and mask them.

    Arrays over queries are [B, K, G, T, ...] and arrays over keys [B, K, S, ...], with N = K G.
    """

    def __init__(self, inputs: AttentionInputs, tiling: Tiling):
        self.inputs, self.tiling, self.grid = inputs, tiling, tiling.grid
        self.operands = inputs.operands
        self.batch, self.key_heads, self.share = inputs.query.shape[:3]
        self.visits = visits(inputs.mask, tiling)
        self.groups_of_heads = self.key_heads // self.tiling.key_heads
        self.kept = None
        if inputs.kept_bits is not None:  # those of a kernel, whose derivatives are computed here
            sizes = self.batch, self.key_heads * self.share, self.grid.T, self.grid.S
            self.kept = unpacked_bits(inputs.kept_bits, sizes)
        self.steps = self.batch // self.tiling.examples * self.groups_of_heads * self.grid.rows

    def row(self, index: Int[Array, ""]) -> Tile:
        """Return the tile of one block of queries, before its keys are chosen.

        The index runs over blocks of queries first, then over heads, then over examples.
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

    def over_keys(self, body: Callable, row: Tile, state: Any) -> Any:
        """Return the state after `body(tile, state, mask)` for each block of keys that a row sees.

        The mask is None for a tile that is visible as a whole. Most tiles are, and need no masking.
        """
        at = (row.group if self.visits.seen.shape[0] > 1 else 0, row.row)

        def tile(j):
            new_key = self.visits.columns[*at, j] * self.grid.keys
            key_start = jnp.minimum(new_key, self.grid.S - self.grid.keys)
            return row._replace(block=replace(row.block, key_start=key_start), new_key=new_key)

        def whole(j, state):
            return body(tile(j), state, None)

        def in_part(j, state):
            return body(tile(j), state, self._mask(tile(j)))

        middle = self.visits.whole[at]
        state = lax.fori_loop(0, middle, whole, state)
        if self.inputs.mask is None and self.grid.S % self.grid.keys == 0:
            return state
        return lax.fori_loop(middle, self.visits.seen[at], in_part, state)

    def read_queries(self, array: Float[Array, "B K G T ..."], tile: Tile) -> Array:
        """Return the tile's rows of an array over queries."""
        starts, sizes = self._queries(array, tile)
        return lax.dynamic_slice(array, starts, sizes)

    def read_scaled_queries(
        self, array: Float[Array, "B K G T H"], tile: Tile
    ) -> Float[Array, "e k g t H"]:
        """Return the tile's queries times the scale, in the dtype of the matrix products."""
        query = self.read_queries(array, tile)
        return self.inputs.scale_queries(query.astype(self.operands))

    def write_queries(self, array: Array, rows: Array, tile: Tile) -> Array:
        """Return the array with the tile's rows written, except those of the previous block."""
        if self.grid.T % self.grid.queries:
            rows = jnp.where(self._new_rows(rows, tile), rows, self.read_queries(array, tile))
        return lax.dynamic_update_slice(array, rows, self._queries(array, tile)[0])

    def zero_repeated(self, rows: Array, tile: Tile) -> Array:
        """Return the rows with zeros in those that the previous block has computed too."""
        if self.grid.T % self.grid.queries:
            return jnp.where(self._new_rows(rows, tile), rows, 0)
        return rows

    def read_keys(self, array: Float[Array, "B K S L"], tile: Tile) -> Array:
        """Return the tile's rows of an array over keys."""
        starts, sizes = self._keys(array, tile)
        return lax.dynamic_slice(array, starts, sizes).astype(self.operands)

    def read_keys_transposed(self, array: Float[Array, "B K L S"], tile: Tile) -> Array:
        """Return the same as `read_keys`, for an array whose last two axes are exchanged."""
        starts, sizes = self._keys_transposed(array, tile)
        return lax.dynamic_slice(array, starts, sizes).astype(self.operands)

    def add_to_keys_transposed(
        self, array: Float[Array, "B K L S"], part: Array, tile: Tile
    ) -> Array:
        """Return the array with `part` added to the tile's part."""
        starts, sizes = self._keys_transposed(array, tile)
        return lax.dynamic_update_slice(
            array, lax.dynamic_slice(array, starts, sizes) + part, starts
        )

    def scaled_products(
        self, query: Float[Array, "e k g t H"], key: Float[Array, "e k H s"]
    ) -> Float[Array, "e k g t s"]:
        """Return the products of scaled queries and keys."""
        products = product("EKGTH,EKHS->EKGTS", query, key, self.inputs.accumulated)
        return self.inputs.scale_logits(products)

    def logits(
        self, query: Float[Array, "e k g t H"], key: Float[Array, "e k H s"], tile: Tile
    ) -> tuple[Array, Array]:
        """Return the scaled and soft-capped logits twice: with the bias and without."""
        soft_cap, capped = self.inputs.soft_cap, self.scaled_products(query, key)
        if soft_cap is not None:
            capped = soft_cap * jnp.tanh(capped / soft_cap)
        if self.inputs.bias is None:
            return capped, capped
        bias = self._split(self.inputs.bias.render(tile.block))
        return capped + bias.astype(capped.dtype), capped

    def dropout(self, weights: Float[Array, "e k g t s"], tile: Tile) -> Float[Array, "e k g t s"]:
        """Return the weights after dropout, drawn by their indices in the whole matrix."""
        if not self.inputs.has_dropout:
            return weights
        block, rate = tile.block, self.inputs.dropout_rate
        starts = block.example_start, block.head_start, block.query_start, block.key_start
        sizes: Any = block.examples, block.heads, block.queries, block.keys
        if self.kept is not None:
            kept = lax.dynamic_slice(self.kept, starts, sizes)
        else:
            indices = (start + jnp.arange(n) for start, n in zip(starts, sizes, strict=True))
            kept = keep_weights(self.inputs.dropout_rng, rate, *indices)
        return jnp.where(self._split(kept), weights / (1.0 - rate), 0)

    def add_to_bias(self, total, d_logits: Float[Array, "e k g t s"], tile: Tile):
        """Return the running gradient of the bias, with this tile's gradient added."""
        if self.inputs.bias is None:
            return None
        merged = d_logits.reshape(d_logits.shape[0], -1, *d_logits.shape[3:])
        return self.inputs.bias.add_gradient(total, tile.block, merged)

    def tangent_of_bias(self, tangents: list[Array | None], tile: Tile) -> Array | None:
        """Return the tangent of the tile's bias for tangents of the arrays of the rules.

        The arrays of the bias come first. None stands for zero.
        """
        bias = self.inputs.bias
        tangents = tangents[: len(jax.tree.leaves(bias))]
        if all(tangent is None for tangent in tangents):
            return None
        return self._split(bias.tangent(tangents, tile.block))

    def _mask(self, tile: Tile) -> Bool[Array, "#e #k #g t s"]:
        """Return the mask of the tile, with the keys of the previous block hidden."""
        new = tile.block.key_start + jnp.arange(self.grid.keys) >= tile.new_key
        new = new[None, None, None, None]
        if self.inputs.mask is None:
            return new
        mask = self._split(self.inputs.mask.render(tile.block))
        return mask & new if self.grid.S % self.grid.keys else mask

    def _split(self, array):
        """Split the heads: [#e, #n, t, s] -> [#e, #k, #g, t, s]."""
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

    def _keys_transposed(self, array, tile):
        starts = (tile.block.example_start, tile.key_head, 0, tile.block.key_start)
        return starts, (tile.block.examples, self.tiling.key_heads, array.shape[2], self.grid.keys)

    def _keys(self, array, tile):
        starts = (tile.block.example_start, tile.key_head, tile.block.key_start, 0)
        return starts, (tile.block.examples, self.tiling.key_heads, tile.block.keys, array.shape[3])
