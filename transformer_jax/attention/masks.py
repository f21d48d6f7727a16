"""Attention masks as rules: which keys each query may see, as a function of positions.

True means that the query attends to the key. `dot_product.py` describes what attention does with a
mask (the mask contract), `mask_rule.py` has the base class and arrays as masks. Rules are combined
with `&`, `|` and `~`:

    causal() & padding(is_token)            # decoder over padded text
    causal() | prefix(lengths)              # prefix language model
    sliding_window(128, 0)                  # each token and the 128 before it
    causal() & ~sliding_window(0, 0)        # only the tokens before it

A rule is a small pytree that can render any rectangle of the T x S matrix. `to_array` renders the
whole matrix and `show` draws it. A blockwise kernel or a cache renders only the blocks it reads.

By default the keys have positions 0..S-1 and the queries S-T..S-1, so that the last query sees the
last key. A cache passes `query_positions` and `key_positions` instead. They may be traced, and may
differ between examples.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from numbers import Integral
from typing import ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer_jax.attention.coverage import (
    Coverage,
    key_position_range,
    least_and_largest,
    position_ranges,
)
from transformer_jax.attention.mask_rule import Mask, as_boolean
from transformer_jax.attention.rule import (
    Positions,
    check_positions,
    distances,
    per_key,
    per_query,
    positions_of_keys,
    rule_class,
)
from transformer_jax.functional.checks import check_arrays

P = ParamSpec("P")


@rule_class()
class _Causal(Mask):
    query_positions: Positions = None
    key_positions: Positions = None

    def block(self, block):
        return distances(self, block) <= 0

    def coverage(self, grid):
        (first_query, last_query), (first_key, last_key) = position_ranges(self, grid)
        return Coverage(some=first_key <= last_query, every=last_key <= first_query).over(grid)

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
        return Coverage(some, every).over(grid)

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
    key_ids: Array | None  # None if they are the ids of the queries

    @property
    def ids_of_keys(self) -> Array:
        """The ids of the keys, also where the queries have the same."""
        return self.query_ids if self.key_ids is None else self.key_ids

    def block(self, block):
        return per_query(self.query_ids, block) == per_key(self.ids_of_keys, block)

    def coverage(self, grid):
        first, last = (x[:, :, None] for x in least_and_largest(self.query_ids, grid.queries))
        first_key, last_key = (x[:, None] for x in least_and_largest(self.ids_of_keys, grid.keys))
        return Coverage(
            some=(first_key <= last) & (first <= last_key),
            every=(last_key == first) & (first_key == last),
        ).over(grid)

    @property
    def includes_diagonal(self):
        return self.key_ids is None


def _advise(advice: str) -> Callable[[Callable[P, Mask]], Callable[P, Mask]]:
    """Return a decorator that adds advice to the error of a call that the signature refuses."""

    def decorate(function: Callable[P, Mask]) -> Callable[P, Mask]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Mask:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}; {advice}") from None
            return function(*args, **kwargs)

        return call

    return decorate


@_advise(
    "a rule has no length: causal().show(5) draws it for 5 tokens, causal().to_array(5) renders it"
)
def causal(*, query_positions: Positions = None, key_positions: Positions = None) -> Mask:
    """Return a causal mask: the query at position t sees the keys at positions s <= t.

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.3. With more keys than
    queries, the last query sees the last key. Raises TypeError for positions that are not integers,
    and ValueError, when the mask is rendered, if there are not T query or S key positions.

    >>> print(causal().show(3))
    ■ · ·
    ■ ■ ·
    ■ ■ ■
    """
    check_positions(query_positions, key_positions)
    return _Causal(query_positions, key_positions)


@_advise(
    "sliding_window(4, 0) sees 4 tokens before each query, sliding_window(4, 4) also 4 after it"
)
def sliding_window(
    left: int | None,
    right: int | None,
    *,
    query_positions: Positions = None,
    key_positions: Positions = None,
) -> Mask:
    """Return a sliding-window mask: position t sees the positions t - left <= s <= t + right.

    None means no bound on that side. Beltagy et al., 2020, https://arxiv.org/abs/2004.05150,
    section 3.1. Raises ValueError for a reach below 0, TypeError for one that is not a whole
    number, and as `causal` does for positions.

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
    """Return a prefix mask: every query sees the positions s < n, with n the length of the prefix.

    `lengths` is one n for all examples or one for each, [B]. `causal() | prefix(n)` is a prefix
    language model (Raffel et al., 2020, https://arxiv.org/abs/1910.10683, section 3.2.1). Raises
    TypeError for lengths that are not integers, and ValueError, when the mask is rendered, if there
    are not S key positions.

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


def padding(is_token: Bool[Array, "*B S"] | Bool[np.ndarray, "*B S"]) -> Mask:
    """Return a padding mask: every query sees the real tokens of its example and no padding.

    The padding may be anywhere in the row. It is hidden as keys only: a query that is padding
    itself sees the real tokens too. One row [S] is the padding of one example without a batch axis,
    or of all examples. Raises TypeError if `is_token` is not boolean, and ValueError if its axes
    are not [B, S] or [S].

    >>> print(padding(jnp.array([[False, True, True]])).show(3))
    · ■ ■
    · ■ ■
    · ■ ■
    """
    is_token = as_boolean(is_token, "is_token")
    if is_token.ndim not in (1, 2):
        raise ValueError(f"is_token must have the shape [B, S] or [S]; got {is_token.shape}")
    return _Padding(is_token)


def segments(
    query_ids: Int[Array, "*B T"] | np.ndarray,
    key_ids: Int[Array, "*B S"] | np.ndarray | None = None,
) -> Mask:
    """Return a segment mask: a query sees the keys of its own segment, those with the same id.

    It keeps apart several texts that are packed into one row (Krell et al., 2021,
    https://arxiv.org/abs/2107.02027). `key_ids` are the `query_ids` by default. Ids of one row,
    [T] and [S], are of one example without a batch axis, or of all examples; a single id is that of
    all tokens. Raises TypeError for ids that are not integers, and ValueError, when the mask is
    rendered, if there are not T query and S key ids.

    >>> print(segments(jnp.array([[0, 0, 1]])).show(3))
    ■ ■ ·
    ■ ■ ·
    · · ■
    """
    query_ids = jnp.asarray(query_ids)
    key_ids = None if key_ids is None else jnp.asarray(key_ids)
    mask = _Segments(query_ids, key_ids)
    check_arrays(query_ids=(query_ids, "int [B] T"), key_ids=(mask.ids_of_keys, "int [B] S"))
    return mask
