"""The base class of attention biases, their sums, arrays as biases, and their derivatives.

Biases are added with `+`, to one another and to an array, and passed as `bias=`. Like masks they
are rendered block by block, and take the positions of a cache. `biases.py` has ALiBi and relative
biases.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.attention.rule import Block, DenseRule, Rule, four_axes, part, rule_class
from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.precision import wide_dtype, widest


class Bias(Rule):
    """A rule of numbers that are added to the logits; `a + b` adds both rules."""

    def __add__(self, other: "Bias | Array") -> "Bias":
        return _Sum(self, other if isinstance(other, Bias) else dense_bias(other))

    # So that `array + rule` calls the rule's operator instead of broadcasting the array over it.
    __array_priority__ = 1000
    __radd__ = __add__

    def zero_gradient(self) -> "Bias":
        """Return zeros for each array of numbers, in float32 or wider, and None for positions.

        `add_gradient` starts from them.
        """
        return jax.tree.map(
            lambda x: jnp.zeros(x.shape, wide_dtype(x.dtype)) if _is_float(x) else None, self
        )

    def add_gradient(
        self, total: "Bias", block: Block, cotangent: Float[Array, "b n t s"]
    ) -> "Bias":
        """Return `total` plus the gradient of one rendered block, whose cotangent is given.

        `total` starts as `zero_gradient` and is accumulated block by block.
        """
        array, pullback = jax.vjp(self._renderer(block), self._floats())
        (gradients,) = pullback(_sum_to(array.shape, cotangent).astype(array.dtype))
        gradients = jax.tree.unflatten(jax.tree.structure(total), gradients)
        return jax.tree.map(lambda old, new: old + new.astype(old.dtype), total, gradients)

    def tangent(self, tangents: list[Array | None], block: Block) -> Float[Array, "#b #n #t #s"]:
        """Return the tangent of one rendered block for tangents of the arrays of the rule.

        None stands for zero.
        """
        leaves = zip(jax.tree.leaves(self), tangents, strict=True)
        of_floats = [
            jnp.zeros_like(leaf) if tangent is None else tangent
            for leaf, tangent in leaves
            if _is_float(leaf)
        ]
        return jax.jvp(self._renderer(block), [self._floats()], [of_floats])[1]

    def _floats(self):
        return [leaf for leaf in jax.tree.leaves(self) if _is_float(leaf)]

    def _renderer(self, block):
        """Return the rendered block as a function of the arrays of numbers."""
        leaves, structure = jax.tree.flatten(self)

        def rendered(floats):
            floats = iter(floats)
            full = [next(floats) if _is_float(leaf) else leaf for leaf in leaves]
            return jax.tree.unflatten(structure, full).render(block)

        return rendered

    def as_gradient(self, total: "Bias") -> list[Array | None]:
        """Return the array of `total` for each leaf of the rule, in the dtype of the leaf.

        It is None for positions.
        """
        totals = iter(jax.tree.leaves(total))
        return [
            next(totals).astype(leaf.dtype) if _is_float(leaf) else None
            for leaf in jax.tree.leaves(self)
        ]


def _is_float(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _sum_to(shape, array):
    axes = tuple(
        i for i, (one, full) in enumerate(zip(shape, array.shape, strict=True)) if one < full
    )
    return array.sum(axis=axes, keepdims=True)


@rule_class()
class _Sum(Bias):
    first: Bias
    second: Bias

    def block(self, block):
        first, second = self.first.render(block), self.second.render(block)
        dtype = widest(first.dtype, second.dtype)
        return first.astype(dtype) + second.astype(dtype)

    def add_gradient(self, total: "_Sum", block, cotangent):
        first = self.first.add_gradient(total.first, block, cotangent)
        return _Sum(first, self.second.add_gradient(total.second, block, cotangent))


@rule_class()
class _Dense(DenseRule, Bias):
    def add_gradient(self, total: "_Dense", block, cotangent):
        if self.array.ndim < 4:
            return super().add_gradient(total, block, cotangent)
        # In place: the general method would create an array of full size for each block.
        starts, sizes = part(self.array, block)
        new = lax.dynamic_slice(total.array, starts, sizes)
        new += _sum_to(sizes, cotangent).astype(new.dtype)
        return _Dense(lax.dynamic_update_slice(total.array, new, starts))


def dense_bias(array: Float[Array, "..."] | Float[np.ndarray, "..."]) -> Bias:
    """Return a bias rule for an array that broadcasts to [B, N, T, S].

    Raises TypeError if the array is not floating point, and ValueError if it has more than four
    axes.
    """
    if getattr(array, "dtype", None) == jnp.bool_:
        raise TypeError("bias must be floating point; got bool. Pass a mask as mask=")
    check_arrays(bias=(array, "..."))
    return _Dense(four_axes(array, "bias"))


BiasLike = Bias | Float[Array, "..."] | Float[np.ndarray, "..."] | None


def as_bias(bias: BiasLike) -> Bias | None:
    """Return a bias as a rule: an array becomes `dense_bias`, a rule or None stays as it is."""
    if isinstance(bias, Rule) and not isinstance(bias, Bias):
        raise TypeError(
            f"bias must be a bias rule or an array; got {type(bias).__name__}, a mask: pass mask="
        )
    return bias if bias is None or isinstance(bias, Bias) else dense_bias(bias)
