"""Which implementation computes an attention, chosen from what can be seen before it runs: device,
shapes, mask, dtype.

What is chosen, and the reason in a sentence:

    print(attention_plan(query, key, value, mask=causal()).reason)
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.attention.biases import Bias, BiasLike, as_bias
from transformer_jax.attention.kernels.cudnn import name_of, why_not_cudnn
from transformer_jax.attention.kernels.tile_sizes import FUSED, is_plain, on_one_cpu
from transformer_jax.attention.masks import Mask, MaskLike, as_mask
from transformer_jax.attention.rule import check_fit, rendered
from transformer_jax.functional.checks import check_attention
from transformer_jax.runtime.processor import processor_has

Implementation = Literal["reference", "blockwise", "cudnn"]
IMPLEMENTATIONS = ("reference", "blockwise", "cudnn")

# What the reference may store. On a CPU it is faster while an example's logits about fit the
# caches, alone or one of several, and in all do not reach so far beyond them that fresh pages cost
# more than the arithmetic. Measured in float32 at 8 heads of 64 on two cores of a Xeon with AVX-512
# and of an EPYC without (docs/benchmarks/attention.md): that AVX-512 is what makes the difference
# is a guess. On an accelerator only the memory counts: of logits, and of masks passed to cuDNN.
ONE_EXAMPLE, OF_SEVERAL, ALL_TOGETHER = 2**19, 2**20, 2**25
WITHOUT_AVX512 = 2**22  # of one example or of several
ON_AN_ACCELERATOR = 2**28
# Of a head, and of all: of fewer the gradient, which computes the weights three times more, is
# slower than the reference.
LEAST_FUSED, LEAST_ALL_FUSED = 2**14, 2**20


@dataclass(frozen=True)
class AttentionPlan:
    """The choice, and why in a sentence."""

    implementation: Implementation
    reason: str


def attention_plan(
    query: Float[Array | jax.ShapeDtypeStruct, "B T N H"],
    key: Float[Array | jax.ShapeDtypeStruct, "B S K H"],
    value: Float[Array | jax.ShapeDtypeStruct, "B S K O"],
    *,
    bias: BiasLike = None,
    mask: MaskLike = None,
    soft_cap: float | None = None,
    dropout: bool = False,
    return_weights: bool = False,
    return_logsumexp: bool = False,
    implementation: Implementation | None = None,
) -> AttentionPlan:
    """What `dot_product_attention` does with these arguments, and why.

    Raises ValueError, with the reason, where the implementation that is asked for cannot do it, and
    what `dot_product_attention` raises for arrays that do not fit.

    >>> x = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)
    >>> attention_plan(x, x, x, return_weights=True).reason
    'weights are asked for, which only the reference makes'
    """
    check_attention(query, key, value, soft_cap)
    bias, mask = fitting_rules(query, key, bias, mask)
    if implementation not in (None, *IMPLEMENTATIONS):
        raise ValueError(
            f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, or None to choose; "
            f"got {implementation!r}"
        )
    (B, T, N), S = query.shape[:3], key.shape[1]
    nothing = 0 in (B, T, S)
    not_cudnn = why_not_cudnn(
        query, key, value, bias, mask, soft_cap, dropout, return_weights, return_logsumexp
    )
    objections = {
        "reference": None,
        "blockwise": "weights are asked for, which only the reference makes"
        if return_weights
        else "there is nothing to attend to"
        if nothing
        else None,
        "cudnn": not_cudnn,
    }
    if implementation is not None:
        if objections[implementation] is not None:
            raise ValueError(
                f'implementation "{implementation}" cannot be had: {objections[implementation]}; '
                "pass None to have one chosen"
            )
        return AttentionPlan(implementation, "it is asked for")
    if (
        not_cudnn is None
        and not _is_wider(bias, query, T, S)  # which cuDNN would round
        and _passed_on(mask, bias, T, S) < ON_AN_ACCELERATOR
    ):
        return AttentionPlan("cudnn", "the GPU's own fused kernel takes these arguments")
    if objections["blockwise"] is not None:
        return AttentionPlan("reference", objections["blockwise"])
    if _fuses(B * N, T * S) and is_plain(query.dtype, bias, soft_cap, dropout=dropout):
        return AttentionPlan(
            "blockwise", f"{T * S:,} logits of a head stay in the caches, in one fused expression"
        )
    if _few(B, N * T * S):
        return AttentionPlan(
            "reference", f"{B * N * T * S:,} logits are few enough to be stored together"
        )
    return AttentionPlan(
        "blockwise", f"{B * N * T * S:,} logits are computed by blocks and never stored together"
    )


def fitting_rules(
    query: Any, key: Any, bias: BiasLike, mask: MaskLike
) -> tuple[Bias | None, Mask | None]:
    """The bias and the mask as rules, which broadcast to [B, N, T, S]; raises where they do not."""
    sizes = query.shape[0], query.shape[2], query.shape[1], key.shape[1]
    rules = as_bias(bias), as_mask(mask)
    for name, rule in zip(("bias", "mask"), rules, strict=True):
        check_fit(name, rule, sizes)
    return rules


def _passed_on(mask: Mask | None, bias: Bias | None, T: int, S: int) -> int:
    """Numbers in the arrays that cuDNN must be given for the mask and the bias, which blocks do
    without.
    """
    rules = [bias] if name_of(mask, T, S, bias) else [mask, bias]
    shapes = [jax.eval_shape(lambda r=r: rendered(r, T, S)).shape for r in rules if r is not None]
    return math.prod(jnp.broadcast_shapes(*shapes)[:2]) * T * S if shapes else 0


def _is_wider(bias: Bias | None, query: Any, T: int, S: int) -> bool:
    if bias is None:
        return False
    return jax.eval_shape(lambda: rendered(bias, T, S)).dtype.itemsize > query.dtype.itemsize


def _fuses(heads: int, logits: int) -> bool:
    """Whether so many logits a head are one fused tile, and faster than the reference: with
    AVX-512, where it was measured.
    """
    enough = LEAST_FUSED <= logits <= FUSED and heads * logits >= LEAST_ALL_FUSED
    return enough and on_one_cpu() and processor_has("avx512f")


def _few(examples: int, logits: int) -> bool:
    """Whether the reference is faster, for so many logits an example."""
    if jax.default_backend() != "cpu":
        return examples * logits < ON_AN_ACCELERATOR
    if processor_has("avx512f"):
        enough = ONE_EXAMPLE if examples == 1 else OF_SEVERAL
    else:
        enough = WITHOUT_AVX512
    return logits < enough and examples * logits < ALL_TOGETHER
