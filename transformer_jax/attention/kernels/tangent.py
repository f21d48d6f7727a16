"""The tangents of blockwise attention: forward mode, for one block of queries after another.

With the weights P = e^(S - m - log l) and the tangents dS of the logits S,

    d logsumexp = rowsum(P dS)
    dO          = (P dS) V + P dV - d logsumexp O
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from transformer_jax.attention.kernels.forward import Statistics, read_statistics, weights_of
from transformer_jax.attention.kernels.tiles import Tiles
from transformer_jax.functional.precision import product
from transformer_jax.parallel.mesh import vary_like


def compute_tangent(
    tiles: Tiles, output: Array, statistics: Statistics, tangents: list[Array | None]
) -> tuple[Array, Array]:
    """Return the tangents of the output and of the logsumexp.

    `tangents` are those of the arrays of the inputs; None stands for zero.
    """
    query = tiles.inputs.query

    def block_of_queries(index, state):
        row = tiles.row(index)
        rows = tiles.read_queries(output, row), read_statistics(tiles, statistics, row)
        found = _tangent_of_rows(tiles, tangents, rows, row)
        return tuple(
            tiles.write_queries(whole, new.astype(whole.dtype), row)
            for whole, new in zip(state, found, strict=True)
        )

    state = vary_like((jnp.zeros_like(output), jnp.zeros_like(statistics.highest)), query)
    return lax.fori_loop(0, tiles.steps, block_of_queries, state)


def _tangent_of_rows(tiles, tangents, rows, row):
    inputs, dtype = tiles.inputs, tiles.inputs.accumulated
    d_query, d_key, d_value, *d_rules = tangents
    output, statistics = rows
    query = tiles.read_scaled_queries(inputs.query, row)
    d_q = None if d_query is None else tiles.read_scaled_queries(d_query, row)

    def block_of_keys(tile, running, mask):
        d_out, d_total = running
        keys = tiles.read_keys(inputs.key, tile).mT
        logits, capped = tiles.logits(query, keys, tile)
        if mask is not None:
            logits = jnp.where(mask, logits, -jnp.inf)
        weights = weights_of(logits, statistics)
        d_logits = jnp.zeros_like(logits)
        if d_q is not None:
            d_logits += tiles.scaled_products(d_q, keys)
        if d_key is not None:
            d_logits += tiles.scaled_products(query, tiles.read_keys(d_key, tile).mT)
        if inputs.soft_cap is not None:
            d_logits *= 1 - (capped / inputs.soft_cap) ** 2
        d_bias = tiles.tangent_of_bias(d_rules, tile)
        if d_bias is not None:
            d_logits += d_bias.astype(dtype)
        d_weights = weights * d_logits
        d_total += d_weights.sum(axis=-1)
        terms = [(d_weights, inputs.value)]
        if d_value is not None:
            terms.append((weights, d_value))
        for factor, values in terms:
            v = tiles.read_keys(values, tile)
            dropped = tiles.dropout(factor, tile).astype(v.dtype)
            d_out += product("EKGTS,EKSO->EKGTO", dropped, v, dtype)
        return d_out, d_total

    start = vary_like((jnp.zeros(output.shape, dtype), jnp.zeros(output.shape[:-1], dtype)), query)
    d_out, d_total = tiles.over_keys(block_of_keys, row, start)
    return d_out - d_total[..., None] * output.astype(dtype), d_total
