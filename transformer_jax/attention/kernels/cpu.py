"""Attention on one CPU by a kernel in C++: `cpu/attention_forward.h`, `cpu/attention_gradient.h`.

It computes the output and the gradient of blockwise attention, of float32 or bfloat16 arrays,
without a mask or with causal masks, windows, padding and segments at the default positions. It
reads from the bits of `dropout.kept_bits` what dropout keeps. It multiplies in float32, but
bfloat16 arrays by AMX if the processor has it. For a single query, as in generation with a cache,
it takes every mask that the heads share, and keys with the heads first in memory. For everything
else XLA computes attention, and where the kernel is not built. XLA also computes the derivatives of
the gradient.
"""

import operator
from dataclasses import replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jaxtyping import Array

from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.kernels.forward import Statistics, compute_output
from transformer_jax.attention.kernels.gradient import compute_gradient
from transformer_jax.attention.kernels.known_masks import known_mask
from transformer_jax.attention.kernels.tile_sizes import Tiling, choose_tiling
from transformer_jax.attention.kernels.tiles import Tiles
from transformer_jax.attention.masks import padding, segments, sliding_window
from transformer_jax.cpu.library import DTYPES, is_built, is_one_cpu, lower_by_kernel
from transformer_jax.functional.checks import are_numbers
from transformer_jax.functional.dropout import LANES
from transformer_jax.functional.linear_map import jvp_of_some

# The axes in the order in which memory has them: [B, T, K, G, H] and [B, S, K, H].
OF_QUERIES, OF_KEYS = (0, 3, 1, 2, 4), (0, 2, 1, 3)
OF_BITS = (0, 1, 2, 4, 3)
# The indices of the mask's arguments: `is_token`, and the ids of the queries and of the keys.
IS_TOKEN, *IDS = OF_MASK = (3, 4, 5)
INPUTS = (OF_QUERIES, OF_KEYS, OF_KEYS, None, None, None, OF_BITS)
# The layouts of the arguments and of the results; None is the usual one.
FUNCTIONS = {
    "attention_forward": (INPUTS, (OF_QUERIES, None, None)),
    "attention_backward": (
        (*INPUTS, OF_QUERIES, None, None, OF_QUERIES, None),
        (OF_QUERIES, OF_KEYS, OF_KEYS),
    ),
}
NO_BOUND = -1


def why_not_cpu(inputs: AttentionInputs) -> str | None:
    """Return the reason why the C++ kernel cannot compute the inputs, or None if it can."""
    if not is_one_cpu():
        return "a CPU is not the only device"
    known = known_mask(inputs.mask, *inputs.sizes[2:])
    reasons = {
        "it takes float32 and bfloat16": inputs.query.dtype.name not in DTYPES,
        "it takes no bias or soft cap": inputs.bias is not None or inputs.soft_cap is not None,
        "it takes sizes that are numbers": not are_numbers(*inputs.sizes),
        "it takes a scale that is a number": isinstance(inputs.scale, Tracer),
        "it takes causal masks, windows, padding and segments (ids of int32)": known is None,
        "it is not built (python -m transformer_jax build)": not is_built(),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def compute_output_on_cpu(inputs: AttentionInputs) -> tuple[Array, Statistics]:
    """Return the attention output and the statistics, which the kernel always computes."""
    query, value = inputs.query, inputs.value
    rows = jax.ShapeDtypeStruct(query.shape[:4], inputs.accumulated)
    output = jax.ShapeDtypeStruct((*rows.shape, value.shape[3]), query.dtype)
    found = _bind("attention_forward", inputs, [], [output, rows, rows])
    return found[0], Statistics(*found[1:])


def compute_gradient_on_cpu(
    inputs: AttentionInputs,
    statistics: Statistics,
    d_output: Array,
    output: Array,
    d_logsumexp: Array | None,
) -> list[Array]:
    """Return the gradients of query, key and value, as `compute_gradient` does."""
    like = [inputs.query, inputs.key, inputs.value]
    if d_logsumexp is None:
        d_logsumexp = jnp.zeros((*output.shape[:3], 0), inputs.accumulated)
    more = [d_output, *statistics, output, d_logsumexp]
    return _bind("attention_backward", inputs, more, like)


def compute_by_xla(
    *arrays: Array,
    name: str,
    bounds: tuple,
    scale: float,
    dropout_rate: float,
    heads_first: bool,
    types: Any,
) -> list[Array]:
    """Return what the kernel does, computed in blocks.

    The arguments and the parameters are those of the primitive.
    """
    query, key, value, is_token, query_ids, key_ids, kept, *more = arrays
    masks = [] if bounds == (None, None) else [sliding_window(*bounds)]
    if is_token.size:
        masks.append(padding(is_token))
    if query_ids.size:
        masks.append(segments(query_ids, key_ids))
    mask = reduce(operator.and_, masks) if masks else None
    inputs = AttentionInputs(
        query,
        key,
        value,
        mask=mask,
        scale=scale,
        dropout_rate=dropout_rate,
        kept_bits=kept if dropout_rate else None,
    )
    tiles = Tiles(inputs, tiling_for_xla(inputs))
    if name == "attention_forward":
        output, found = compute_output(tiles, with_statistics=True)
        statistics: Any = found
        return [output, *statistics]
    d_output, *rows, output, d_logsumexp = more
    cotangents = d_output, output, d_logsumexp if d_logsumexp.size else None
    found = compute_gradient(tiles, Statistics(*rows), *cotangents)
    return [x for x in found if x is not None]


def tiling_for_xla(inputs: AttentionInputs) -> Tiling:
    """Return the tiling of inputs whose heads come first."""
    (B, K, G, T, H), S = inputs.query.shape, inputs.key.shape[2]
    query, key = (
        jax.ShapeDtypeStruct(shape, inputs.query.dtype)
        for shape in ((B, T, K * G, H), (B, S, K, H))
    )
    return choose_tiling(replace(inputs, query=query, key=key))


def _bind(name, inputs, more, like):
    T, S = inputs.query.shape[3], inputs.key.shape[2]
    mask: Any = known_mask(inputs.mask, T, S)  # not None: `why_not_cpu` had no objection
    is_token, query_ids, key_ids = jnp.zeros((1, 0), bool), *[jnp.zeros((1, 0), jnp.int32)] * 2
    if mask.of_keys is not None:
        is_token = mask.of_keys.to_array(1, S)[:, 0, 0]
        is_token = jnp.broadcast_to(is_token, (is_token.shape[0], S))
    if mask.segments is not None:
        ids = mask.segments.query_ids, mask.segments.ids_of_keys
        ids = (jnp.atleast_2d(x).astype(jnp.int32) for x in ids)
        query_ids, key_ids = (
            jnp.broadcast_to(x, (x.shape[0], length)) for x, length in zip(ids, (T, S), strict=True)
        )
    kept = inputs.kept_bits
    if kept is None:
        B, K, G, *_ = inputs.query.shape
        kept = jnp.zeros((B, K * G, 0, 0, LANES), jnp.uint8)
    return _kernel.bind(
        *(inputs.query, inputs.key, inputs.value, is_token, query_ids, key_ids, kept, *more),
        name=name,
        bounds=(mask.left, mask.right),
        scale=float(inputs.scale),
        dropout_rate=inputs.dropout_rate,
        heads_first=inputs.heads_first and name == "attention_forward",
        types=tuple(jax.typeof(array) for array in like),
    )


_kernel = Primitive("cpu_attention")
_kernel.multiple_results = True


@_kernel.def_abstract_eval
def _types(*_, types, **__):
    return list(types)


def _call(*arrays, name, bounds, scale, dropout_rate, heads_first, types):
    left, right = (NO_BOUND if bound is None else bound for bound in bounds)
    inputs, outputs = FUNCTIONS[name]
    if heads_first:
        inputs = tuple(None if layout == OF_KEYS else layout for layout in inputs)
    kernel = jax.ffi.ffi_call(
        f"transformer_jax_{name}_{arrays[0].dtype}",
        types,
        input_layouts=inputs,
        output_layouts=outputs,
    )
    numbers = {
        "left": np.int64(left),
        "right": np.int64(right),
        "scale": np.float32(scale),
        "kept_scale": np.float32(1 / (1 - dropout_rate)),
    }
    if name == "attention_forward":
        numbers["heads_first"] = heads_first
    return list(kernel(*arrays, **numbers))


def _jvp_rule(primals, tangents, **params):
    indices = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]

    def by_xla(*arrays):
        return compute_by_xla(*arrays, **params)

    given = [tangents[i] for i in indices]
    return _kernel.bind(*primals, **params), jvp_of_some(by_xla, primals, indices, given)


def _vmap_rule(arrays, axes, *, types, **params):
    """Make the mapped axis a part of the batch."""
    size = next(x.shape[a] for x, a in zip(arrays, axes, strict=True) if a is not None)
    B = types[0].shape[0]

    shared = {i for i in OF_MASK if axes[i] is None and arrays[i].shape[0] == 1}
    if not shared.issuperset(IDS):  # queries and keys have as many rows of ids
        shared -= set(IDS)

    def merged(index, array, axis):
        if index in shared:
            return array  # of all examples, mapped or not
        array = jnp.broadcast_to(array, (size, *array.shape)) if axis is None else array
        array = jnp.moveaxis(array, axis or 0, 0)
        if index in OF_MASK:  # a mapped example may have one for its batch
            array = jnp.broadcast_to(array, (size, B, array.shape[2]))
        return array.reshape(size * B, *array.shape[2:])

    arrays = [merged(i, *given) for i, given in enumerate(zip(arrays, axes, strict=True))]
    larger = tuple(x.update(shape=(size * B, *x.shape[1:])) for x in types)
    found = _kernel.bind(*arrays, types=larger, **params)
    return [x.reshape(size, B, *x.shape[1:]) for x in found], [0] * len(found)


lower_by_kernel(_kernel, _call, compute_by_xla)
ad.primitive_jvps[_kernel] = _jvp_rule
batching.primitive_batchers[_kernel] = _vmap_rule
