"""Conversion of JSON to dataclasses, with a check of every value's type."""

from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from transformer_jax.runtime.errors import shown

TYPES = {
    int: "an integer", float: "a number", str: "a string", bool: "true or false", tuple: "a list",
}  # fmt: skip


def from_dict(cls: type, values: Any) -> Any:
    """Create a dataclass from a dictionary of its fields, including nested dataclasses.

    Raises ValueError, which names the field, if one is unknown, missing or of another type.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{cls.__name__} must be an object, got {shown(values)}")
    known = {f.name: f for f in fields(cls)}
    needed = {name for name, f in known.items() if f.default is f.default_factory is MISSING}
    for problem, names in (
        ("has no", set(values) - set(known)),
        ("needs", needed - set(values)),
    ):
        if names:
            some = ", ".join(map(shown, sorted(names)[:3]))
            raise ValueError(f"{cls.__name__} {problem} {some}; its fields are {', '.join(known)}")
    return cls(**{name: _typed(name, value, known[name].type) for name, value in values.items()})


def _typed(name: str, value: Any, expected: Any) -> Any:
    """Convert a JSON value to the annotated type, or raise ValueError."""
    # A tuple is a list in JSON, and 1.0 may be written as 1.
    kind, inner = get_origin(expected), get_args(expected)
    if isinstance(expected, type) and is_dataclass(expected):
        return from_dict(expected, value)
    if kind is UnionType:  # a type or None
        (some,) = set(inner) - {NoneType}
        return None if value is None else _typed(name, value, some)
    if kind is tuple and isinstance(value, list):
        return tuple(_typed(name, item, inner[0]) for item in value)
    if kind is Literal and isinstance(value, str) and value in inner:
        return value
    if expected is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is expected:  # not isinstance, because True is an instance of int
        return value
    wanted = " or ".join(map(repr, inner)) if kind is Literal else TYPES[kind or expected]
    raise ValueError(f"{name} must be {wanted}, got {shown(value)}")
