"""Rules over the T x S matrix of queries and keys: functions of positions that render any rectangle
of it.

A rule is a small pytree. The whole array is one request (`to_array`), and a blockwise kernel or a
cache asks for the block that it reads, so that nothing of size T x S need ever be stored. Masks
(`masks.py`) and biases (`biases.py`) are rules.

By default keys stand at positions 0..S-1 and queries at S-T..S-1: the last query sees the last key.
A cache passes `query_positions` and `key_positions`, which may be traced and may differ by example.
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

Class = TypeVar("Class")  # of a rule
Positions = Int[Array, "#B _"] | Int[Array, " _"] | None


@dataclass(frozen=True)
class Block:
    """A rectangle of the T x S matrix: `queries` rows from `query_start`, `keys` columns from
    `key_start`.

    The starts may be traced (the loop index of a kernel); the sizes are static. It may be of some
    examples and heads only; None is all of them.
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
        """All of the matrix."""
        return cls(0, T, 0, S, T, S)


class Rule:
    """What can be rendered: `block` is the rule, everything else follows."""

    def block(self, block: Block) -> Shaped[Array, "#B #N #t #s"]:
        """The rule inside one rectangle, of size 1 along every axis that it does not depend on.

        A rule may answer for all examples or heads where the block asks for some.
        """
        raise TypeError(f"{type(self).__name__} is not a rule: it defines no block()")

    def render(self, block: Block) -> Shaped[Array, "#b #n #t #s"]:
        """`block`, cut to the examples and heads that are asked for where the rule answered for
        all.
        """
        array = self.block(block)
        starts: list[int | Array] = [0] * 4
        sizes = list(array.shape)
        asked = (block.example_start, block.examples), (block.head_start, block.heads)
        for axis, (start, size) in enumerate(asked):
            if size is not None and array.shape[axis] not in (1, size):
                starts[axis], sizes[axis] = start, size
        return array if sizes == list(array.shape) else lax.dynamic_slice(array, starts, sizes)

    def to_array(self, T: int, S: int | None = None) -> Shaped[Array, "B N T S"]:
        """The whole matrix for T queries and S keys (S = T when left out)."""
        S = T if S is None else S
        array = self.block(Block.whole(T, S))
        return jnp.broadcast_to(array, (*array.shape[:2], T, S))


@dataclass(frozen=True)
class DenseRule(Rule):
    """An array [#B, #N, #T, #S] as a rule: its block is the slice."""

    array: Array

    def block(self, block: Block) -> Shaped[Array, "#B #N #t #s"]:
        return slice_block(self.array, block)


def four_axes(array: Array | np.ndarray, name: str) -> Array:
    """[..., T, S] with axes of size 1 in front; raises ValueError for more than four axes."""
    if array.ndim > 4:
        raise ValueError(f"{name} must broadcast to [B, N, T, S]; got the shape {array.shape}")
    return jnp.asarray(array).reshape((1,) * (4 - array.ndim) + array.shape)


def check_positions(query_positions: Positions, key_positions: Positions = None) -> None:
    """Raises as `check_arrays` does, for positions that are not integers of one axis or two."""
    check_arrays(
        query_positions=(query_positions, f"int {_axes(query_positions)}T"),
        key_positions=(key_positions, f"int {_axes(key_positions)}S"),
    )


def _axes(positions: Positions) -> str:
    """The axis before that of the positions, if there is one."""
    return "" if positions is not None and np.ndim(positions) == 1 else "#B "


@dataclass_transform(frozen_default=True)
def rule_class(*, static: tuple[str, ...] = ()) -> Callable[[type[Class]], type[Class]]:
    """Make a class a frozen dataclass that is also a pytree.

    Its arrays are traced; its `static` fields are not.
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
    """What the reference works with: all of the rule in four axes, of size 1 where it does not
    vary.
    """
    return None if rule is None else rule.block(Block.whole(T, S))


def check_fit(name: str, rule: Rule | None, sizes: tuple[int, int, int, int]) -> None:
    """Raises ValueError where the rule does not broadcast to B, N, T and S."""
    if rule is None:
        return
    shape = jax.eval_shape(lambda: rendered(rule, *sizes[2:])).shape
    if any(size not in (1, full) for size, full in zip(shape, sizes, strict=True)):
        raise ValueError(f"{name} must broadcast to [B, N, T, S] = {sizes}; got the shape {shape}")


def part(array: Array, block: Block) -> tuple[list[int | Array], list[int]]:
    """Where the block begins in an array [#B, #N, #T, #S], and its sizes there; an axis of size 1
    stays whole.
    """
    for size, full, name in ((2, block.T, "queries"), (3, block.S, "keys")):
        if array.shape[size] not in (1, full):
            # A slice would cut a longer array in silence.
            raise ValueError(
                f"mask and bias must broadcast to [B, N, T, S] with T={block.T} and S={block.S}; "
                f"got {array.shape[size]} {name}"
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
    """The block's part of an array over everything; an axis of size 1 is left to broadcast."""
    starts, sizes = part(array, block)
    return array if sizes == list(array.shape) else lax.dynamic_slice(array, starts, sizes)


def per_query(array: Array, block: Block) -> Array:
    """[T] or [B, T] -> [b, 1, t, 1]."""
    return slice_block(jnp.atleast_2d(array)[:, None, :, None], block)


def per_key(array: Array, block: Block) -> Array:
    """[S] or [B, S] -> [b, 1, 1, s]."""
    return slice_block(jnp.atleast_2d(array)[:, None, None, :], block)


def positions_of_queries(given: Positions, block: Block) -> Array:
    """Of the block\'s queries, [#B, 1, t, 1]: those given, or S-T.. by default."""
    if given is not None:
        return per_query(given, block)
    offset = block.S - block.T + block.query_start
    return (offset + jnp.arange(block.queries))[None, None, :, None]


def positions_of_keys(given: Positions, block: Block) -> Array:
    """Of the block\'s keys, [#B, 1, 1, s]: those given, or 0.. by default."""
    if given is not None:
        return per_key(given, block)
    return (block.key_start + jnp.arange(block.keys))[None, None, None, :]


def distances(rule, block: Block) -> Int[Array, "#B 1 t s"]:
    """Key position minus query position: below 0 in the past, above 0 in the future."""
    return positions_of_keys(rule.key_positions, block) - positions_of_queries(
        rule.query_positions, block
    )
