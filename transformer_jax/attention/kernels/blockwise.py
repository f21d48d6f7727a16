"""Blockwise attention: exact, with memory linear in T and S.

This is FlashAttention (Dao et al., 2022, https://arxiv.org/abs/2205.14135). For each block of
queries, the keys are visited one block at a time. With S_j the logits of block j, the running
maximum m, the sum l and the output o become

    m' = max(m, max S_j)
    l' = e^(m - m') l + sum e^(S_j - m')
    o' = e^(m - m') o + e^(S_j - m') V_j

and after the last block o / l is the attention (Milakov and Gimelshein, 2018,
https://arxiv.org/abs/1805.02867). The gradient computes the weights again from the logits and the
saved logsumexp m + log l (Dao et al., 2022, algorithm 4):

    P = e^(S - logsumexp)    dV = P^T dO    dS = P (dO V^T - rowsum(dO O))
    dQ = dS K                dK = dS^T Q

Blocks that the mask hides are not visited. Masks, biases and dropout are rendered for one block at
a time. If all keys that a block of queries sees are few, they are processed together, without a
running maximum (`xla_cpu.py`).
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from transformer_jax.attention.inputs import AttentionInputs, AttentionResult
from transformer_jax.attention.kernels.tile_sizes import choose_tiling
from transformer_jax.attention.kernels.tiles import Tiles
from transformer_jax.attention.kernels.xla_cpu import (
    attend,
    attend_with_logsumexp,
    gradients,
    mask_as_bias,
)
from transformer_jax.functional.precision import product, wide_dtype
from transformer_jax.parallel.mesh import vary_like


def blockwise_attention(inputs: AttentionInputs) -> AttentionResult:
    """Return the attention of validated inputs, computed in blocks.

    The masked rows must be finite.
    """
    (B, T, N, H), K = inputs.query.shape, inputs.key.shape[2]
    tiling = choose_tiling(inputs)
    heads_first = replace(
        inputs,
        query=inputs.query.swapaxes(1, 2).reshape(B, K, N // K, T, H),
        key=inputs.key.swapaxes(1, 2),
        value=inputs.value.swapaxes(1, 2),
        masked_rows=None,
    )
    # Passed as a list of arrays, because JAX rebuilds other pytrees that a custom gradient takes.
    arrays, structure = jax.tree.flatten(heads_first)
    # Any: type checkers do not see the return type of a function with a custom gradient.
    attended: Any = _attend((structure, tiling), *vary_like(arrays, arrays))
    output, logsumexp = attended
    output = output.reshape(B, N, T, output.shape[4]).swapaxes(1, 2)
    if logsumexp is not None:
        logsumexp = logsumexp.reshape(B, N, T).swapaxes(1, 2)
    return AttentionResult(output, None, logsumexp)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static, *arrays):
    tiles = _tiles(static, arrays)
    return _forward(tiles, with_logsumexp=tiles.inputs.return_logsumexp)


def _attend_forward(static, *arrays):
    tiles = _tiles(static, arrays)
    output, logsumexp = _forward(tiles, with_logsumexp=True)
    returned = output, logsumexp if tiles.inputs.return_logsumexp else None
    return returned, (arrays, output, logsumexp)


def _attend_backward(static, saved, cotangents):
    found = _gradient(static, saved, cotangents)
    return *found, *[None] * (len(saved[0]) - len(found))


_attend.defvjp(_attend_forward, _attend_backward)


def _tiles(static, arrays):
    structure, tiling = static
    return Tiles(jax.tree.unflatten(structure, arrays), tiling)


# The output


def _forward(tiles, *, with_logsumexp):
    query, key, value = tiles.inputs.query, tiles.inputs.key, tiles.inputs.value
    if tiles.tiling.run is None:
        attend_rows = partial(_attend_in_blocks, tiles, key.mT)  # not for every block
    else:
        attend_rows = partial(_attend_to_run, tiles, with_logsumexp)

    def block_of_queries(index, state):
        output, logsumexp = state
        row = tiles.row(index)
        out, total = attend_rows(tiles.read_scaled_queries(row), row)
        output = tiles.write_queries(output, out.astype(output.dtype), row)
        return output, tiles.write_queries(logsumexp, total, row) if with_logsumexp else None

    output = jnp.zeros((*query.shape[:4], value.shape[3]), query.dtype)
    dtype = wide_dtype(query.dtype)
    logsumexp = jnp.zeros(query.shape[:4], dtype) if with_logsumexp else None
    state = vary_like((output, logsumexp), query)
    return lax.fori_loop(0, tiles.steps, block_of_queries, state)


def _attend_in_blocks(tiles, key_transposed, q, row):
    """Return the output and the logsumexp of one block of queries, a block of keys at a time."""
    query, value = tiles.inputs.query, tiles.inputs.value
    dtype = wide_dtype(query.dtype)

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
    return out / jnp.where(total == 0, 1, total)[..., None], highest + jnp.log(total)


def _attend_to_run(tiles, with_logsumexp, q, row):
    """Return the output and the logsumexp of one block of queries, with all its keys at once."""
    tile = tiles.run(row)
    arrays = tiles.read_keys(tiles.inputs.key, tile), tiles.read_keys(tiles.inputs.value, tile)
    query, key, value = _merge_heads(q, *arrays)
    mask = tiles.mask_of_run(tile)
    bias, total = _merged_bias(mask, q), None
    if with_logsumexp:
        out, total = attend_with_logsumexp(query, key, value, bias)
        total = total.reshape(q.shape[:4])
    else:
        out = attend(query, key, value, bias)
    out = out.reshape(*q.shape[:4], -1)
    if mask is None:
        return out, total
    sees = mask.any(axis=-1)
    total = None if total is None else jnp.where(sees, total, -jnp.inf)
    return jnp.where(sees[..., None], out, 0), total


# The gradient


class _QueryRows(NamedTuple):
    """The arrays of one block of queries that the gradient needs."""

    query: Array  # scaled
    d_output: Array
    logsumexp: Array  # 0 where a query sees no key
    delta: Array  # rowsum(dO O), minus the cotangent of the logsumexp


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient(static, saved, cotangents):
    """Return the gradients of query, key, value and the arrays of the bias."""
    arrays, *results = saved
    tiles = _tiles(static, arrays)
    read_rows = partial(_read_rows, tiles, *results, *cotangents)
    if tiles.tiling.run == tiles.grid.S and tiles.grid.rows == 1:
        return _gradient_of_run(tiles, read_rows)
    return _gradient_in_blocks(tiles, read_rows)


@_gradient.defjvp
def _no_second_gradient(static, primals, tangents):
    raise ValueError(
        "blockwise attention has no gradient of its gradient; "
        'pass implementation="reference" to differentiate twice'
    )


def _read_rows(tiles, output, logsumexp, d_output, d_logsumexp, row):
    dtype = wide_dtype(output.dtype)
    denominator = tiles.read_queries(logsumexp, row)
    denominator = jnp.where(denominator == -jnp.inf, 0, denominator)
    # Rows that the previous block has added must not be added again.
    d_out = tiles.zero_repeated(tiles.read_queries(d_output, row), row).astype(dtype)
    delta = (d_out * tiles.read_queries(output, row).astype(dtype)).sum(axis=-1)
    if d_logsumexp is not None:
        delta -= tiles.zero_repeated(tiles.read_queries(d_logsumexp, row), row)
    d_out = d_out.astype(tiles.operands)
    return _QueryRows(tiles.read_scaled_queries(row), d_out, denominator, delta)


def _gradient_in_blocks(tiles, read_rows):
    """Return the `_gradient`, computed for one block of queries and one block of keys at a time."""
    inputs = tiles.inputs
    query, key, value, bias = inputs.query, inputs.key, inputs.value, inputs.bias
    dtype = wide_dtype(query.dtype)
    transposed = key.mT, value.mT

    def block_of_queries(index, state):
        d_query, *shared = state
        row = tiles.row(index)
        rows = read_rows(row)
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
    return d_query, d_key.mT.astype(key.dtype), d_value.mT.astype(value.dtype), *d_bias


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
    weights = jnp.exp(logits - rows.logsumexp[..., None])
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


def _gradient_of_run(tiles, read_rows):
    """Return the `_gradient` if one tile holds all queries and keys of some examples and heads."""
    query, key, value = tiles.inputs.query, tiles.inputs.key, tiles.inputs.value

    def some_heads(index, state):
        d_query, d_key, d_value = state
        tile = tiles.run(tiles.row(index))
        rows = read_rows(tile)
        k, v = tiles.read_keys(key, tile), tiles.read_keys(value, tile)
        q, k, v, d_out = _merge_heads(rows.query, k, v, rows.d_output)
        logsumexp, delta = (x.reshape(q.shape[:2]) for x in (rows.logsumexp, rows.delta))
        bias = _merged_bias(tiles.mask_of_run(tile), rows.query)
        d_q, d_k, d_v = gradients(q, k, v, bias, logsumexp, d_out, delta)
        d_q = tiles.inputs.scale_queries(d_q).reshape(rows.query.shape).astype(query.dtype)
        return (
            tiles.write_queries(d_query, d_q, tile),
            tiles.write_keys(d_key, d_k, tile),
            tiles.write_keys(d_value, d_v, tile),
        )

    state = vary_like(tuple(map(jnp.zeros_like, (query, key, value))), query)
    return lax.fori_loop(0, tiles.steps, some_heads, state)


def _merge_heads(*arrays):
    """Merge axes: [e, k, g, t, L] -> [e k, g t, L] and [e, k, s, L] -> [e k, s, L]."""
    return [x.reshape(x.shape[0] * x.shape[1], -1, x.shape[-1]) for x in arrays]


def _merged_bias(mask, q):
    """Return a mask [#e, #k, #g, #t, s] as a bias of the logits, [#e k, #g t, s]."""
    if mask is None:
        return None
    for axes in ((0, 1), (2, 3)):
        if any(mask.shape[axis] > 1 for axis in axes):
            shape = [q.shape[i] if i in axes else size for i, size in enumerate(mask.shape)]
            mask = jnp.broadcast_to(mask, shape)
    e, k, g, t, s = mask.shape
    return mask_as_bias(mask.reshape(e * k, g * t, s))
