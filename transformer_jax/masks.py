"""The mask rules, under the import path that this library has always had for them."""

from transformer_jax.attention.masks import (
    Mask,
    causal,
    dense,
    padding,
    prefix,
    segments,
    sliding_window,
)

__all__ = ["Mask", "causal", "dense", "padding", "prefix", "segments", "sliding_window"]
