"""Attention in blocks (FlashAttention, Dao et al., 2022, https://arxiv.org/abs/2205.14135): exact,
in memory linear in T and S.

For a block of queries the keys come a block at a time. With S_j the logits of block j, the running
maximum m, the sum l and the output o are

    m' = max(m, max S_j)    l' = e^(m - m') l + sum e^(S_j - m')    o' = e^(m - m') o + e^(S_j - m') V_j

and o / l is the attention (Milakov and Gimelshein, 2018, https://arxiv.org/abs/1805.02867). The
gradient computes the weights again from the logits and the saved logsumexp m + log l (Dao et al.,
2022, algorithm 4):

    P = e^(S - logsumexp)    dV = P' dO    dS = P (dO V' - rowsum(dO O))    dQ = dS K    dK = dS' Q

Blocks that the mask hides are not visited. Masks, biases and dropout are asked for the block alone.
Where all keys that a block of queries sees are few, they come together instead, and nothing is
carried on (`xla_cpu.py`).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.attention.biases import Bias
from transformer_jax.attention.kernels.tile_sizes import Tiling, choose_tiling, is_plain
from transformer_jax.attention.kernels.tiles import Settings, Tiles
from transformer_jax.attention.kernels.xla_cpu import (
    attend,
    attend_with_logsumexp,
    gradients,
    hidden,
)
from transformer_jax.attention.masks import Mask
from transformer_jax.functional.precision import operands_dtype, product
from transformer_jax.parallel.mesh import vary_like


def blockwise_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K O"],
    *,
    bias: Bias | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
    return_logsumexp: bool = True,
    tiling: Tiling | None = None,
) -> tuple[Float[Array, "B T N O"], Float[Array, "B T N"] | None]:
    """The output and the logsumexp of `dot_product_attention`, which has checked the arguments.

    Fully masked rows must be zero already (`masked_rows.find_masked_rows`).
    """
    (B, T, N, H), K = query.shape, key.shape[2]
    plain = is_plain(query.dtype, bias, soft_cap, dropout=dropout_rng is not None)
    settings = Settings(
        tiling or choose_tiling(query, key, mask, plain=plain),
        H**-0.5 if scale is None else scale,
        soft_cap,
        dropout_rate,
        operands_dtype(query.dtype),
        return_logsumexp,
    )
    # The rules as lists of arrays: JAX builds the arguments of a custom gradient anew from what is
    # no array.
    (bias, bias_tree), (mask, mask_tree) = jax.tree.flatten(bias), jax.tree.flatten(mask)
    query = query.swapaxes(1, 2).reshape(B, K, N // K, T, H)
    key, value = key.swapaxes(1, 2), value.swapaxes(1, 2)
    static = settings, bias_tree, mask_tree
    arrays = query, key, value, bias, mask, dropout_rng
    output, logsumexp = _attend(static, *vary_like(arrays, arrays))
    output = output.reshape(B, N, T, value.shape[3]).swapaxes(1, 2)
    return output, None if logsumexp is None else logsumexp.reshape(B, N, T).swapaxes(1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static, query, key, value, bias, mask, rng):
    wanted = static[0].returns_logsumexp
    return _forward(static, query, key, value, bias, mask, rng, with_logsumexp=wanted)


def _attend_forward(static, query, key, value, bias, mask, rng):
    output, logsumexp = _forward(static, query, key, value, bias, mask, rng, with_logsumexp=True)
    returned = output, logsumexp if static[0].returns_logsumexp else None
    return returned, (query, key, value, bias, mask, rng, output, logsumexp)


def _attend_backward(static, saved, cotangents):
    return *_gradient(static, saved, cotangents), None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _forward(static, query, key, value, bias, mask, rng, *, with_logsumexp):
    settings, bias, mask = _unflatten(static, bias, mask)
    tiles = Tiles(settings, query, bias, mask, rng)
    dtype = jnp.promote_types(query.dtype, jnp.float32)
    key_turned = key.mT  # once, not for every block

    def to_blocks(row, q):
        def block_of_keys(tile, running, seen):
            highest, total, out = running
            v = tiles.of_keys(value, tile)
            logits, _ = tiles.logits(q, tiles.of_keys_turned(key_turned, tile), tile)
            if seen is not None:
                logits = jnp.where(seen, logits, -jnp.inf)
            new = jnp.maximum(highest, logits.max(axis=-1))
            finite = jnp.where(new == -jnp.inf, 0, new)
            weights = jnp.exp(logits - finite[..., None])
            shrink = jnp.exp(highest - finite)
            total = shrink * total + weights.sum(axis=-1)
            weights = tiles.drop(weights, tile).astype(v.dtype)
            out = shrink[..., None] * out + product("EKGTS,EKSO->EKGTO", weights, v, dtype)
            return new, total, out

        zeros = jnp.zeros((*q.shape[:4], value.shape[3]), dtype)
        nothing = vary_like((jnp.full(q.shape[:4], -jnp.inf, dtype), zeros[..., 0], zeros), query)
        highest, total, out = tiles.over_keys(block_of_keys, row, nothing)
        return out / jnp.where(total == 0, 1, total)[..., None], highest + jnp.log(total)

    def to_run(row, q):
        tile = tiles.run(row)
        arrays = _of_run(q, tiles.of_keys(key, tile), tiles.of_keys(value, tile))
        seen = tiles.seen_of_run(tile)
        taken_off = _hidden(seen, q)
        total = None
        if with_logsumexp:
            out, total = attend_with_logsumexp(*arrays, taken_off)
            total = total.reshape(q.shape[:4])
        else:
            out = attend(*arrays, taken_off)
        out = out.reshape(*q.shape[:4], -1)
        if seen is None:
            return out, total
        sees = seen.any(axis=-1)
        total = None if total is None else jnp.where(sees, total, -jnp.inf)
        return jnp.where(sees[..., None], out, 0), total

    def block_of_queries(index, state):
        output, logsumexp = state
        row = tiles.row(index)
        q = _scaled(tiles.of_queries(query, row), settings)
        out, total = (to_blocks if settings.tiling.run is None else to_run)(row, q)
        output = tiles.write(output, out.astype(output.dtype), row)
        return output, tiles.write(logsumexp, total, row) if with_logsumexp else None

    output = jnp.zeros((*query.shape[:4], value.shape[3]), query.dtype)
    logsumexp = jnp.zeros(query.shape[:4], dtype) if with_logsumexp else None
    state = vary_like((output, logsumexp), query)
    return lax.fori_loop(0, tiles.steps, block_of_queries, state)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient(static, saved, cotangents):
    query, key, value, bias, mask, rng, output, logsumexp = saved
    settings, bias, mask = _unflatten(static, bias, mask)
    d_output, d_logsumexp = cotangents
    tiles = Tiles(settings, query, bias, mask, rng)
    dtype = jnp.promote_types(query.dtype, jnp.float32)
    if settings.tiling.run == key.shape[2] and tiles.grid.rows == 1:
        return _gradient_of_run(tiles, saved, cotangents)
    key_turned, value_turned = key.mT, value.mT

    def block_of_queries(index, state):
        d_query, d_key, d_value, d_bias = state
        row = tiles.row(index)
        q = _scaled(tiles.of_queries(query, row), settings)
        denominator = tiles.of_queries(logsumexp, row)
        denominator = jnp.where(denominator == -jnp.inf, 0, denominator)
        # What the block before has done must not be added again.
        d_out = tiles.once(tiles.of_queries(d_output, row), row).astype(dtype)
        common = (d_out * tiles.of_queries(output, row).astype(dtype)).sum(axis=-1)
        if d_logsumexp is not None:
            common -= tiles.once(tiles.of_queries(d_logsumexp, row), row)
        d_out = d_out.astype(settings.operands)

        def block_of_keys(tile, running, seen):
            d_q, d_key, d_value, d_bias = running
            k = tiles.of_keys(key, tile)
            logits, capped = tiles.logits(q, tiles.of_keys_turned(key_turned, tile), tile)
            if seen is not None:
                logits = jnp.where(seen, logits, -jnp.inf)
            weights = jnp.exp(logits - denominator[..., None])
            used = tiles.drop(weights, tile).astype(d_out.dtype)
            d_v = product("EKGTO,EKGTS->EKOS", d_out, used, dtype)
            v_turned = tiles.of_keys_turned(value_turned, tile)
            d_weights = tiles.drop(product("EKGTO,EKOS->EKGTS", d_out, v_turned, dtype), tile)
            d_logits = weights * (d_weights - common[..., None])
            d_bias = tiles.add_to_bias(d_bias, d_logits, tile)
            if settings.soft_cap is not None:
                d_logits *= 1 - (capped / settings.soft_cap) ** 2
            d_logits = d_logits.astype(k.dtype)
            d_q += product("EKGTS,EKSH->EKGTH", d_logits, k, dtype)
            d_k = product("EKGTH,EKGTS->EKHS", q, d_logits, dtype)
            return (
                d_q,
                tiles.add_turned(d_key, d_k, tile),
                tiles.add_turned(d_value, d_v, tile),
                d_bias,
            )

        running = vary_like(jnp.zeros(q.shape, dtype), query), d_key, d_value, d_bias
        d_q, *rest = tiles.over_keys(block_of_keys, row, running)
        d_q = (settings.scale * d_q).astype(d_query.dtype)
        return tiles.write(d_query, d_q, row), *rest

    state = (
        jnp.zeros_like(query),
        jnp.zeros(key_turned.shape, dtype),
        jnp.zeros(value_turned.shape, dtype),
        None if bias is None else bias.zero_gradient(),
    )
    state = vary_like(state, query)
    d_query, d_key, d_value, d_bias = lax.fori_loop(0, tiles.steps, block_of_queries, state)
    d_bias = [] if bias is None else bias.as_gradient(d_bias)
    return d_query, d_key.mT.astype(key.dtype), d_value.mT.astype(value.dtype), d_bias


def _gradient_of_run(tiles, saved, cotangents):
    """`_gradient` where all queries and keys are one tile: of some examples and heads after the
    others.
    """
    query, key, value, *_, output, logsumexp = saved
    d_output, d_logsumexp = cotangents

    def some_heads(index, state):
        d_query, d_key, d_value = state
        tile = tiles.run(tiles.row(index))
        q = _scaled(tiles.of_queries(query, tile), tiles.settings)
        d_out, out = (tiles.of_queries(x, tile).astype(jnp.float32) for x in (d_output, output))
        common = (d_out * out).sum(axis=-1)
        if d_logsumexp is not None:
            common -= tiles.of_queries(d_logsumexp, tile)
        denominator = tiles.of_queries(logsumexp, tile)
        denominator = jnp.where(denominator == -jnp.inf, 0, denominator)
        rows = _of_run(q, tiles.of_keys(key, tile), tiles.of_keys(value, tile), d_out)
        denominator, common = (x.reshape(rows[0].shape[:2]) for x in (denominator, common))
        taken_off = _hidden(tiles.seen_of_run(tile), q)
        d_q, d_k, d_v = gradients(*rows[:3], taken_off, denominator, rows[3], common)
        d_q = (tiles.settings.scale * d_q).reshape(q.shape).astype(query.dtype)
        return (
            tiles.write(d_query, d_q, tile),
            tiles.write_keys(d_key, d_k, tile),
            tiles.write_keys(d_value, d_v, tile),
        )

    state = vary_like(tuple(map(jnp.zeros_like, (query, key, value))), query)
    return *lax.fori_loop(0, tiles.steps, some_heads, state), []


def _of_run(*arrays):
    """[e, k, g, t, L] -> [e k, g t, L] and [e, k, s, L] -> [e k, s, L]."""
    return [x.reshape(x.shape[0] * x.shape[1], -1, x.shape[-1]) for x in arrays]


def _hidden(seen, q):
    """[#e, #k, #g, #t, s] -> what is added to the logits, [#e k, #g t, s]."""
    if seen is None:
        return None
    for axes in ((0, 1), (2, 3)):
        if any(seen.shape[axis] > 1 for axis in axes):
            shape = [q.shape[i] if i in axes else size for i, size in enumerate(seen.shape)]
            seen = jnp.broadcast_to(seen, shape)
    e, k, g, t, s = seen.shape
    return hidden(seen.reshape(e * k, g * t, s))


@_gradient.defjvp
def _no_second_gradient(static, primals, tangents):
    raise ValueError(
        "blockwise attention has no gradient of its gradient; "
        'pass implementation="reference" to differentiate twice'
    )


def _unflatten(static, bias, mask):
    settings, bias_tree, mask_tree = static
    return settings, jax.tree.unflatten(bias_tree, bias), jax.tree.unflatten(mask_tree, mask)


def _scaled(query, settings):
    return (query * settings.scale).astype(settings.operands)
