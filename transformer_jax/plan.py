"""Which implementation computes an attention, chosen from what can be seen before it runs: device, shapes, mask, dtype.

print(attention_plan(query, key, value, mask=causal()).reason)
"""

from dataclasses import dataclass
from typing import Literal

import jax
from jaxtyping import Array, Float

from transformer_jax.biases import BiasLike
from transformer_jax.cudnn import why_not_cudnn
from transformer_jax.masks import MaskLike
from transformer_jax.shapes import check_attention

Implementation = Literal["reference", "blockwise", "cudnn"]
IMPLEMENTATIONS = ("reference", "blockwise", "cudnn")

# Below so many logits in all a loop over blocks saves nothing.
FEW_LOGITS = 2**17


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

    Raises ValueError, with the reason, where the implementation that is asked for cannot do it, and what
    `dot_product_attention` raises for arrays that do not fit.

    >>> x = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)
    >>> attention_plan(x, x, x, return_weights=True).reason
    'weights are asked for, which only the reference makes'
    """
    check_attention(query, key, value, soft_cap)
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
    if not_cudnn is None:
        return AttentionPlan("cudnn", "the GPU's own fused kernel takes these arguments")
    if objections["blockwise"] is not None:
        return AttentionPlan("reference", objections["blockwise"])
    if B * N * T * S < FEW_LOGITS:
        return AttentionPlan(
            "reference", f"{B * N * T * S} logits are too few to be worth a loop over blocks"
        )
    return AttentionPlan(
        "blockwise", f"{B * N * T * S} logits are computed by blocks and never stored together"
    )
