"""The output of blockwise attention, for one block of queries after another (`blockwise.py`)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.attention.kernels.tiles import Tile, Tiles
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
    key_transposed = key.mT  # not for every block

    def block_of_queries(index, state):
        output, statistics = state
        row = tiles.row(index)
        scaled = tiles.read_scaled_queries(query, row)
        out, found = _attend_in_blocks(tiles, key_transposed, scaled, row)
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
        new = jnp.maximum(highest, logits.max(axis=-1))
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
