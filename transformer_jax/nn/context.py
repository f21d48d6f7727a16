"""What a stack passes to every one of its layers, in one object."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax

from transformer_jax.attention.biases import BiasLike
from transformer_jax.attention.kernels.dispatch import Implementation
from transformer_jax.attention.masked_rows import MaskedRows, find_masked_rows
from transformer_jax.attention.masks import MaskLike, as_mask
from transformer_jax.functional.rotary import Rotary


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerContext:
    """The arguments of attention that the layers of a stack share, and what is returned.

    A pytree: `rotary`, `bias` and the masks are traced, the flags and `implementation` are static.
    Nothing is checked here, since JAX also builds the pytree with placeholders; attention checks
    what it reads.
    """

    rotary: Rotary | Any = None  # or None; what queries and keys of self-attention are turned by
    bias: BiasLike | Any = None  # of self-attention
    mask: MaskLike | Any = None  # of self-attention; with a cache over the keys of the cache
    memory_mask: MaskLike | Any = None  # of cross-attention
    masked_rows: MaskedRows | Any = None  # or None; found once for all layers
    return_weights: bool = field(default=False, metadata={"static": True})
    return_states: bool = field(default=False, metadata={"static": True})
    implementation: Implementation | None = field(default=None, metadata={"static": True})

    def resolved(self, length: int) -> "LayerContext":
        """Return the context of a self-attention over `length` tokens with its `masked_rows`."""
        if self.mask is None or self.masked_rows is not None:
            return self
        mask = as_mask(self.mask)
        return replace(self, mask=mask, masked_rows=find_masked_rows(mask, length, length))

    @property
    def of_memory(self) -> "LayerContext":
        """The context of cross-attention."""
        return LayerContext(
            mask=self.memory_mask,
            return_weights=self.return_weights,
            implementation=self.implementation,
        )


DEFAULT_CONTEXT = LayerContext()
