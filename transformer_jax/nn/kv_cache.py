"""Keys and values of the tokens that were read, kept for those that follow: a plain pytree of fixed
capacity.

A token at position p (its number among the real tokens of its example) is written to slot p, or p
mod C where a window makes the cache a ring. So padding takes no slot, on whichever side it stands,
examples may have any lengths, and the rules of attention need to know of the cache only at which
positions its slots stand:

    step = cache.step(is_token)  # once a call, for all layers
    mask = causal(query_positions=step.positions, key_positions=step.key_positions)
    mask &= padding(step.is_key)

A slot that was never written is no key: nothing reads it. A full cache that is no ring takes no
more: what comes of an example that has more tokens than slots is NaN, never an answer that has
forgotten some.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int


class KeysAndValues(NamedTuple):
    """Of one layer, C slots; heads come before slots, as the products read them."""

    keys: Float[Array, "B K C H"]
    values: Float[Array, "B K C O"]


class Step(NamedTuple):
    """Where the new tokens of a call stand and are written, and the keys that they attend to: C
    slots, or in a ring that is given several tokens at once its C slots and these tokens."""

    positions: Int[Array, "B T"]  # of the new tokens; 0 or more for padding too
    slots: Int[Array, "B T"]  # C where a token is not written: padding, or soon overwritten
    key_positions: Int[Array, "B S"]
    is_key: Bool[Array, "B S"]
    lengths: Int[Array, " B"]  # how many tokens each example has with these


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """What generation carries from token to token."""

    # JAX builds pytrees of placeholders, so that the fields are not checked: shapes stand behind
    # them.
    layers: Any  # a tuple of KeysAndValues, one a layer
    lengths: Any  # [B], how many tokens each example has
    # How many tokens before its own one sees; None: the cache is no ring.
    window: int | None = field(default=None, metadata={"static": True})
    # Of an encoder-decoder: what each layer's cross-attention reads, computed once, and which of it
    # is a token.
    memory: Any = ()  # a tuple of (keys [B, S, K, H], values), one a layer
    is_memory: Any = None  # [B, S]

    @property
    def capacity(self) -> int:
        """C, how many slots there are."""
        return self.layers[0].keys.shape[2]

    def step(self, is_token: Bool[Array, "B T"]) -> Step:
        """What a call with these tokens reads and writes; the same for every layer.

        Raises ValueError where there are more tokens than slots, and no ring.
        """
        C, T = self.capacity, is_token.shape[1]
        if self.window is None and T > C:
            raise ValueError(f"{T} tokens do not fit into a cache of {C}")
        count = jnp.cumsum(is_token, axis=1, dtype=jnp.int32)
        positions = self.lengths[:, None] + jnp.maximum(count - 1, 0)
        after = self.lengths + count[:, -1]
        # Of more tokens than the ring has slots the last C stay.
        written = is_token & (positions >= after[:, None] - C if self.window is not None else True)
        slot = jnp.arange(C, dtype=jnp.int32)[None]
        if self.window is None:
            return Step(
                positions,
                jnp.where(written, positions, C),
                jnp.broadcast_to(slot, (len(after), C)),
                slot < after[:, None],
                after,
            )
        slots = jnp.where(written, positions % C, C)
        if T == 1:  # written before it is read
            key_positions = _in_ring(slot, after[:, None], C)
            return Step(positions, slots, key_positions, key_positions >= 0, after)
        # The first of the new tokens sees what the last of them overwrites: they are read beside
        # the ring.
        old = _in_ring(slot, self.lengths[:, None], C)
        key_positions = jnp.concatenate([old, positions], axis=1)
        is_key = jnp.concatenate([old >= 0, is_token], axis=1)
        return Step(positions, slots, key_positions, is_key, after)

    def overflows(self, step: Step) -> Bool[Array, " B"]:
        """Which examples have more tokens than slots, so that some were not written."""
        return (step.lengths > self.capacity) & (self.window is None)

    def append(
        self,
        layer: int,
        step: Step,
        keys: Float[Array, "B T K H"],
        values: Float[Array, "B T K O"],
    ) -> tuple[KeysAndValues, Float[Array, "B S K H"], Float[Array, "B S K O"]]:
        """The layer with the new tokens written, and the keys and values that these attend to."""
        old, T = self.layers[layer], keys.shape[1]
        new = KeysAndValues(
            _write(old.keys, step.slots, keys), _write(old.values, step.slots, values)
        )
        if self.window is None or T == 1:
            return new, new.keys.swapaxes(1, 2), new.values.swapaxes(1, 2)
        keys, values = (
            jnp.concatenate([kept.swapaxes(1, 2), added.astype(kept.dtype)], axis=1)
            for kept, added in zip(old, (keys, values), strict=True)
        )
        return new, keys, values

    def after(self, layers: Sequence[KeysAndValues], step: Step) -> "Cache":
        """The cache of the next call."""
        return replace(self, layers=tuple(layers), lengths=step.lengths)

    def rows(self, index: Int[Array, " R"]) -> "Cache":
        """The cache of these examples, in this order: a beam goes on from another. What is read
        across is not touched, since the beams of an example share it."""
        layers, lengths = jax.tree.map(lambda array: array[index], (self.layers, self.lengths))
        return replace(self, layers=layers, lengths=lengths)

    def repeated(self, times: int) -> "Cache":
        """Every example so many times, one after another."""
        return jax.tree.map(lambda array: jnp.repeat(array, times, axis=0), self)


def empty_cache(
    num_layers: int,
    batch: int,
    capacity: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    value_dim: int | None = None,
    window: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Cache:
    """A cache in which nothing is written, of `capacity` tokens; of window + 1, as a ring, where
    that is less.
    """
    if capacity < 1:
        raise ValueError(f"capacity must be 1 or more; got {capacity}")
    if window is not None and window + 1 < capacity:
        capacity = window + 1
    else:
        window = None

    def zeros(features):
        return jnp.zeros((batch, num_kv_heads, capacity, features), dtype)

    layers = tuple(
        KeysAndValues(zeros(head_dim), zeros(value_dim or head_dim)) for _ in range(num_layers)
    )
    return Cache(layers, jnp.zeros(batch, jnp.int32), window)


def _in_ring(slot, length, C):
    """The position of what stands in a slot after `length` tokens: the last one congruent to it;
    below 0 for none.
    """
    last = length - 1
    return last - (last - slot) % C


def _write(array, slots, new):
    rows = jnp.arange(array.shape[0])[:, None]
    return array.at[rows, :, slots].set(new.astype(array.dtype), mode="drop")
