"""The masks that kernels in C++ and CUDA take by name or by numbers, without an array of T x S."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from transformer_jax.attention.mask_rule import Mask, MaskLike, _Both, _Dense
from transformer_jax.attention.masks import _Causal, _Padding, _Window


def is_causal(mask: MaskLike) -> bool:
    """Return whether the mask is exactly `causal()` at the default positions."""
    return isinstance(mask, _Causal) and not jax.tree.leaves(mask)


def padded_keys(mask: MaskLike) -> Bool[Array, "#B S"] | None:
    """Return the `is_token` of a `padding` mask, or None for any other mask."""
    return jnp.atleast_2d(mask.is_token) if isinstance(mask, _Padding) else None


def left_window(mask: MaskLike) -> int | None:
    """Return `left` of `sliding_window(left, 0)` at the default positions; None for other masks."""
    if isinstance(mask, _Window) and mask.right == 0 and not jax.tree.leaves(mask):
        return mask.left
    return None


def window_and_padding(
    mask: Mask | None, T: int, S: int
) -> tuple[int | None, int | None, Mask | None] | None:
    """Return what causal masks, windows and padding let through together.

    It is (left, right, rule): the bounds of a window, and a rule that depends on the key alone;
    each is None if it hides nothing. Returns None for any other mask, or one with positions, unless
    it is for a single query and the same for all heads.
    """
    if mask is None:
        return None, None, None
    if T == 1 and jax.eval_shape(lambda: mask.to_array(1, S)).shape[1] == 1:
        return None, None, mask
    if isinstance(mask, _Padding) or (
        isinstance(mask, _Dense) and (1, 1, 1, *mask.array.shape)[-3:-1] == (1, 1)
    ):
        return None, None, mask
    if isinstance(mask, _Causal | _Window) and not jax.tree.leaves(mask):
        return (None, 0, None) if isinstance(mask, _Causal) else (mask.left, mask.right, None)
    if not isinstance(mask, _Both):
        return None
    first, second = (window_and_padding(part, T, S) for part in (mask.first, mask.second))
    if first is None or second is None:
        return None
    left, right = (
        min((bound for bound in bounds if bound is not None), default=None)
        for bounds in ((first[0], second[0]), (first[1], second[1]))
    )
    rules = [rule for rule in (first[2], second[2]) if rule is not None]
    return left, right, rules[0] & rules[1] if len(rules) == 2 else next(iter(rules), None)
