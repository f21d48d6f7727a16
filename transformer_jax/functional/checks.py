"""Checks of arrays, sizes and numbers, for mistakes that would otherwise surface deep inside."""

from numbers import Integral, Real
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

KINDS = {"float": jnp.floating, "int": jnp.integer, "bool": jnp.bool_}


def check_arrays(**arguments: tuple[Any, str]) -> None:
    """Check the axes and the kind of each array.

        check_arrays(
            query=(query, "B T N H"), key=(key, "B S K H"), is_token=(is_token, "bool B S")
        )

    Every argument is an array and its pattern. A letter stands for one size in all arguments of the
    call, `#B` for that size or 1, and `...` for any axes before. `[B]` is an axis that all arrays
    with it have, or none of them has. Arrays are floating point unless the pattern begins with
    `int` or `bool`. None, an argument left out, is skipped.

    Raises ValueError if an array has other axes than its pattern, and TypeError if it is of another
    kind.
    """
    sizes: dict[str, tuple[int, str]] = {}
    first_of_batch = ""  # the argument that decides whether there is a batch axis
    batched = True
    for name, (array, pattern) in arguments.items():
        if array is None:
            continue
        first, *rest = pattern.split()
        kind, letters = (first, rest) if first in KINDS else ("float", [first, *rest])
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise TypeError(
                f"{name} must be an array of the axes {_shown(letters)}; got {type(array).__name__}"
            )
        if not jnp.issubdtype(array.dtype, KINDS[kind]):
            raise TypeError(f"{name} must be {_called(kind)}; got {array.dtype}{_hint(kind)}")
        note = ""
        if letters[0] == "[B]":
            axes = letters[1:]
            if not first_of_batch:
                first_of_batch, batched = name, len(array.shape) != len(axes)
                note = f" or {_shown(axes)}"
            elif not batched:
                note = f" (no batch axis, as {first_of_batch})"
            letters = ["B", *axes] if batched else axes
        _check_axes(name, np.shape(array), letters, sizes, note)


def check_attention(query: Any, key: Any, value: Any, soft_cap: float | None) -> None:
    """Check the query, key and value of attention, and the soft cap.

    Raises as `check_arrays` does. Raises ValueError if there is no head or no feature, if the key
    heads do not divide the query heads, or if the soft cap is not above 0.
    """
    check_arrays(query=(query, "[B] T N H"), key=(key, "[B] S K H"), value=(value, "[B] S K O"))
    if 0 in (*query.shape[-2:], key.shape[-2]):
        raise ValueError(
            "query and key must have a head and a feature at least; "
            f"got {query.shape} and {key.shape}"
        )
    if query.shape[-2] % key.shape[-2]:
        raise ValueError(
            f"the key heads must divide the query heads; got {key.shape[-2]} and {query.shape[-2]}"
        )
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap must be above 0, or None for no cap; got {soft_cap}")


def check_heads(
    embed_dim: int, num_heads: int, head_dim: int | None, num_kv_heads: int | None
) -> None:
    """Check that `num_heads` divides `embed_dim`, and that `num_kv_heads` divides `num_heads`.

    With a `head_dim`, `embed_dim` may be any number. Raises ValueError if a check fails.
    """
    if head_dim is None and embed_dim % num_heads:
        raise ValueError(
            f"num_heads must divide embed_dim, unless head_dim is given; "
            f"got {num_heads} heads for {embed_dim}"
        )
    if num_kv_heads is not None and num_heads % num_kv_heads:
        raise ValueError(f"num_kv_heads must divide num_heads; got {num_kv_heads} for {num_heads}")


def check_whole(name: str, value: Any, *, least: int | None = None) -> None:
    """Check that a setting is a whole number, `least` or more if that is given.

    Raises TypeError for a bool and any other type, ValueError for a smaller number.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number; got {value!r:.60}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be {least} or more; got {value}")


def check_number(name: str, value: Any) -> None:
    """Check that a setting is a real number. Raises TypeError for a bool and any other type."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {value!r:.60}")


def _check_axes(name, shape, letters, sizes, note):
    axes = [letter for letter in letters if letter != "..."]
    compared = shape[len(shape) - len(axes) :] if len(axes) < len(letters) else shape
    fits = len(compared) == len(axes)
    for letter, size in zip(axes, compared, strict=False):
        known = sizes.get(letter.lstrip("#"))
        fits &= known is None or size == known[0] or (letter.startswith("#") and size == 1)
    if not fits:
        known = [
            f"{axis}={sizes[axis][0]} of {sizes[axis][1]}" for axis in _plain(axes) if axis in sizes
        ]
        known = f" with {', '.join(known)}" if known else ""
        raise ValueError(
            f"{name} must have the axes {_shown(letters)}{note}{known}; got the shape {shape}"
        )
    for letter, size in zip(axes, compared, strict=True):
        if not letter.startswith("#"):
            sizes.setdefault(letter, (size, name))


def _plain(axes):
    return [axis.lstrip("#") for axis in axes]


def _shown(letters):
    return f"[{', '.join(_plain(letters))}]"


def _called(kind):
    return {"float": "floating point", "int": "integers", "bool": "boolean"}[kind]


def _hint(kind):
    return {
        "float": "; convert it with .astype(jnp.float32)",
        "int": "",
        "bool": " (turn 0/1 into a mask with `!= 0`)",
    }[kind]


def are_numbers(*sizes: Any) -> bool:
    """Check that all sizes are numbers; `jax.export` also has symbols for sizes."""
    return all(isinstance(size, int | np.integer) for size in sizes)


def check_length(tokens: Any, max_length: int) -> None:
    """Raise ValueError if tokens [B, T] are longer than `max_length`.

    A symbolic length is not checked.
    """
    if are_numbers(tokens.shape[1]) and tokens.shape[1] > max_length:
        raise ValueError(f"{tokens.shape[1]} tokens are more than max_length={max_length}")


def check_ids(name: str, ids: Any, rows: int, is_token: Any = None) -> None:
    """Raise ValueError if an id is not a row of a table of `rows` rows; padding is not checked.

    Raises TypeError if the ids are not integers.

    Ids that are traced, as under `jax.jit`, have no values yet and are not checked; `lookup` gives
    NaN for a wrong one.
    """
    if isinstance(ids, Tracer) or isinstance(is_token, Tracer):
        return
    if not getattr(ids, "is_fully_addressable", True):  # spread over several processes
        return
    values = np.asarray(ids)
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"{name} must be integers; got {values.dtype}")
    wrong = (values < 0) | (values >= rows)
    if is_token is not None:
        wrong = wrong & np.asarray(is_token, bool)
    if wrong.any():
        raise ValueError(
            f"{name} must be ids from 0 to {rows - 1}, the rows of the embedding table; "
            f"got {values[wrong][0]}"
        )
