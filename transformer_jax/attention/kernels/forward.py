"""The output of blockwise attention, for one block of queries after another (`blockwise.py`)."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.attention.kernels.tiles import Tile, Tiles
from transformer_jax.attention.kernels.xla_cpu import attend, attend_with_statistics, mask_as_bias
from transformer_jax.functional.precision import product
from transformer_jax.parallel.mesh import vary_like


class Statistics(NamedTuple):
    """The largest logit m of each query, and log l; their sum is the logsumexp.

    The sum would lose log l beside the logits of a query whose keys all have a bias of -1e9.
    """

    highest: Float[Array, "..."]
    log_total: Float[Array, "..."]

    @property
    def logsumexp(self) -> Float[Array, "..."]:
        """The logsumexp of each query."""
        return self.highest + self.log_total


def compute_output(
    tiles: Tiles, *, with_statistics: bool
) -> tuple[Float[Array, "B K G T O"], Statistics | None]:
    """Return the attention output, and the statistics if they are requested."""
    query, key, value = tiles.inputs.query, tiles.inputs.key, tiles.inputs.value
    if tiles.tiling.run is None:
        attend_rows = partial(_attend_in_blocks, tiles, key.mT)  # not for every block
    else:
        attend_rows = partial(_attend_to_run, tiles, with_statistics)

    def block_of_queries(index, state):
        output, statistics = state
        row = tiles.row(index)
        out, found = attend_rows(tiles.read_scaled_queries(query, row), row)
        output = tiles.write_queries(output, out.astype(output.dtype), row)
        if with_statistics:
            statistics = jax.tree.map(
                lambda whole, new: tiles.write_queries(whole, new, row), statistics, found
            )
        return output, statistics

    output = jnp.zeros((*query.shape[:4], value.shape[3]), query.dtype)
    zeros = jnp.zeros(query.shape[:4], tiles.inputs.accumulated)
    state = vary_like((output, Statistics(zeros, zeros) if with_statistics else None), query)
    return lax.fori_loop(0, tiles.steps, block_of_queries, state)


def _attend_in_blocks(tiles, key_transposed, q, row):
    """Return the output and the statistics of one block of queries, a block of keys at a time."""
    query, value = tiles.inputs.query, tiles.inputs.value
    dtype = tiles.inputs.accumulated

    def block_of_keys(tile, running, mask):
        highest, total, out = running
        v = tiles.read_keys(value, tile)
        logits, _ = tiles.logits(q, tiles.read_keys_transposed(key_transposed, tile), tile)
        if mask is not None:
            logits = jnp.where(mask, logits, -jnp.inf)
        # No derivative: the shift changes no result, and XLA may round the logits otherwise where
        # it compares them with their maximum, whose derivative would then be 0 / 0.
        new = lax.stop_gradient(jnp.maximum(highest, logits.max(axis=-1)))
        finite = jnp.where(new == -jnp.inf, 0, new)
        weights = jnp.exp(logits - finite[..., None])
        shrink = jnp.exp(highest - finite)
        total = shrink * total + weights.sum(axis=-1)
        weights = tiles.dropout(weights, tile).astype(v.dtype)
        out = shrink[..., None] * out + product("EKGTS,EKSO->EKGTO", weights, v, dtype)
        return new, total, out

    zeros = jnp.zeros((*q.shape[:4], value.shape[3]), dtype)
    start = vary_like((jnp.full(q.shape[:4], -jnp.inf, dtype), zeros[..., 0], zeros), query)
    highest, total, out = tiles.over_keys(block_of_keys, row, start)
    return out / jnp.where(total == 0, 1, total)[..., None], Statistics(highest, jnp.log(total))


def _attend_to_run(tiles, with_statistics, q, row):
    """Return the output and the statistics of one block of queries, with all its keys at once."""
    tile = tiles.run(row)
    arrays = tiles.read_keys(tiles.inputs.key, tile), tiles.read_keys(tiles.inputs.value, tile)
    query, key, value = merge_heads(q, *arrays)
    mask = tiles.mask_of_run(tile)
    bias, statistics = merged_bias(mask, q), None
    if with_statistics:
        out, *found = attend_with_statistics(query, key, value, bias)
        statistics = Statistics(*(x.reshape(q.shape[:4]) for x in found))
    else:
        out = attend(query, key, value, bias)
    out = out.reshape(*q.shape[:4], -1)
    if mask is None:
        return out, statistics
    sees = mask.any(axis=-1)
    statistics = jax.tree.map(lambda x: jnp.where(sees, x, -jnp.inf), statistics)
    return jnp.where(sees[..., None], out, 0), statistics


def read_statistics(tiles: Tiles, statistics: Statistics, row: Tile) -> Statistics:
    """Return the statistics of one block of queries, 0 where a query sees no key."""

    def read(array):
        rows = tiles.read_queries(array, row)
        return jnp.where(rows == -jnp.inf, 0, rows)

    return Statistics(*map(read, statistics))


def weights_of(logits: Float[Array, "... S"], statistics: Statistics) -> Float[Array, "... S"]:
    """Return the attention weights."""
    highest, log_total = (x[..., None] for x in statistics)
    return jnp.exp((logits - highest) - log_total)


def merge_heads(*arrays):
    """Return arrays reshaped: [e, k, g, t, L] -> [e k, g t, L] and [e, k, s, L] -> [e k, s, L]."""
    return [x.reshape(x.shape[0] * x.shape[1], -1, x.shape[-1]) for x in arrays]


def merged_bias(mask, q):
    """Return a mask [#e, #k, #g, #t, s] as a bias of the logits, [#e k, #g t, s]."""
    if mask is None:
        return None
    for axes in ((0, 1), (2, 3)):
        if any(mask.shape[axis] > 1 for axis in axes):
            shape = [q.shape[i] if i in axes else size for i, size in enumerate(mask.shape)]
            mask = jnp.broadcast_to(mask, shape)
    e, k, g, t, s = mask.shape
    return mask_as_bias(mask.reshape(e * k, g * t, s))
