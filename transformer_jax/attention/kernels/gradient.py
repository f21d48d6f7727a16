"""The gradient of blockwise attention: reverse mode, which computes the weights again.

The equations are in `blockwise.py`.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from transformer_jax.attention.kernels.forward import Statistics, read_statistics, weights_of
from transformer_jax.attention.kernels.tiles import Tiles
from transformer_jax.functional.precision import product
from transformer_jax.parallel.mesh import vary_like


class _QueryRows(NamedTuple):
    """The arrays of one block of queries that the gradient needs."""

    query: Array  # scaled
    d_output: Array
    statistics: Statistics  # 0 where a query sees no key
    delta: Array


def compute_delta(
    statistics: Statistics, d_output: Array, output: Array, d_logsumexp: Array | None
) -> Array:
    """Return rowsum(dO O) minus the cotangent of the logsumexp, in the dtype of the statistics."""
    dtype = statistics.log_total.dtype
    delta = (d_output.astype(dtype) * output.astype(dtype)).sum(axis=-1)
    if d_logsumexp is not None:
        delta -= d_logsumexp
    return delta


def compute_gradient(
    tiles: Tiles,
    statistics: Statistics,
    d_output: Array,
    output: Array,
    d_logsumexp: Array | None,
) -> list[Array | None]:
    """Return the gradients of query, key, value and the arrays of the bias; None for positions.

    `d_output` and `d_logsumexp` are cotangents; that of the logsumexp may be None for 0.
    """
    inputs, delta = tiles.inputs, compute_delta(statistics, d_output, output, d_logsumexp)
    query, key, value, bias = inputs.query, inputs.key, inputs.value, inputs.bias
    dtype = inputs.accumulated
    transposed = key.mT, value.mT

    def block_of_queries(index, state):
        d_query, *shared = state
        row = tiles.row(index)
        rows = _read_rows(tiles, statistics, d_output, delta, row)
        start = vary_like(jnp.zeros(rows.query.shape, dtype), query), *shared
        block_of_keys = partial(_gradient_of_block, tiles, transposed, rows)
        d_q, *shared = tiles.over_keys(block_of_keys, row, start)
        d_q = inputs.scale_queries(d_q).astype(d_query.dtype)
        return tiles.write_queries(d_query, d_q, row), *shared

    state = (
        jnp.zeros_like(query),
        *(jnp.zeros(array.shape, dtype) for array in transposed),
        None if bias is None else bias.zero_gradient(),
    )
    state = vary_like(state, query)
    d_query, d_key, d_value, d_bias = lax.fori_loop(0, tiles.steps, block_of_queries, state)
    d_bias = [] if bias is None else bias.as_gradient(d_bias)
    return [d_query, d_key.mT.astype(key.dtype), d_value.mT.astype(value.dtype), *d_bias]


def _read_rows(tiles, statistics, d_output, delta, row):
    statistics = read_statistics(tiles, statistics, row)
    # Rows that the previous block has added must not be added again.
    d_out, delta = (
        tiles.zero_repeated(tiles.read_queries(array, row), row) for array in (d_output, delta)
    )
    query = tiles.read_scaled_queries(tiles.inputs.query, row)
    return _QueryRows(query, d_out.astype(tiles.operands), statistics, delta)


def _gradient_of_block(tiles, transposed, rows, tile, running, mask):
    """Return the running gradients with those of one block of queries and one of keys added."""
    d_q, d_key, d_value, d_bias = running
    soft_cap = tiles.inputs.soft_cap
    key_transposed, value_transposed = (tiles.read_keys_transposed(x, tile) for x in transposed)
    key = tiles.read_keys(tiles.inputs.key, tile)
    logits, capped = tiles.logits(rows.query, key_transposed, tile)
    dtype = logits.dtype
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    weights = weights_of(logits, rows.statistics)
    dropped = tiles.dropout(weights, tile).astype(rows.d_output.dtype)
    d_v = product("EKGTO,EKGTS->EKOS", rows.d_output, dropped, dtype)
    d_weights = product("EKGTO,EKOS->EKGTS", rows.d_output, value_transposed, dtype)
    d_logits = weights * (tiles.dropout(d_weights, tile) - rows.delta[..., None])
    d_bias = tiles.add_to_bias(d_bias, d_logits, tile)
    if soft_cap is not None:
        d_logits *= 1 - (capped / soft_cap) ** 2
    d_logits = tiles.inputs.scale_logits(d_logits).astype(key.dtype)
    d_q += product("EKGTS,EKSH->EKGTH", d_logits, key, dtype)
    d_k = product("EKGTH,EKGTS->EKHS", rows.query, d_logits, dtype)
    return (
        d_q,
        tiles.add_to_keys_transposed(d_key, d_k, tile),
        tiles.add_to_keys_transposed(d_value, d_v, tile),
        d_bias,
    )
