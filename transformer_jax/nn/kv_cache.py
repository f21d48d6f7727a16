"""The key/value cache: keys and values of the tokens read so far, kept for the tokens that follow.

It is a plain pytree of fixed capacity C. A token at position p (its number among the real tokens of
its example) is written to slot p, or to slot p mod C if a window makes the cache a ring. So padding
takes no slot, whichever side it is on, and examples may have any lengths. The rules of attention
only need the positions of the slots:

    step = cache.step(is_token)  # once a call, for all layers
    mask = causal(query_positions=step.positions, key_positions=step.key_positions)
    mask &= padding(step.is_key)

A slot that was never written is no key: nothing reads it. A full cache that is no ring takes no
more tokens. The output of an example with more tokens than slots is NaN, never an answer that has
forgotten some of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.functional.checks import are_numbers
from transformer_jax.functional.precision import returned_dtype


class KeysAndValues(NamedTuple):
    """The keys and values of one layer, in C slots.

    Heads come before slots, the order in which the products read them.
    """

    keys: Float[Array, "B K C H"]
    values: Float[Array, "B K C O"]


class Step(NamedTuple):
    """The positions and slots of the new tokens of a call, and the keys that they attend to.

    The S keys are the C slots. If a ring is given several tokens at once, they are its C slots and
    these tokens.
    """

    positions: Int[Array, "B T"]  # of the new tokens; 0 or more for padding too
    slots: Int[Array, "B T"]  # C if a token is not written: padding, or soon overwritten
    key_positions: Int[Array, "B S"]
    is_key: Bool[Array, "B S"]
    lengths: Int[Array, " B"]  # how many tokens each example has, with the new ones


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """The keys and values, and the lengths, that generation carries from token to token."""

    # The fields are Any, because JAX also builds the pytree with placeholders; see the comments for
    # their shapes.
    layers: Any  # a tuple of KeysAndValues, one a layer
    lengths: Any  # [B], how many tokens each example has
    # The number of previous tokens that a token sees; None: the cache is no ring.
    window: int | None = field(default=None, metadata={"static": True})
    # For an encoder-decoder: the keys and values of each layer's cross-attention, computed once,
    # and which of them are tokens.
    memory: Any = ()  # a tuple of (keys [B, S, K, H], values), one a layer
    is_memory: Any = None  # [B, S]

    @property
    def capacity(self) -> int:
        """The number of slots, C."""
        return self.layers[0].keys.shape[2]

    def step(self, is_token: Bool[Array, "B T"]) -> Step:
        """Return what a call with these tokens reads and writes, the same for every layer.

        Raises ValueError if there are more tokens than slots and the cache is no ring.
        """
        C, T = self.capacity, is_token.shape[1]
        if self.window is None and T > C:
            raise ValueError(f"{T} tokens do not fit into a cache of {C}")
        count = jnp.cumsum(is_token, axis=1, dtype=jnp.int32)
        positions = self.lengths[:, None] + jnp.maximum(count - 1, 0)
        after = self.lengths + count[:, -1]
        # If there are more tokens than the ring has slots, the last C stay.
        written = is_token & (positions >= after[:, None] - C if self.window is not None else True)
        slot = jnp.arange(C, dtype=jnp.int32)[None]
        if self.window is None:
            return Step(
                positions,
                jnp.where(written, positions, C),
                jnp.broadcast_to(slot, (after.shape[0], C)),
                slot < after[:, None],
                after,
            )
        slots = jnp.where(written, positions % C, C)
        if T == 1:  # written before it is read
            key_positions = _in_ring(slot, after[:, None], C)
            return Step(positions, slots, key_positions, key_positions >= 0, after)
        # The first of the new tokens sees slots that the last of them overwrites. So the new tokens
        # are read next to the old ring.
        old = _in_ring(slot, self.lengths[:, None], C)
        key_positions = jnp.concatenate([old, positions], axis=1)
        is_key = jnp.concatenate([old >= 0, is_token], axis=1)
        return Step(positions, slots, key_positions, is_key, after)

    def overflows(self, step: Step) -> Bool[Array, " B"]:
        """Return which examples have more tokens than slots, so that some were not written."""
        return (step.lengths > self.capacity) & (self.window is None)

    def append(
        self,
        layer: int,
        step: Step,
        keys: Float[Array, "B T K H"],
        values: Float[Array, "B T K O"],
    ) -> tuple[KeysAndValues, Float[Array, "B S K H"], Float[Array, "B S K O"]]:
        """Return the layer with the new tokens written, and the keys and values that they see."""
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
        """Return the cache for the next call."""
        return replace(self, layers=tuple(layers), lengths=step.lengths)

    def rows(self, beams: Int[Array, "B W"]) -> "Cache":
        """Return the cache in which row b W + w has what row b W + beams[b, w] had.

        Beam search reorders the W beams of each example so. The memory of cross-attention stays as
        it is, since the beams of an example share it.
        """

        def chosen(array):
            each = array.reshape(*beams.shape, *array.shape[1:])
            # Example by example, for the reason that `_write` has.
            return jax.vmap(lambda rows, index: rows[index])(each, beams).reshape(array.shape)

        layers, lengths = jax.tree.map(chosen, (self.layers, self.lengths))
        return replace(self, layers=layers, lengths=lengths)

    def repeated(self, times: int) -> "Cache":
        """Repeat every example `times` times, one copy after another."""
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
    """Return an empty cache for `capacity` tokens.

    If `window` + 1 is less than `capacity`, or `capacity` is symbolic, it is a ring of window + 1
    slots. Raises ValueError for a capacity below 1.
    """
    if are_numbers(capacity) and capacity < 1:
        raise ValueError(f"capacity must be 1 or more; got {capacity}")
    if window is not None and (not are_numbers(capacity) or window + 1 < capacity):
        capacity = window + 1
    else:
        window = None

    def zeros(features):
        return jnp.zeros((batch, num_kv_heads, capacity, features), dtype)

    layers = tuple(
        KeysAndValues(zeros(head_dim), zeros(value_dim or head_dim)) for _ in range(num_layers)
    )
    return Cache(layers, jnp.zeros(batch, jnp.int32), window)


def cache_dtype(dtype: DTypeLike) -> jnp.dtype:
    """Return the dtype in which to keep the keys and values of a model with activations of `dtype`.

    It is the same dtype, but float32 for shorter ones on a CPU: XLA would convert the whole cache
    to float32 and back for every token.
    """
    return returned_dtype(jnp.dtype(dtype))


def _in_ring(slot, length, C):
    """Return the position of the token in a slot after `length` tokens; below 0 for none."""
    # The last position below `length` that equals the slot modulo C.
    last = length - 1
    return last - (last - slot) % C


def _write(array, slots, new):
    # One example at a time, so that XLA sees that no example is written to another one. Otherwise
    # it would exchange them between the devices of a mesh.
    def write(array, slots, new):
        return array.at[:, slots].set(new.swapaxes(0, 1), mode="drop")

    return jax.vmap(write)(array, slots, new.astype(array.dtype))
