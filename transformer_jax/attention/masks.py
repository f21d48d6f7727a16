"""Attention masks as rules: which key each query may see, as a function of positions.

True = attend. A rule is a small pytree that renders any rectangle of the T x S matrix: the whole
array is one request (`to_array`), a picture another (`show`), and a blockwise kernel or a cache
asks for what it reads.

    causal() & padding(is_token)            # decoder over padded text
    causal() | prefix(lengths)              # prefix language model
    sliding_window(128, 0)                  # each token and the 128 before it

By default keys stand at positions 0..S-1 and queries at S-T..S-1: the last query sees the last key.
A cache passes `query_positions` and `key_positions`, which may be traced and may differ by example.
"""

from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer_jax.attention.coverage import (
    Coverage,
    Grid,
    key_position_range,
    least_and_largest,
    position_ranges,
    split_axis,
)
from transformer_jax.attention.rule import (
    DenseRule,
    Positions,
    Rule,
    check_positions,
    distances,
    four_axes,
    per_key,
    per_query,
    positions_of_keys,
    rule_class,
)
from transformer_jax.functional.checks import check_arrays


class Mask(Rule):
    """A boolean rule. `a & b` lets through what both allow, `a | b` what either allows."""

    def show(self, T: int, S: int | None = None) -> str:
        """A picture: rows are queries, columns are keys, `■` attends and `·` does not.

        A rule that differs by example or head gives one titled picture for each.

        >>> print(causal().show(2, 3))
        ■ ■ ·
        ■ ■ ■
        """
        array = np.asarray(self.to_array(T, S))
        pictures = []
        for b, n in np.ndindex(*array.shape[:2]):
            title = [] if array.shape[:2] == (1, 1) else [f"example {b}, head {n}"]
            rows = [" ".join("■" if seen else "·" for seen in row) for row in array[b, n]]
            pictures.append("\n".join(title + rows))
        return "\n\n".join(pictures)

    def coverage(self, grid: Grid) -> Coverage:
        """Which blocks let anything through, and which let all through."""
        return Coverage(
            some=jnp.ones((1, grid.rows, grid.columns), bool),
            every=jnp.zeros((1, grid.rows, grid.columns), bool),
        )

    @property
    def includes_diagonal(self) -> bool:
        """Whether it is known, without its arrays, that with T = S every query sees the key in its
        own place.
        """
        return False

    def __and__(self, other: "MaskLike") -> "Mask":
        return _Both(self, _rule(other))

    def __or__(self, other: "MaskLike") -> "Mask":
        return _Either(self, _rule(other))

    # An array on the left must hand over to the rule instead of broadcasting over it.
    __array_priority__ = 1000
    __rand__, __ror__ = __and__, __or__


MaskLike = Mask | Bool[Array, "..."] | Bool[np.ndarray, "..."] | None


@rule_class()
class _Causal(Mask):
    query_positions: Positions = None
    key_positions: Positions = None

    def block(self, block):
        return distances(self, block) <= 0

    def coverage(self, grid):
        (first_query, last_query), (first_key, last_key) = position_ranges(self, grid)
        return Coverage(some=first_key <= last_query, every=last_key <= first_query)

    @property
    def includes_diagonal(self):
        return not jax.tree.leaves(self)


@rule_class(static=("left", "right"))
class _Window(Mask):
    left: int | None
    right: int | None
    query_positions: Positions = None
    key_positions: Positions = None

    def block(self, block):
        distance = distances(self, block)
        inside = jnp.ones_like(distance, bool)
        if self.left is not None:
            inside &= distance >= -self.left
        if self.right is not None:
            inside &= distance <= self.right
        return inside

    def coverage(self, grid):
        (first_query, last_query), (first_key, last_key) = position_ranges(self, grid)
        some = every = jnp.ones_like(first_key - last_query, bool)
        if self.left is not None:
            some &= last_key - first_query >= -self.left
            every &= first_key - last_query >= -self.left
        if self.right is not None:
            some &= first_key - last_query <= self.right
            every &= last_key - first_query <= self.right
        return Coverage(some, every)

    @property
    def includes_diagonal(self):
        return not jax.tree.leaves(self)


@rule_class()
class _Prefix(Mask):
    lengths: Array
    key_positions: Positions = None

    def block(self, block):
        lengths = jnp.reshape(self.lengths, (-1, 1, 1, 1))
        return positions_of_keys(self.key_positions, block) < lengths

    def coverage(self, grid):
        lengths = jnp.reshape(self.lengths, (-1, 1, 1))
        first_key, last_key = key_position_range(self, grid)
        return Coverage(first_key < lengths, last_key < lengths).over(grid)


@rule_class()
class _Padding(Mask):
    is_token: Array

    def block(self, block):
        return per_key(self.is_token, block)

    def coverage(self, grid):
        every, some = least_and_largest(self.is_token, grid.keys)
        return Coverage(some[:, None], every[:, None]).over(grid)


@rule_class()
class _Segments(Mask):
    query_ids: Array
    key_ids: Array

    def block(self, block):
        return per_query(self.query_ids, block) == per_key(self.key_ids, block)

    def coverage(self, grid):
        first, last = (x[:, :, None] for x in least_and_largest(self.query_ids, grid.queries))
        first_key, last_key = (x[:, None] for x in least_and_largest(self.key_ids, grid.keys))
        return Coverage(
            some=(first_key <= last) & (first <= last_key),
            every=(last_key == first) & (first_key == last),
        )


@rule_class()
class _Dense(DenseRule, Mask):
    def coverage(self, grid):
        some, every = self.array.any(axis=1), self.array.all(axis=1)
        for axis, size in ((2, grid.keys), (1, grid.queries)):
            if some.shape[axis] > 1:
                some = split_axis(some, axis, size).any(axis=axis + 1)
                every = split_axis(every, axis, size).all(axis=axis + 1)
        return Coverage(some, every).over(grid)


@rule_class()
class _Both(Mask):
    first: Mask
    second: Mask

    def block(self, block):
        return self.first.render(block) & self.second.render(block)

    def coverage(self, grid):
        first, second = self.first.coverage(grid), self.second.coverage(grid)
        return Coverage(first.some & second.some, first.every & second.every)

    @property
    def includes_diagonal(self):
        return self.first.includes_diagonal and self.second.includes_diagonal


@rule_class()
class _Either(Mask):
    first: Mask
    second: Mask

    def block(self, block):
        return self.first.render(block) | self.second.render(block)

    def coverage(self, grid):
        first, second = self.first.coverage(grid), self.second.coverage(grid)
        return Coverage(first.some | second.some, first.every | second.every)

    @property
    def includes_diagonal(self):
        return self.first.includes_diagonal or self.second.includes_diagonal


def causal(*, query_positions: Positions = None, key_positions: Positions = None) -> Mask:
    """Position t sees positions s <= t.

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.3. With more keys than
    queries the last query sees the last key. Raises ValueError, when rendered, for other than T or
    S positions.

    >>> print(causal().show(3))
    ■ · ·
    ■ ■ ·
    ■ ■ ■
    """
    check_positions(query_positions, key_positions)
    return _Causal(query_positions, key_positions)


def sliding_window(
    left: int | None,
    right: int | None,
    *,
    query_positions: Positions = None,
    key_positions: Positions = None,
) -> Mask:
    """Position t sees positions t - left <= s <= t + right; None is no bound on that side.

    Beltagy et al., 2020, https://arxiv.org/abs/2004.05150, section 3.1. Raises ValueError for a
    reach below 0.

    >>> print(sliding_window(1, 0).show(4))
    ■ · · ·
    ■ ■ · ·
    · ■ ■ ·
    · · ■ ■
    """
    check_positions(query_positions, key_positions)
    for name, reach in (("left", left), ("right", right)):
        if reach is not None and not isinstance(reach, Integral):
            raise TypeError(
                f"{name} must be a whole number, or None for no bound; got {type(reach).__name__}"
            )
        if reach is not None and reach < 0:
            raise ValueError(f"{name} must be 0 or more, or None for no bound; got {reach}")
    return _Window(left, right, query_positions, key_positions)


def prefix(
    lengths: int | Int[Array, " B"] | Int[Array, ""] | np.ndarray,
    *,
    key_positions: Positions = None,
) -> Mask:
    """Every query sees the positions s < n: the first `lengths`, one number, or one for each
    example.

    `causal() | prefix(n)` is a prefix language model (Raffel et al., 2020,
    https://arxiv.org/abs/1910.10683, section 3.2.1). Raises ValueError, when rendered, for other
    than S positions.

    >>> print((causal() | prefix(2)).show(4))
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
    """
    check_positions(None, key_positions)
    lengths = jnp.asarray(lengths)
    check_arrays(lengths=(lengths, "int ..."))
    if lengths.ndim > 1:
        raise ValueError(f"lengths must be one number or have the shape [B]; got {lengths.shape}")
    return _Prefix(lengths, key_positions)


def padding(is_token: Bool[Array, "B S"] | Bool[np.ndarray, "B S"]) -> Mask:
    """Every query sees the real tokens of its example, wherever the padding stands.

    Raises TypeError where `is_token` is not boolean, ValueError where its axes are not [B, S].

    >>> print(padding(jnp.array([[False, True, True]])).show(3))
    · ■ ■
    · ■ ■
    · ■ ■
    """
    is_token = _boolean(is_token, "is_token")
    if is_token.ndim != 2:
        raise ValueError(f"is_token must have the shape [B, S]; got {is_token.shape}")
    return _Padding(is_token)


def segments(
    query_ids: Int[Array, "B T"] | np.ndarray, key_ids: Int[Array, "B S"] | np.ndarray | None = None
) -> Mask:
    """A query sees the keys of its own segment: several texts packed into one row do not mix.

    Krell et al., 2021, https://arxiv.org/abs/2107.02027. Without `key_ids` they are those of the
    queries. Raises ValueError, when rendered, for other than T or S ids.

    >>> print(segments(jnp.array([[0, 0, 1]])).show(3))
    ■ ■ ·
    ■ ■ ·
    · · ■
    """
    query_ids = jnp.asarray(query_ids)
    key_ids = query_ids if key_ids is None else jnp.asarray(key_ids)
    check_arrays(query_ids=(query_ids, "int B T"), key_ids=(key_ids, "int B S"))
    return _Segments(query_ids, key_ids)


def dense(array: Bool[Array, "..."] | Bool[np.ndarray, "..."]) -> Mask:
    """A rule from a boolean array that broadcasts to [B, N, T, S].

    Raises TypeError where it is not boolean, ValueError for more than four axes.

    >>> print(dense(jnp.array([[True, False], [True, True]])).show(2))
    ■ ·
    ■ ■
    """
    return _Dense(four_axes(_boolean(array, "mask"), "mask"))


def _boolean(array, name: str) -> Array:
    if not hasattr(array, "dtype") and not isinstance(array, bool | list | tuple):
        rule = "a rule, such as causal(), or " if name == "mask" else ""
        way_out = ". Pass an additive term as bias=" if isinstance(array, Rule) else ""
        raise TypeError(
            f"{name} must be {rule}a boolean array; got {type(array).__name__}{way_out}"
        )
    array = jnp.asarray(array)
    if array.dtype != jnp.bool_:
        raise TypeError(
            f"{name} must be boolean (True = attend); got {array.dtype}. "
            "Pass an additive term as bias=, or turn 0/1 into a mask with `!= 0`"
        )
    return array


def _rule(mask) -> Mask:
    return mask if isinstance(mask, Mask) else dense(mask)


def as_mask(mask: MaskLike) -> Mask | None:
    """The rule, or the rule of an array."""
    return None if mask is None else _rule(mask)


def is_causal(mask: MaskLike) -> bool:
    """Whether it is `causal()` at the default positions and nothing else."""
    return isinstance(mask, _Causal) and not jax.tree.leaves(mask)


def padded_keys(mask: MaskLike) -> Bool[Array, "#B S"] | None:
    """The `is_token` of `padding(is_token)`; None for anything else."""
    return mask.is_token if isinstance(mask, _Padding) else None


def left_window(mask: MaskLike) -> int | None:
    """The reach of `sliding_window(left, 0)` at the default positions; None for anything else."""
    if isinstance(mask, _Window) and mask.right == 0 and not jax.tree.leaves(mask):
        return mask.left
    return None
