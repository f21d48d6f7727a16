"""The masks that kernels in C++ and CUDA take by name or by numbers, without an array of T x S."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from transformer_jax.attention.mask_rule import Mask, MaskLike, _Both, _Dense
from transformer_jax.attention.masks import _Causal, _Padding, _Segments, _Window


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


class KnownMask(NamedTuple):
    """The parts of a mask that causal masks, windows, padding and segments make together."""

    left: int | None = None  # the bounds of a window; None hides nothing
    right: int | None = None
    of_keys: Mask | None = None  # depends on the key alone
    segments: Mask | None = None


def known_mask(mask: Mask | None, T: int, S: int) -> KnownMask | None:
    """Return the parts of a mask of causal masks, windows, padding and one of segments.

    Returns None for any other mask, or one with positions, unless it is for a single query and the
    same for all heads. The ids of segments have to fit int32.
    """
    if mask is None:
        return KnownMask()
    if T == 1 and jax.eval_shape(lambda: mask.to_array(1, S)).shape[1] == 1:
        return KnownMask(of_keys=mask)
    if isinstance(mask, _Padding) or (
        isinstance(mask, _Dense) and (1, 1, 1, *mask.array.shape)[-3:-1] == (1, 1)
    ):
        return KnownMask(of_keys=mask)
    if isinstance(mask, _Segments) and _fit_int32(*jax.tree.leaves(mask)):
        return KnownMask(segments=mask)
    if isinstance(mask, _Causal | _Window) and not jax.tree.leaves(mask):
        return KnownMask(*((None, 0) if isinstance(mask, _Causal) else (mask.left, mask.right)))
    if not isinstance(mask, _Both):
        return None
    first, second = (known_mask(part, T, S) for part in (mask.first, mask.second))
    if first is None or second is None or None not in (first.segments, second.segments):
        return None
    left, right = (
        min((bound for bound in bounds if bound is not None), default=None)
        for bounds in ((first.left, second.left), (first.right, second.right))
    )
    rules = [rule for rule in (first.of_keys, second.of_keys) if rule is not None]
    of_keys = rules[0] & rules[1] if len(rules) == 2 else next(iter(rules), None)
    segments = second.segments if first.segments is None else first.segments
    return KnownMask(left, right, of_keys, segments)


def _fit_int32(*ids: Array) -> bool:
    return all(np.can_cast(x.dtype, np.int32) for x in ids)
