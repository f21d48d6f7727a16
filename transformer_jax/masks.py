"""The mask rules, under the import path that this library has always had for them."""

from transformer_jax.attention.mask_rule import Mask, dense
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window

__all__ = ["Mask", "causal", "dense", "padding", "prefix", "segments", "sliding_window"]
