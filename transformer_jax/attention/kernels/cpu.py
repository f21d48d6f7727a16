"""Attention on one CPU by a kernel in C++, in float32: `cpu_attention.cc`.

It computes the output and the gradient of blockwise attention without a mask, or with causal masks,
windows and padding at the default positions. A C++ compiler builds it for this processor:

    python -m transformer_jax build

Without it, and for everything else, XLA computes attention. XLA also computes the derivatives of
the gradient, and what is exported or compiled for another kind of device.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.masks import window_and_padding
from transformer_jax.functional.checks import are_numbers
from transformer_jax.runtime.shared_library import library_path

SOURCE = Path(__file__).with_name("cpu_attention.cc")
# The axes in the order in which memory has them: [B, T, K, G, H] and [B, S, K, H].
OF_QUERIES, OF_KEYS = (0, 3, 1, 2, 4), (0, 2, 1, 3)
QUERY_KEY_VALUE_PADDING = (OF_QUERIES, OF_KEYS, OF_KEYS, None)
# The layouts of the arguments and of the results; None is the usual one.
FUNCTIONS = {
    "attention_forward": (QUERY_KEY_VALUE_PADDING, (OF_QUERIES, None, None)),
    "attention_backward": (
        (*QUERY_KEY_VALUE_PADDING, OF_QUERIES, None, None, None),
        (OF_QUERIES, OF_KEYS, OF_KEYS),
    ),
}
NO_BOUND = -1


def why_not_cpu(inputs: AttentionInputs) -> str | None:
    """Return the reason why the C++ kernel cannot compute the inputs, or None if it can."""
    reasons = {
        "a CPU is not the only device": jax.default_backend() != "cpu" or jax.device_count() > 1,
        "it takes float32": any(
            array.dtype != jnp.float32 for array in (inputs.query, inputs.key, inputs.value)
        ),
        "it takes no bias, soft cap or dropout": inputs.bias is not None
        or inputs.soft_cap is not None
        or inputs.has_dropout,
        "it takes sizes that are numbers": not are_numbers(*inputs.sizes),
        "it takes causal masks, windows and padding": window_and_padding(inputs.mask) is None,
        "it is not built (python -m transformer_jax build)": not is_built(),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@cache
def is_built() -> bool:
    """Return whether the kernel is built for this processor, after loading it."""
    path = library_path(SOURCE)
    if not path.exists():
        return False
    library = ctypes.CDLL(str(path))
    for name in FUNCTIONS:
        target = jax.ffi.pycapsule(getattr(library, name))
        jax.ffi.register_ffi_target(f"transformer_jax_{name}", target, platform="cpu")
    return True


def call_kernel(
    name: str,
    inputs: AttentionInputs,
    more: Sequence[Array],
    like: Sequence[Array | jax.ShapeDtypeStruct],
    fallback: Callable[..., Sequence[Array]],
) -> list[Array]:
    """Return the results of one of the kernel's functions, with the types of the arrays `like`.

    The inputs have the heads first, as in `blockwise.py`. `fallback(mask, scale, *arrays)` returns
    the same, computed by XLA, where arrays are query, key, value, the padding (without elements if
    there is none) and `more`. The mask is (left, right), the bounds of a window.
    """
    found: Any = window_and_padding(inputs.mask)  # not None: the kernel takes the inputs
    left, right, rule = found
    is_token = jnp.zeros((1, 0), bool)
    if rule is not None:
        S = inputs.key.shape[2]
        is_token = rule.to_array(1, S)[:, 0, 0]
        is_token = jnp.broadcast_to(is_token, (is_token.shape[0], S))
    return _kernel.bind(
        inputs.query,
        inputs.key,
        inputs.value,
        is_token,
        *more,
        name=name,
        mask=(left, right),
        scale=float(inputs.scale),
        types=tuple(jax.typeof(array) for array in like),
        fallback=fallback,
    )


_kernel = Primitive("cpu_attention")
_kernel.multiple_results = True


@_kernel.def_abstract_eval
def _types(*_, types, **__):
    return list(types)


@_kernel.def_impl
def _call(*arrays, name, mask, scale, types, **_):
    left, right = (NO_BOUND if bound is None else bound for bound in mask)
    inputs, outputs = FUNCTIONS[name]
    kernel = jax.ffi.ffi_call(
        f"transformer_jax_{name}", types, input_layouts=inputs, output_layouts=outputs
    )
    numbers = {"left": np.int64(left), "right": np.int64(right), "scale": np.float32(scale)}
    return list(kernel(*arrays, **numbers))


def _by_xla(*arrays, mask, scale, fallback, **_):
    return list(fallback(mask, scale, *arrays))


def _lower_on_cpu(context, *arrays, **params):
    # An exported program may run where there is no kernel.
    exported = context.module_context.lowering_parameters.for_export
    function = _by_xla if exported else _call
    return mlir.lower_fun(function, multiple_results=True)(context, *arrays, **params)


mlir.register_lowering(_kernel, mlir.lower_fun(_by_xla, multiple_results=True))
mlir.register_lowering(_kernel, _lower_on_cpu, platform="cpu")


def _jvp_rule(primals, tangents, **params):
    indices = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]

    def of_some(*some):
        full = list(primals)
        for i, array in zip(indices, some, strict=True):
            full[i] = array
        return _by_xla(*full, **params)

    given = [primals[i] for i in indices], [tangents[i] for i in indices]
    return _kernel.bind(*primals, **params), jax.jvp(of_some, *given)[1]


def _vmap_rule(arrays, axes, *, types, **params):
    """The mapped axis becomes a part of the batch."""
    size = next(x.shape[a] for x, a in zip(arrays, axes, strict=True) if a is not None)

    def merged(array, axis):
        if axis is not None:
            array = jnp.moveaxis(array, axis, 0)
        elif array.shape[0] == 1:  # padding that all examples share
            return array
        else:
            array = jnp.broadcast_to(array[None], (size, *array.shape))
        return array.reshape(-1, *array.shape[2:])

    B = types[0].shape[0]
    arrays = [merged(*given) for given in zip(arrays, axes, strict=True)]
    if arrays[3].shape[0] not in (1, size * B):  # each mapped example has padding for its batch
        arrays[3] = jnp.repeat(arrays[3], B, axis=0)
    larger = tuple(x.update(shape=(size * x.shape[0], *x.shape[1:])) for x in types)
    found = _kernel.bind(*arrays, types=larger, **params)
    return [x.reshape(size, -1, *x.shape[1:]) for x in found], [0] * len(found)


ad.primitive_jvps[_kernel] = _jvp_rule
batching.primitive_batchers[_kernel] = _vmap_rule
