"""Rules: functions of positions that render any rectangle of the queries x keys matrix.

Masks (`masks.py`) and biases (`biases.py`) are rules. A rule is a small pytree. `to_array` renders
the whole T x S matrix of T queries and S keys. A blockwise kernel or a cache renders only the block
it reads, so that nothing of size T x S need be stored.

By default the keys have positions 0..S-1 and the queries S-T..S-1, so that the last query sees the
last key. A cache passes `query_positions` and `key_positions` instead. They may be traced, and may
differ between examples.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeVar, dataclass_transform, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, Shaped

from transformer_jax.functional.checks import check_arrays

Class = TypeVar("Class")  # a class of rules
Positions = Int[Array, "#B _"] | Int[Array, " _"] | None


@dataclass(frozen=True)
class Block:
    """A rectangle of the T x S matrix of queries and keys.

    It has `queries` rows from `query_start` and `keys` columns from `key_start`. The starts may be
    traced (the loop index of a kernel); the sizes are static. A block may be restricted to some
    examples and heads; None means all of them.
    """

    query_start: int | Array
    queries: int
    key_start: int | Array
    keys: int
    T: int
    S: int
    example_start: int | Array = 0
    examples: int | None = None
    head_start: int | Array = 0
    heads: int | None = None

    @classmethod
    def whole(cls, T: int, S: int) -> "Block":
        """Return the block that covers the whole matrix."""
        return cls(0, T, 0, S, T, S)


class Rule:
    """The base class of rules: a subclass defines `block`, and the other methods follow from it."""

    def block(self, block: Block) -> Shaped[Array, "#B #N #t #s"]:
        """Return the rule inside one rectangle.

        The array has size 1 along every axis that the rule does not depend on. A rule may return
        all examples or heads where the block asks for some; `render` cuts them.
        """
        raise TypeError(f"{type(self).__name__} is not a rule: it defines no block()")

    def render(self, block: Block) -> Shaped[Array, "#b #n #t #s"]:
        """Return the rule inside one rectangle, for the examples and heads of the block alone."""
        array = self.block(block)
        starts: list[int | Array] = [0] * 4
        sizes = list(array.shape)
        asked = (block.example_start, block.examples), (block.head_start, block.heads)
        for axis, (start, size) in enumerate(asked):
            if size is not None and array.shape[axis] not in (1, size):
                starts[axis], sizes[axis] = start, size
        return array if sizes == list(array.shape) else lax.dynamic_slice(array, starts, sizes)

    def to_array(self, T: int, S: int | None = None) -> Shaped[Array, "B N T S"]:
        """Return the whole matrix for T queries and S keys (S = T by default)."""
        S = T if S is None else S
        array = self.block(Block.whole(T, S))
        return jnp.broadcast_to(array, (*array.shape[:2], T, S))


@dataclass(frozen=True)
class DenseRule(Rule):
    """A rule given by an array [#B, #N, #T, #S]: a block of it is a slice of the array.

    Inside `jax.vmap` over the rule, the array lacks its first axis.
    """

    array: Array

    def block(self, block: Block) -> Shaped[Array, "#B #N #t #s"]:
        return slice_block(four_axes(self.array, "a rule"), block)


def four_axes(array: Array | np.ndarray, name: str) -> Array:
    """Return the array [..., T, S] with four axes, adding axes of size 1 in front.

    Raises ValueError for more than four axes.
    """
    if array.ndim > 4:
        raise ValueError(f"{name} must broadcast to [B, N, T, S]; got the shape {array.shape}")
    return jnp.asarray(array).reshape((1,) * (4 - array.ndim) + array.shape)


def check_positions(query_positions: Positions, key_positions: Positions = None) -> None:
    """Check that positions are None or arrays of integers with one axis or two.

    Raises as `check_arrays` does.
    """
    check_arrays(
        query_positions=(query_positions, f"int {_axes(query_positions)}T"),
        key_positions=(key_positions, f"int {_axes(key_positions)}S"),
    )


def _axes(positions: Positions) -> str:
    """Return the batch axis of a pattern, or nothing for positions of one axis."""
    return "" if positions is not None and np.ndim(positions) == 1 else "#B "


@dataclass_transform(frozen_default=True)
def rule_class(*, static: tuple[str, ...] = ()) -> Callable[[type[Class]], type[Class]]:
    """Make a class a frozen dataclass that is also a pytree.

    Its array fields are traced; its `static` fields are not.
    """

    def decorate(cls):
        cls = dataclass(frozen=True)(cls)
        traced = [field.name for field in fields(cls) if field.name not in static]
        return jax.tree_util.register_dataclass(cls, traced, list(static))

    return decorate


@overload
def rendered(rule: None, T: int, S: int) -> None: ...


@overload
def rendered(rule: Rule, T: int, S: int) -> Shaped[Array, "#B #N #T #S"]: ...


def rendered(rule: Rule | None, T: int, S: int) -> Shaped[Array, "#B #N #T #S"] | None:
    """Return the whole rule with four axes, of size 1 where it does not vary; None stays None."""
    return None if rule is None else rule.block(Block.whole(T, S))


def check_fit(
    name: str, rule: Rule | None, sizes: tuple[int, int, int, int], *, batched: bool = True
) -> None:
    """Check that the rule broadcasts to B, N, T and S. Raises ValueError if it does not.

    If the query was not `batched`, B is 1 and the message does not speak of it.
    """
    if rule is None:
        return
    shape = jax.eval_shape(lambda: rendered(rule, *sizes[2:])).shape
    if any(size not in (1, full) for size, full in zip(shape, sizes, strict=True)):
        fits = f"[B, N, T, S] = {sizes}"
        if not batched:
            fits = f"[N, T, S] = {sizes[1:]}, as the queries have no batch axis"
        raise ValueError(f"{name} must broadcast to {fits}; got the shape {shape}")


def part(array: Array, block: Block) -> tuple[list[int | Array], list[int]]:
    """Return where the block begins in an array [#B, #N, #T, #S], and its size, for each axis.

    An axis of size 1 is kept whole. Raises ValueError for an array of other than T queries or S
    keys.
    """
    for size, full, name in ((2, block.T, "queries"), (3, block.S, "keys")):
        if array.shape[size] not in (1, full):
            # Slicing a longer array would silently drop its end.
            hint = "; pass padding(is_token) to hide padding" if array.dtype == bool else ""
            raise ValueError(
                f"mask and bias must broadcast to [B, N, T, S] with T={block.T} and S={block.S}; "
                f"got {array.shape[size]} {name}{hint}"
            )
    asked = (
        (block.example_start, block.examples),
        (block.head_start, block.heads),
        (block.query_start, block.queries),
        (block.key_start, block.keys),
    )
    parts = [
        (0, full) if full == 1 or size is None or size == full else (start, size)
        for full, (start, size) in zip(array.shape, asked, strict=True)
    ]
    starts, sizes = zip(*parts, strict=True)
    return list(starts), list(sizes)


def slice_block(array: Shaped[Array, "#B #N #T #S"], block: Block) -> Shaped[Array, "#b #n #t #s"]:
    """Return the block's part of an array; axes of size 1 are kept for broadcasting."""
    starts, sizes = part(array, block)
    return array if sizes == list(array.shape) else lax.dynamic_slice(array, starts, sizes)


def per_query(array: Array, block: Block) -> Array:
    """Return the block's part of an array over queries: [T] or [B, T] -> [b, 1, t, 1]."""
    return slice_block(jnp.atleast_2d(array)[:, None, :, None], block)


def per_key(array: Array, block: Block) -> Array:
    """Return the block's part of an array over keys: [S] or [B, S] -> [b, 1, 1, s]."""
    return slice_block(jnp.atleast_2d(array)[:, None, None, :], block)


def positions_of_queries(given: Positions, block: Block) -> Array:
    """Return the positions of the block's queries, [#B, 1, t, 1]: S-T.. unless given."""
    if given is not None:
        return per_query(given, block)
    offset = block.S - block.T + block.query_start
    return (offset + jnp.arange(block.queries))[None, None, :, None]


def positions_of_keys(given: Positions, block: Block) -> Array:
    """Return the positions of the block's keys, [#B, 1, 1, s]: 0.. unless given."""
    if given is not None:
        return per_key(given, block)
    return (block.key_start + jnp.arange(block.keys))[None, None, None, :]


def distances(rule, block: Block) -> Int[Array, "#B 1 t s"]:
    """Return key position minus query position: below 0 in the past, above 0 in the future."""
    return positions_of_keys(rule.key_positions, block) - positions_of_queries(
        rule.query_positions, block
    )
