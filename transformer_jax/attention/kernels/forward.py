"""The output of blockwise attention, for one block of queries after another (`blockwise.py`)."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.attention.kernels.tiles import Tiles
from transformer_jax.attention.kernels.xla_cpu import attend, attend_with_logsumexp, mask_as_bias
from transformer_jax.functional.precision import product
from transformer_jax.parallel.mesh import vary_like


def compute_output(
    tiles: Tiles, *, with_logsumexp: bool
) -> tuple[Float[Array, "B K G T O"], Float[Array, "B K G T"] | None]:
    """Return the attention output, and the logsumexp if it is requested."""
    query, key, value = tiles.inputs.query, tiles.inputs.key, tiles.inputs.value
    if tiles.tiling.run is None:
        attend_rows = partial(_attend_in_blocks, tiles, key.mT)  # not for every block
    else:
        attend_rows = partial(_attend_to_run, tiles, with_logsumexp)

    def block_of_queries(index, state):
        output, logsumexp = state
        row = tiles.row(index)
        out, total = attend_rows(tiles.read_scaled_queries(query, row), row)
        output = tiles.write_queries(output, out.astype(output.dtype), row)
        if total is None or not with_logsumexp:
            return output, None
        return output, tiles.write_queries(logsumexp, total, row)

    output = jnp.zeros((*query.shape[:4], value.shape[3]), query.dtype)
    logsumexp = jnp.zeros(query.shape[:4], tiles.inputs.accumulated) if with_logsumexp else None
    state = vary_like((output, logsumexp), query)
    return lax.fori_loop(0, tiles.steps, block_of_queries, state)


def _attend_in_blocks(tiles, key_transposed, q, row):
    """Return the output and the logsumexp of one block of queries, a block of keys at a time."""
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
    return out / jnp.where(total == 0, 1, total)[..., None], highest + jnp.log(total)


def _attend_to_run(tiles, with_logsumexp, q, row):
    """Return the output and the logsumexp of one block of queries, with all its keys at once."""
    tile = tiles.run(row)
    arrays = tiles.read_keys(tiles.inputs.key, tile), tiles.read_keys(tiles.inputs.value, tile)
    query, key, value = merge_heads(q, *arrays)
    mask = tiles.mask_of_run(tile)
    bias, total = merged_bias(mask, q), None
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
