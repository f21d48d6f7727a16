"""Attention on one NVIDIA GPU by kernels in Pallas, which Triton compiles.

They compute the output and the gradient of blockwise attention (`blockwise.py`), of float16 or
bfloat16 arrays, without a mask or with causal masks, windows and padding at the default positions,
and segments. Blocks before the first and behind the last that the mask lets through are not
visited. Dropout, which cuDNN cannot repeat, is read from the
bits of `dropout.kept_bits`: with D = 1 / (1 - rate) where a weight is kept, and 0 elsewhere,

    O = (P D) V    dV = (P D)^T dO    dS = P (D dO V^T - rowsum(dO O))

The factor 1 / (1 - rate) multiplies the sums over keys or queries, not each weight.

A program computes the output or the gradient of one block of queries, or the gradients of one block
of keys (Dao, 2023, FlashAttention-2, https://arxiv.org/abs/2307.08691). No two programs add to the
same numbers, so that results are bit-identical from run to run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from transformer_jax.attention.coverage import Grid
from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.kernels.forward import Statistics
from transformer_jax.attention.kernels.gradient import compute_delta
from transformer_jax.attention.kernels.known_masks import known_mask
from transformer_jax.attention.masks import padding
from transformer_jax.functional.dropout import BITS, LANES

KEYS = LANES  # in a block, so that one bit of `kept_bits` is for one block
LOG2_E = math.log2(math.e)


class Launch(NamedTuple):
    """The sizes of a kernel's programs."""

    queries: int  # in a block
    warps: int
    stages: int  # blocks of a loop that are loaded ahead


class Launches(NamedTuple):
    """The sizes of the three kernels, each with less than 99 KiB of shared memory."""

    output: Launch
    of_queries: Launch
    of_keys: Launch


# Measured on an H200 with 64 features.
UP_TO_64_FEATURES = Launches(Launch(128, 8, 3), Launch(64, 4, 2), Launch(64, 4, 3))
# With these none of the kernels spills registers.
WITH_128_FEATURES = Launches(Launch(64, 4, 2), Launch(64, 4, 1), Launch(32, 4, 2))


class Problem(NamedTuple):
    """The sizes and numbers that are known when the kernels are compiled."""

    T: int
    S: int
    left: int | None
    right: int | None
    dropout_rate: float
    scale: float

    @property
    def shift(self) -> int:
        """The position of the first query: the last query is at the last key."""
        return self.S - self.T

    @property
    def kept_scale(self) -> float:
        """The factor of a weight that is kept."""
        return 1 / (1 - self.dropout_rate)


def compute_output(inputs: AttentionInputs) -> tuple[Array, Statistics]:
    """Return the attention output and the statistics, which the kernel always computes."""
    problem, arrays = _arguments(inputs)
    (B, K, G, T, H), rows = inputs.query.shape, arrays["query"].shape[1]
    launch = _fitting(_launches(H).output, rows)
    arrays |= _visited(inputs, problem, launch)
    number = jax.ShapeDtypeStruct((B, K * G, rows), jnp.float32)
    output, highest, log_total = _call(
        partial(_output, problem, launch),
        launch,
        (rows // launch.queries, K * G, B),
        arrays,
        _read_by_queries(arrays, G, launch),
        [(jax.ShapeDtypeStruct((B, rows, K * G, H), inputs.query.dtype), _block(launch.queries, H)),
         (number, _numbers(launch.queries)), (number, _numbers(launch.queries))],
    )  # fmt: skip
    highest, log_total = (x[:, :, :T].reshape(B, K, G, T) for x in (highest, log_total))
    return _heads_first(output[:, :T], K), Statistics(highest, log_total)


def compute_gradient(
    inputs: AttentionInputs,
    statistics: Statistics,
    d_output: Array,
    output: Array,
    d_logsumexp: Array | None,
) -> list[Array]:
    """Return the gradients of query, key and value, as `gradient.compute_gradient` does."""
    problem, arrays = _arguments(inputs)
    delta = compute_delta(statistics, d_output, output, d_logsumexp)
    (B, K, G, T, H), S, dtype = inputs.query.shape, problem.S, inputs.query.dtype
    N, rows, columns = K * G, arrays["query"].shape[1], arrays["key"].shape[1]
    logsumexp = statistics.logsumexp
    logsumexp = jnp.where(logsumexp == -jnp.inf, 0, logsumexp) * LOG2_E
    numbers = {"logsumexp": logsumexp, "delta": delta / problem.kept_scale}
    arrays |= {name: _filled(x.reshape(B, N, T), rows, axis=2) for name, x in numbers.items()}
    arrays["d_output"] = _filled(_heads_last(d_output), rows, axis=1)
    launch = _fitting(_launches(H).of_queries, rows)
    arrays |= _visited(inputs, problem, launch)
    (d_query,) = _call(
        partial(_gradient_of_queries, problem, launch),
        launch,
        (rows // launch.queries, N, B),
        arrays,
        _read_by_queries(arrays, G, launch),
        [(jax.ShapeDtypeStruct((B, rows, N, H), dtype), _block(launch.queries, H))],
    )
    launch = _fitting(_launches(H).of_keys, rows)
    arrays |= _visited(inputs, problem, launch, by_keys=True)
    # Heads that share keys are added up in float32.
    like = jax.ShapeDtypeStruct((B, columns, N, H), dtype if G == 1 else jnp.float32)
    found = _call(
        partial(_gradient_of_keys, problem, launch),
        launch,
        (columns // KEYS, N, B),
        arrays,
        _read_by_keys(arrays, G),
        [(like, _block(KEYS, H))] * 2,
    )
    found = (x[:, :S].reshape(B, S, K, G, H).sum(axis=3).astype(dtype) for x in found)
    return [_heads_first(d_query[:, :T], K), *(x.swapaxes(1, 2) for x in found)]


# The arrays of the kernels
# --------------------------------------------------------------------------------------------------


def _arguments(inputs):
    """Return the problem and the arrays by name, with the heads last and whole blocks of rows."""
    B, T, S = inputs.query.shape[0], inputs.query.shape[3], inputs.key.shape[2]
    mask: Any = known_mask(inputs.mask, T, S)  # not None: `why_not_triton` has no reason
    rows, columns = (-(-length // KEYS) * KEYS for length in (T, S))
    arrays = {
        "query": _filled(_heads_last(inputs.query), rows, axis=1),
        "key": _filled(inputs.key.swapaxes(1, 2), columns, axis=1),
        "value": _filled(inputs.value.swapaxes(1, 2), columns, axis=1),
    }
    if mask.of_keys is not None or columns > S:
        rule = padding(jnp.ones(S, bool)) if mask.of_keys is None else mask.of_keys
        is_token = jnp.broadcast_to(rule.to_array(1, S)[:, 0, 0], (B, S))
        arrays["is_token"] = _filled(is_token, columns, axis=1).astype(jnp.int8)
    if mask.segments is not None:
        of_keys = mask.segments.ids_of_keys
        ids = {"query_ids": (mask.segments.query_ids, T), "key_ids": (of_keys, S)}
        for name, (x, length) in ids.items():
            x = jnp.broadcast_to(jnp.atleast_2d(x), (B, length)).astype(jnp.int32)
            arrays[name] = _filled(x, rows if name == "query_ids" else columns, axis=1)
    if inputs.has_dropout:
        arrays["kept"] = inputs.kept_bits
    scale = float(inputs.scale)
    return Problem(T, S, mask.left, mask.right, inputs.dropout_rate, scale), arrays


def _visited(inputs, problem, launch, *, by_keys=False):
    """Return the first block that each program visits and the one behind the last, [B, i, 2]."""
    if inputs.mask is None:
        return {}
    grid = Grid(problem.T, problem.S, launch.queries, KEYS)
    some = inputs.mask.coverage(grid).over(grid).some
    some = some.mT if by_keys else some
    behind = some.shape[2] - jnp.argmax(some[:, :, ::-1], axis=2)
    bounds = [jnp.argmax(some, axis=2), jnp.where(some.any(axis=2), behind, 0)]
    visited = jnp.stack(bounds, axis=2).astype(jnp.int32)
    return {"visited": jnp.broadcast_to(visited, (inputs.query.shape[0], *visited.shape[1:]))}


def _heads_last(x: Float[Array, "B K G T H"]) -> Float[Array, "B T N H"]:
    B, _, _, T, H = x.shape
    return x.reshape(B, -1, T, H).swapaxes(1, 2)


def _heads_first(x: Float[Array, "B T N H"], K: int) -> Float[Array, "B K G T H"]:
    B, T, N, H = x.shape
    return x.swapaxes(1, 2).reshape(B, K, N // K, T, H)


def _filled(x, length, axis):
    """Return the array with zeros behind it, up to the length."""
    return jnp.pad(x, [(0, length - x.shape[axis] if i == axis else 0) for i in range(x.ndim)])


def _launches(H):
    return UP_TO_64_FEATURES if H <= 64 else WITH_128_FEATURES


def _fitting(launch, rows):
    return launch if rows % launch.queries == 0 else launch._replace(queries=KEYS)


def _call(
    kernel: Callable,
    launch: Launch,
    grid: tuple[int, int, int],
    arrays: Mapping[str, Array],
    specs: Mapping[str, pl.BlockSpec],
    results: Sequence[tuple[jax.ShapeDtypeStruct, pl.BlockSpec]],
) -> Sequence[Array]:
    """Return the results of a kernel, to which its arrays are passed by name."""

    def run(*refs):
        kernel(dict(zip(arrays, refs[: len(arrays)], strict=True)), *refs[len(arrays) :])

    return pl.pallas_call(
        run,
        grid=grid,
        in_specs=[specs[name] for name in arrays],
        out_specs=[spec for _, spec in results],
        out_shape=[shape for shape, _ in results],
        compiler_params=triton.CompilerParams(num_warps=launch.warps, num_stages=launch.stages),
        interpret=jax.default_backend() == "cpu",
    )(*arrays.values())


# What a program (i, n, b) reads: block i, head n and example b, or all blocks of them


VISITED = pl.BlockSpec((None, None, 2), lambda i, n, b: (b, i, 0))


def _block(length, H):
    return pl.BlockSpec((None, length, None, H), lambda i, n, b: (b, i, n, 0))


def _numbers(length):
    return pl.BlockSpec((None, None, length), lambda i, n, b: (b, n, i))


def _read_by_queries(arrays, G, launch):
    """Return what a program reads that has one block of queries and visits the keys."""
    columns, H = arrays["key"].shape[1], arrays["key"].shape[3]
    of_keys = pl.BlockSpec((None, columns, None, H), lambda i, n, b: (b, 0, n // G, 0))
    of_queries, numbers = _block(launch.queries, H), _numbers(launch.queries)
    groups = arrays["kept"].shape[2] if "kept" in arrays else 0
    kept = (None, None, groups, launch.queries, LANES)
    return {
        "query": of_queries,
        "d_output": of_queries,
        "logsumexp": numbers,
        "delta": numbers,
        "key": of_keys,
        "value": of_keys,
        "query_ids": pl.BlockSpec((None, launch.queries), lambda i, n, b: (b, i)),
        "key_ids": pl.BlockSpec((None, columns), lambda i, n, b: (b, 0)),
        "is_token": pl.BlockSpec((None, columns), lambda i, n, b: (b, 0)),
        "visited": VISITED,
        "kept": pl.BlockSpec(kept, lambda i, n, b: (b, n, 0, i, 0)),
    }


def _read_by_keys(arrays, G):
    """Return what a program reads that has one block of keys and visits the queries."""
    rows, H = arrays["query"].shape[1], arrays["query"].shape[3]
    of_queries = pl.BlockSpec((None, rows, None, H), lambda i, n, b: (b, 0, n, 0))
    numbers = pl.BlockSpec((None, None, rows), lambda i, n, b: (b, n, 0))
    of_keys = pl.BlockSpec((None, KEYS, None, H), lambda i, n, b: (b, i, n // G, 0))
    kept = (None, None, None, rows, LANES)
    return {
        "query": of_queries,
        "d_output": of_queries,
        "logsumexp": numbers,
        "delta": numbers,
        "key": of_keys,
        "value": of_keys,
        "query_ids": pl.BlockSpec((None, rows), lambda i, n, b: (b, 0)),
        "key_ids": pl.BlockSpec((None, KEYS), lambda i, n, b: (b, i)),
        "is_token": pl.BlockSpec((None, KEYS), lambda i, n, b: (b, i)),
        "visited": VISITED,
        "kept": pl.BlockSpec(kept, lambda i, n, b: (b, n, i // BITS, 0, 0)),
    }


# The kernels
# --------------------------------------------------------------------------------------------------


def _output(problem, launch, refs, output_ref, highest_ref, log_total_ref):
    query = refs["query"][...]
    row, rows = pl.program_id(0), pl.ds(0, launch.queries)

    def block_of_keys(index, running):
        highest, total, out = running
        columns = pl.ds(index * KEYS, KEYS)
        value = refs["value"][columns, :]
        visible = _visible(problem, launch, refs, row, rows, index, columns)
        logits = _masked(triton.dot(query, refs["key"][columns, :].T), visible, problem)
        new = jnp.maximum(highest, logits.max(axis=1))
        finite = jnp.where(new == -jnp.inf, 0.0, new)
        weights, shrink = jnp.exp2(logits - finite[:, None]), jnp.exp2(highest - finite)
        total = shrink * total + weights.sum(axis=1)
        if problem.dropout_rate:
            weights = _dropped(weights, refs["kept"][lax.div(index, BITS)], index)
        out = shrink[:, None] * out + triton.dot(weights.astype(value.dtype), value)
        return new, total, out

    zeros = jnp.zeros(launch.queries, jnp.float32)
    running = jnp.full_like(zeros, -jnp.inf), zeros, jnp.zeros(query.shape, jnp.float32)
    highest, total, out = _over_visited(refs, problem.S, KEYS, block_of_keys, running)
    out = out * (problem.kept_scale / jnp.where(total == 0, 1.0, total))[:, None]
    output_ref[...] = out.astype(output_ref.dtype)
    highest_ref[...] = highest / LOG2_E
    log_total_ref[...] = jnp.log(total)


def _gradient_of_queries(problem, launch, refs, d_query_ref):
    query, d_output = refs["query"][...], refs["d_output"][...]
    logsumexp, delta = refs["logsumexp"][...], refs["delta"][...]
    row, rows = pl.program_id(0), pl.ds(0, launch.queries)

    def block_of_keys(index, d_query):
        columns = pl.ds(index * KEYS, KEYS)
        key, value = refs["key"][columns, :], refs["value"][columns, :]
        visible = _visible(problem, launch, refs, row, rows, index, columns)
        logits = _masked(triton.dot(query, key.T), visible, problem)
        weights = jnp.exp2(logits - logsumexp[:, None])
        d_weights = triton.dot(d_output, value.T)
        if problem.dropout_rate:
            d_weights = _dropped(d_weights, refs["kept"][lax.div(index, BITS)], index)
        d_logits = weights * (d_weights - delta[:, None])
        return d_query + triton.dot(d_logits.astype(key.dtype), key)

    zeros = jnp.zeros(query.shape, jnp.float32)
    d_query = _over_visited(refs, problem.S, KEYS, block_of_keys, zeros)
    scale = problem.scale * problem.kept_scale
    d_query_ref[...] = (d_query * scale).astype(d_query_ref.dtype)


def _gradient_of_keys(problem, launch, refs, d_key_ref, d_value_ref):
    """Weights are [s, t] here, so that no product needs them transposed."""
    key, value, index = refs["key"][...], refs["value"][...], pl.program_id(0)
    columns = pl.ds(0, KEYS)

    def block_of_queries(row, running):
        d_key, d_value = running
        rows = pl.ds(row * launch.queries, launch.queries)
        query, d_output = refs["query"][rows, :], refs["d_output"][rows, :]
        visible = _visible(problem, launch, refs, row, rows, index, columns, keys_first=True)
        logits = _masked(triton.dot(key, query.T), visible, problem)
        weights = dropped = jnp.exp2(logits - refs["logsumexp"][rows][None, :])
        d_weights = triton.dot(value, d_output.T)
        if problem.dropout_rate:
            kept = refs["kept"][rows, :].T
            dropped, d_weights = (_dropped(x, kept, index) for x in (weights, d_weights))
        d_value = d_value + triton.dot(dropped.astype(d_output.dtype), d_output)
        d_logits = weights * (d_weights - refs["delta"][rows][None, :])
        return d_key + triton.dot(d_logits.astype(query.dtype), query), d_value

    zeros = jnp.zeros(key.shape, jnp.float32)
    running = zeros, zeros
    d_key, d_value = _over_visited(refs, problem.T, launch.queries, block_of_queries, running)
    scale = problem.scale * problem.kept_scale
    d_key_ref[...] = (d_key * scale).astype(d_key_ref.dtype)
    d_value_ref[...] = (d_value * problem.kept_scale).astype(d_value_ref.dtype)


def _over_visited(refs, length, size, body, running):
    """Run the body for the blocks that the program visits: all of them, or as `_visited` says."""
    first, behind = 0, -(-length // size)
    if "visited" in refs:
        first, behind = refs["visited"][0], refs["visited"][1]
    return lax.fori_loop(first, behind, body, running)


def _visible(problem, launch, refs, row, rows, column, columns, *, keys_first=False):
    """Return what each part of the mask lets through in a block, [t, s], or [s, t]."""
    # The block has the indices `row` and `column`, and is at `rows` and `columns` of what is read.
    shape = (KEYS, launch.queries) if keys_first else (launch.queries, KEYS)
    of_queries, of_keys = (None, slice(None)), (slice(None), None)
    if not keys_first:
        of_queries, of_keys = of_keys, of_queries
    visible = []
    if "is_token" in refs:
        is_token = (refs["is_token"][columns] != 0)[of_keys]
        visible.append(jnp.broadcast_to(is_token, shape))
    if "query_ids" in refs:
        ids = refs["query_ids"][rows][of_queries], refs["key_ids"][columns][of_keys]
        visible.append(ids[0] == ids[1])
    queries = jnp.arange(launch.queries)[of_queries] + (row * launch.queries + problem.shift)
    keys = jnp.arange(KEYS)[of_keys] + column * KEYS
    if problem.left is not None:
        visible.append(keys >= queries - problem.left)
    if problem.right is not None:
        visible.append(keys <= queries + problem.right)
    return visible


def _masked(products, visible, problem):
    """Return the logits times log2(e), -inf where a part of the mask hides the key."""
    logits = products * (problem.scale * LOG2_E)
    for part in visible:
        logits = jnp.where(part, logits, -jnp.inf)
    return logits


def _dropped(weights, kept, index):
    """Return 0 where a weight of this block of keys is dropped."""
    bit = lax.shift_left(1, lax.rem(index, BITS))
    return jnp.where((kept.astype(jnp.int32) & bit) != 0, weights, 0.0)
