"""The arguments that a stack passes to every one of its layers, in one object."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax

from transformer_jax.attention.bias_rule import BiasLike
from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.mask_rule import MaskLike
from transformer_jax.attention.masked_rows import MaskedRows, MaskWithRows, attach_masked_rows
from transformer_jax.functional.rotary import Rotary


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerContext:
    """The arguments of attention that the layers of a stack share, and flags for what is returned.

    A pytree: `rotary`, `bias` and the masks are traced, the flags and `implementation` are static.
    Nothing is checked here, since JAX also builds the pytree with placeholders; attention checks
    its arguments.
    """

    rotary: Rotary | Any = None  # or None; the rotation of queries and keys
    bias: BiasLike | Any = None  # of self-attention
    mask: MaskLike | Any = None  # of self-attention; with a cache, over its keys
    memory_mask: MaskLike | Any = None  # of cross-attention
    return_weights: bool = field(default=False, metadata={"static": True})
    return_states: bool = field(default=False, metadata={"static": True})
    implementation: Implementation | None = field(default=None, metadata={"static": True})

    def resolved(self, T: int, S: int | None = None) -> "LayerContext":
        """Return the context for T queries and S keys (S = T by default), with its masked rows.

        They are searched for unless the mask carries them.
        """
        return replace(self, mask=attach_masked_rows(self.mask, T, T if S is None else S))

    @property
    def masked_rows(self) -> MaskedRows:
        """The rows that the mask of a resolved context hides."""
        if self.mask is None:
            return MaskedRows()
        if not isinstance(self.mask, MaskWithRows):
            raise TypeError("the context is not resolved: call `resolved` first")
        return self.mask.rows

    @property
    def of_memory(self) -> "LayerContext":
        """The context of cross-attention."""
        return LayerContext(
            mask=self.memory_mask,
            return_weights=self.return_weights,
            implementation=self.implementation,
        )


DEFAULT_CONTEXT = LayerContext()
