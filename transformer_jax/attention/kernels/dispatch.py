"""The choice between the implementations of attention.

It depends only on what is known before the computation: device, shapes, mask and dtype. To see
which one is chosen, and why:

    print(attention_plan(query, key, value, mask=causal()).reason)
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.attention.bias_rule import BiasLike
from transformer_jax.attention.inputs import AttentionInputs, validate
from transformer_jax.attention.kernels.cpu import why_not_cpu
from transformer_jax.attention.kernels.cudnn import mask_name, why_not_cudnn
from transformer_jax.attention.kernels.thresholds import (
    KERNEL_FROM,
    LIMITS,
    SINGLE_QUERY_FROM,
    Case,
)
from transformer_jax.attention.kernels.triton import LEAST_QUERIES, why_not_triton
from transformer_jax.attention.mask_rule import MaskLike
from transformer_jax.attention.rule import rendered
from transformer_jax.functional.checks import are_numbers
from transformer_jax.runtime.processor import widest_instructions

Implementation = Literal["reference", "blockwise", "cpu", "triton", "cudnn"]
IMPLEMENTATIONS = ("reference", "blockwise", "cpu", "triton", "cudnn")


# Only memory matters: that of the logits, and of mask arrays for cuDNN.
ON_AN_ACCELERATOR = 2**28
# The number of logits of a head from which cuDNN is faster than Triton's kernels, under the masks
# that it takes by name. Measured on an H200.
CUDNN_FROM = 2**20


@dataclass(frozen=True)
class AttentionPlan:
    """The chosen implementation, the reason, and the implementation where derivatives are taken."""

    implementation: Implementation
    reason: str
    differentiated: Implementation


def attention_plan(
    query: Float[Array | jax.ShapeDtypeStruct, "*B T N H"],
    key: Float[Array | jax.ShapeDtypeStruct, "*B S K H"],
    value: Float[Array | jax.ShapeDtypeStruct, "*B S K O"],
    *,
    bias: BiasLike = None,
    mask: MaskLike = None,
    soft_cap: float | None = None,
    dropout: bool = False,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    implementation: Implementation | None = None,
) -> AttentionPlan:
    """Return the implementation that `dot_product_attention` uses for these arguments, and why.

    Raises ValueError, with the reason, if a requested implementation does not support the
    arguments. Raises as `dot_product_attention` does for arrays that do not fit.

    >>> x = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)
    >>> attention_plan(x, x, x, return_weights=True).reason
    'weights are asked for, which only the reference makes'
    """
    inputs = AttentionInputs(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        soft_cap=soft_cap,
        return_weights=return_weights,
        return_logsumexp=return_logsumexp,
    )
    # The choice depends on whether there is dropout, not on its rate or key.
    inputs = replace(validate(inputs).in_one_dtype(), dropout_rate=0.5 if dropout else 0.0)
    return choose_kernel(inputs, implementation)


def choose_kernel(
    inputs: AttentionInputs, implementation: Implementation | None = None
) -> AttentionPlan:
    """Return the implementation that computes the validated inputs, and why.

    Raises ValueError if the requested implementation does not support them.
    """
    if implementation not in (None, *IMPLEMENTATIONS):
        raise ValueError(
            f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, or None to choose; "
            f"got {implementation!r}"
        )
    objections = {
        "reference": None,
        "blockwise": _why_not_blockwise(inputs),
        "cpu": _why_not_blockwise(inputs) or why_not_cpu(inputs),
        "triton": _why_not_blockwise(inputs) or why_not_triton(inputs),
        "cudnn": why_not_cudnn(inputs),
    }
    if implementation is not None:
        if objections[implementation] is not None:
            raise ValueError(
                f'implementation "{implementation}" cannot be had: {objections[implementation]}; '
                "pass None to have one chosen"
            )
        return AttentionPlan(implementation, "it is asked for", implementation)
    has_cudnn = bool(
        objections["cudnn"] is None
        and not _is_bias_wider(inputs)  # cuDNN would round it
        and _array_sizes_for_cudnn(inputs) < ON_AN_ACCELERATOR
    )
    if objections["blockwise"] is not None and not has_cudnn:
        return AttentionPlan("reference", objections["blockwise"], "reference")
    B, N, T, S = inputs.sizes
    B = B if are_numbers(B) else 1  # the choice for a symbolic batch is that for one example
    logits = f"{B * N * T * S:,} logits are"
    reasons: dict[Implementation, str] = {
        "cpu": "the kernel in C++ takes these arguments",
        "triton": "the kernels in Triton take these arguments",
        "cudnn": "the GPU's own fused kernel takes these arguments",
        "reference": f"{logits} few enough to be stored together",
        "blockwise": f"{logits} computed by blocks and never stored together",
    }
    if jax.default_backend() == "cpu":
        case = Case(
            instructions=widest_instructions(),
            narrow=inputs.query.dtype.itemsize < 4,
            gradient=False,
            masked=inputs.mask is not None,
        )
        choose = partial(choose_on_cpu, sizes=(B, N, T, S), has_kernel=objections["cpu"] is None)
        chosen, differentiated = choose(case), choose(case._replace(gradient=True))
    else:
        chosen = differentiated = choose_on_accelerator(
            (B, N, T, S),
            has_cudnn=has_cudnn,
            has_triton=objections["triton"] is None,
            is_window=mask_name(inputs) in ("window", None),
        )
    return AttentionPlan(chosen, reasons[chosen], differentiated)


def choose_on_cpu(
    case: Case, *, sizes: tuple[int, int, int, int], has_kernel: bool
) -> Implementation:
    """Return the implementation for logits of the sizes B, N, T and S on a CPU.

    `has_kernel` is whether the kernel in C++ is built and takes the arguments.
    """
    B, N, T, S = sizes
    if T == 1:
        number, least = B * S, SINGLE_QUERY_FROM[case.masked]
    else:
        number = T * S
        least = KERNEL_FROM[case].one_example if B == 1 else KERNEL_FROM[case].of_several
    # XLA computes the gradient of a single query.
    if has_kernel and number >= least and not (case.gradient and T == 1):
        return "cpu"
    limits = LIMITS[case]
    logits, enough = N * T * S, limits.one_example if B == 1 else limits.of_several
    fits = logits < enough and B * logits < limits.together
    return "reference" if fits else "blockwise"


def choose_on_accelerator(
    sizes: tuple[int, int, int, int], *, has_cudnn: bool, has_triton: bool, is_window: bool
) -> Implementation:
    """Return the implementation for logits of the sizes B, N, T and S on a GPU or TPU.

    `has_cudnn` and `has_triton` are whether these take the arguments, and `is_window` is whether
    the mask is a window, or another one that cuDNN does not take by name.
    """
    T, S = sizes[2:]
    prefers_triton = is_window or T * S < CUDNN_FROM or not has_cudnn
    if has_triton and T >= LEAST_QUERIES and prefers_triton:
        return "triton"
    if has_cudnn:
        return "cudnn"
    return "reference" if math.prod(sizes) < ON_AN_ACCELERATOR else "blockwise"


def _why_not_blockwise(inputs):
    if inputs.return_weights:
        return "weights are asked for, which only the reference makes"
    B, _, T, S = inputs.sizes
    if not are_numbers(T, S):
        return "a symbolic length cannot be cut into blocks"
    return "there is nothing to attend to" if 0 in (B, T, S) else None


def _array_sizes_for_cudnn(inputs):
    """Return how many numbers the mask and bias arrays have that cuDNN needs and blocks do not."""
    _, _, T, S = inputs.sizes
    rules = [inputs.bias] if mask_name(inputs) else [inputs.mask, inputs.bias]
    shapes = [jax.eval_shape(lambda r=r: rendered(r, T, S)).shape for r in rules if r is not None]
    return math.prod(jnp.broadcast_shapes(*shapes)[:2]) * T * S if shapes else 0


def _is_bias_wider(inputs):
    """Return whether the bias has a wider dtype than the query."""
    if inputs.bias is None:
        return False
    bias = jax.eval_shape(lambda: rendered(inputs.bias, *inputs.sizes[2:]))
    return bias.dtype.itemsize > inputs.query.dtype.itemsize
