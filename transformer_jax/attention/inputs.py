"""The arguments of attention as one object, validated once and then passed to every kernel."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.attention.bias_rule import as_bias
from transformer_jax.attention.mask_rule import Mask, MaskLike, as_mask
from transformer_jax.attention.masked_rows import MaskWithRows, find_masked_rows
from transformer_jax.attention.rule import check_fit
from transformer_jax.functional.checks import check_attention
from transformer_jax.functional.dropout import check_rate
from transformer_jax.functional.precision import operands_dtype, wide_dtype, widest


@partial(
    jax.tree_util.register_dataclass,
    # Fields with a gradient come first: the blockwise kernel returns gradients in this order.
    data_fields=[
        "query",
        "key",
        "value",
        "bias",
        "mask",
        "masked_rows",
        "dropout_rng",
        "kept_bits",
    ],
    meta_fields=[
        "scale",
        "soft_cap",
        "dropout_rate",
        "return_weights",
        "return_logsumexp",
        "heads_first",
    ],
)
@dataclass(frozen=True)
class AttentionInputs:
    """The arrays, rules and options of one call of attention.

    A pytree: arrays and rules are traced, numbers and flags are static. The constructor does not
    check them, because `jax.vmap` and `jax.tree.map` fill the fields with placeholders; `validate`
    does.
    """

    query: Any  # [B, T, N, H]
    key: Any  # [B, S, K, H]
    value: Any = None  # [B, S, K, O]; None if only the weights are computed
    bias: Any = None  # a Bias or None, once validated
    mask: Any = None  # a Mask or None, once validated
    masked_rows: Any = None  # the MaskedRows of the mask; None until they are found
    dropout_rng: Any = None
    kept_bits: Any = None  # of the weights that dropout keeps, for kernels that read them
    scale: Any = None  # a number, once validated
    soft_cap: float | None = None
    dropout_rate: float = 0.0  # 0 without a dropout key, once validated
    return_weights: bool = False
    return_logsumexp: bool = False
    # Whether key and value are views of arrays [B, K, S, H], as those of a cache.
    heads_first: bool = False

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The sizes of the logits: B, N, T and S."""
        return self.query.shape[0], self.query.shape[2], self.query.shape[1], self.key.shape[1]

    @property
    def operands(self) -> jnp.dtype:
        """The dtype of the operands of the matrix products."""
        return operands_dtype(self.query.dtype)

    @property
    def accumulated(self) -> jnp.dtype:
        """The dtype of logits, weights and sums: float32 or wider."""
        return wide_dtype(self.query.dtype)

    def scale_queries(self, query: Array) -> Array:
        """Return queries, or a gradient of queries, multiplied by the scale.

        In float16 this may overflow, so that `scale_logits` multiplies by the scale instead.
        """
        return query if self.operands == jnp.float16 else query * self.scale

    def scale_logits(self, logits: Array) -> Array:
        """Return products of `scale_queries` and keys, multiplied by the scale if they lack it."""
        return logits * self.scale if self.operands == jnp.float16 else logits

    def with_batch(self) -> "AttentionInputs":
        """Return the inputs as a batch of one example, if they are one example without the axis."""
        arrays = {name: getattr(self, name) for name in ("query", "key", "value")}
        arrays = {name: None if x is None else with_batch(x, 4) for name, x in arrays.items()}
        return replace(self, **arrays)

    def in_one_dtype(self) -> "AttentionInputs":
        """Return the inputs with query, key and value in the widest dtype of the three."""
        arrays = {
            name: getattr(self, name)
            for name in ("query", "key", "value")
            if getattr(self, name) is not None
        }
        dtype = widest(*(array.dtype for array in arrays.values()))
        if all(array.dtype == dtype for array in arrays.values()):
            return self
        return replace(self, **{name: _converted(array, dtype) for name, array in arrays.items()})

    @property
    def has_dropout(self) -> bool:
        """Whether attention weights are dropped."""
        return self.dropout_rate > 0

    def with_masked_rows(self) -> "AttentionInputs":
        """Return the inputs with their masked rows, which are found unless they are known."""
        if self.masked_rows is not None:
            return self
        return replace(self, masked_rows=find_masked_rows(self.mask, *self.sizes[2:]))

    def zero_masked_rows(self) -> "AttentionInputs":
        """Return the inputs with the masked rows of query, key and value set to zero.

        A weight of 0 does not keep a masked value out of the product, because 0 * NaN is NaN.
        """
        inputs = self.with_masked_rows()
        rows, value = inputs.masked_rows, inputs.value
        return replace(
            inputs,
            query=rows.zero_queries(inputs.query),
            key=rows.zero_keys(inputs.key),
            value=None if value is None else rows.zero_keys(value),
        )


def with_batch(array: Any, axes: int) -> Any:
    """Return an array of so many axes, of which the batch axis is added if the array lacks it."""
    if len(array.shape) == axes:
        return array
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((1, *array.shape), array.dtype)
    return array[None]


def _converted(array, dtype):
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape, dtype)
    return jnp.asarray(array).astype(dtype)


class AttentionResult(NamedTuple):
    """The result of a kernel; a field that was not requested is None."""

    output: Float[Array, "B T N O"]
    weights: Float[Array, "B N T S"] | None = None
    logsumexp: Float[Array, "B T N"] | None = None

    def without_batch(self) -> "AttentionResult":
        """Return the result of a single example without the batch axis."""
        return jax.tree.map(lambda array: array.squeeze(0), self)


def validate(inputs: AttentionInputs) -> AttentionInputs:
    """Return the inputs as kernels take them: bias and mask as rules, the scale as a number.

    Inputs without a batch axis become a batch of one example.

    Query, key and value may be of type `jax.ShapeDtypeStruct`. Raises ValueError if axes do not
    fit, K does not divide N, or a dropout key is given without a rate. Raises TypeError if an array
    is not floating point or a mask is not boolean.
    """
    check_rate(inputs.dropout_rate, inputs.dropout_rng)
    check_attention(inputs.query, inputs.key, inputs.value, inputs.soft_cap)
    batched, inputs = len(inputs.query.shape) == 4, inputs.with_batch()
    bias = as_bias(inputs.bias)
    check_fit("bias", bias, inputs.sizes, batched=batched)
    mask, rows = validate_mask(inputs.mask, inputs.sizes, batched=batched), None
    if isinstance(mask, MaskWithRows):
        mask, rows = mask.rule, find_masked_rows(mask, *inputs.sizes[2:])
    return replace(
        inputs,
        bias=bias,
        mask=mask,
        masked_rows=rows,
        scale=inputs.query.shape[3] ** -0.5 if inputs.scale is None else inputs.scale,
        dropout_rate=0.0 if inputs.dropout_rng is None else inputs.dropout_rate,
    )


def validate_mask(
    mask: MaskLike, sizes: tuple[int, int, int, int], *, batched: bool
) -> Mask | None:
    """Return the mask as a rule. Raises ValueError if it does not broadcast to B, N, T and S."""
    mask = as_mask(mask)
    check_fit("mask", mask, sizes, batched=batched)
    return mask
