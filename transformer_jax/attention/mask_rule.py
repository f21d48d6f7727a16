"""The base class of attention masks, their combinations, and arrays as masks.

Masks are combined with `&`, `|` and `~`, also with boolean arrays, and passed as `mask=`. They are
rendered block by block, and say of a block whether all of it, or none, is visible. `masks.py` has
causal masks, windows, padding, prefixes and segments.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from transformer_jax.attention.coverage import Coverage, Grid, split_axis
from transformer_jax.attention.rule import DenseRule, Rule, four_axes, rule_class


class Mask(Rule):
    """A boolean rule: `a & b` lets through what both do, `a | b` what either does, `~a` the rest.

    A rule has no length and no truth value: `causal().to_array(5)` is its array for 5 tokens.
    """

    def show(self, T: int, S: int | None = None) -> str:
        """Return a picture: rows are queries, columns are keys, `■` attends and `·` does not.

        A rule that differs by example or head gives a titled picture for each of them.

        >>> print(dense(jnp.array([[True, True, False], [True, True, True]])).show(2, 3))
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
        """Return which blocks of the grid let anything through, and which let everything through.

        This default, for a rule that cannot tell, is `some` = True and `every` = False for each
        block.
        """
        return Coverage(
            some=jnp.ones((1, grid.rows, grid.columns), bool),
            every=jnp.zeros((1, grid.rows, grid.columns), bool),
        )

    @property
    def includes_diagonal(self) -> bool:
        """Whether, with T = S, every query is known to see the key at its own index.

        It is decided without looking at the rule's arrays. False means that it is not known.
        """
        return False

    def __and__(self, other: "Mask | MaskArray") -> "Mask":
        return _Both(self, _rule(other))

    def __or__(self, other: "Mask | MaskArray") -> "Mask":
        return _Either(self, _rule(other))

    def __invert__(self) -> "Mask":
        return _Complement(self)

    def __bool__(self) -> bool:
        # Without it `a and b` would be b, and the text would be read without a.
        raise TypeError(
            "a mask rule is neither true nor false; combine rules with & (both), | (either) and "
            "~ (not) instead of and, or, not, and write `mask is None` to ask for no mask"
        )

    # So that `array & rule` calls the rule's operator instead of broadcasting the array over it.
    __array_priority__ = 1000
    __rand__, __ror__ = __and__, __or__


MaskArray = Bool[Array, "..."] | Bool[np.ndarray, "..."]
MaskLike = Mask | MaskArray | None


@rule_class()
class _Dense(DenseRule, Mask):
    def coverage(self, grid):
        array = four_axes(self.array, "mask")
        some, every = array.any(axis=1), array.all(axis=1)
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


@rule_class()
class _Complement(Mask):
    rule: Mask

    def block(self, block):
        return ~self.rule.render(block)

    def coverage(self, grid):
        # What a rule cannot tell (some and not every) is not known of its complement either.
        some, every = self.rule.coverage(grid)
        return Coverage(some=~every, every=~some)


def dense(array: Bool[Array, "..."] | Bool[np.ndarray, "..."]) -> Mask:
    """Return a mask rule for a boolean array that broadcasts to [B, N, T, S].

    Raises TypeError if the array is not boolean, and ValueError if it has more than four axes.

    >>> print(dense(jnp.array([[True, False], [True, True]])).show(2))
    ■ ·
    ■ ■
    """
    return _Dense(four_axes(as_boolean(array, "mask"), "mask"))


def as_boolean(array: object, name: str) -> Array:
    """Return a boolean array; raise TypeError, which calls it `name`, if it is none."""
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
    """Return a mask as a rule: an array becomes `dense`, a rule or None stays as it is."""
    return None if mask is None else _rule(mask)
