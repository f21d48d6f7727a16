"""Reading of config.json and safetensors files in Hugging Face's layout.

Every error is a PretrainedError with a message of one line. Nothing is unpickled. Tensors are read
one by one, so that memory never holds both the model and a whole file.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from transformer_jax.runtime.errors import PretrainedError, one_line
from transformer_jax.runtime.texts import read_text
from transformer_jax.serialization.folder_files import INDEX, WEIGHTS

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
HEADER_BYTES = 8  # the length of the header, stored before the header


@dataclass(frozen=True)
class Entry:
    """The location of a tensor in a file."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # byte offset in the file

    def read(self) -> np.ndarray:
        """Read the tensor with the dtype of the file.

        Raises PretrainedError if the dtype is not supported or the file is too short.
        """
        if self.dtype not in DTYPES:
            raise PretrainedError(
                f"{self.path}: {shown(self.name)} is of {self.dtype}; "
                f"{', '.join(DTYPES)} can be read"
            )
        count = int(np.prod(self.shape, dtype=np.int64))
        dtype = np.dtype(DTYPES[self.dtype])
        # Not memory-mapped: the pages of the file would take memory in addition to the copy.
        flat = np.fromfile(self.path, dtype, count, offset=self.start)
        if flat.size != count:
            raise self._cut()
        return flat.reshape(self.shape)

    def read_part(self, index: tuple[slice, ...]) -> np.ndarray:
        """Read the part of the tensor in a slice of each axis.

        Raises PretrainedError if the file is too short.
        """
        # The slices of safetensors cannot have the dtype bfloat16 in NumPy. Of a mapped file only
        # the pages with these rows are read.
        dtype = np.dtype(DTYPES[self.dtype])
        try:
            mapped = np.memmap(self.path, dtype, "r", self.start, self.shape)
        except ValueError:
            raise self._cut() from None
        return np.array(mapped[index])

    def _cut(self) -> PretrainedError:
        return PretrainedError(f"{self.path} is cut: it ends inside {shown(self.name)}")


class Settings:
    """The values of a config.json, with checks of their types.

    Every method that reads a value raises PretrainedError, which names the value, if it is missing
    (without a default) or of another type.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            values = json.loads(read_text(path))
        except FileNotFoundError:
            raise PretrainedError(f"{path.parent} has no {path.name}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise PretrainedError(f"{path} cannot be read: {one_line(error)}") from None
        if not isinstance(values, dict):
            raise PretrainedError(f"{path} is not a configuration: it holds no object")
        self.values = values

    @classmethod
    def of(cls, path: Path, values: dict) -> "Settings":
        """Create settings from values. `path` is used in messages and need not exist."""
        settings = object.__new__(cls)
        settings.path, settings.values = path, values
        return settings

    def whole(self, name: str, default: int | None = None, *, least: int | None = None) -> int:
        """Return an integer, which must be `least` or more."""
        found = self._get(name, default, lambda v: type(v) is int, "a whole number")
        if least is not None and found < least:
            raise self.error(f"{name} must be {least} or more, got {found!r:.60}")
        return found

    def number(self, name: str, default: float | None = None) -> float:
        def is_right(value):
            if type(value) is int:
                return abs(value) < 2**53
            return type(value) is float and math.isfinite(value)  # Python's json reads NaN too

        return float(self._get(name, default, is_right, "a number"))

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._get(name, default, lambda v: type(v) is bool, "true or false")

    def text(self, name: str, default: str | None = None) -> str:
        return self._get(name, default, lambda v: isinstance(v, str), "a string")

    def choice(self, name: str, choices: dict[str, Any], default: str | None = None) -> Any:
        """Return the entry of `choices` that a string selects.

        Raises PretrainedError for any other string, because the model would compute something else.
        """
        value = self.text(name, default)
        if value not in choices:
            raise self.error(f"{name} is {value!r:.60}; known are {', '.join(choices)}")
        return choices[value]

    def must_be(self, name: str, value: Any) -> None:
        """Raise PretrainedError if a setting is present and is not the only supported value."""
        found = self.values.get(name)
        if found is not None and (found != value or type(found) is not type(value)):
            raise self.error(f"{name}={found!r:.60} is not supported, {value!r} is")

    def renamed(self, names: dict[str, str]) -> "Settings":
        """Return the settings with each name in `names` replaced by the one that it stands for.

        Raises PretrainedError if a setting is present under both names with two values.
        """
        values = dict(self.values)
        for other, usual in names.items():
            value = values.pop(other, None)
            if value is None:
                continue
            if values.get(usual, value) not in (value, None):
                raise self.error(
                    f"{usual} is {values[usual]!r:.60}, and {other}, another name of it, is "
                    f"{value!r:.60}; keep one of them"
                )
            values[usual] = value
        return Settings.of(self.path, values)

    def part(self, name: str) -> "Settings | None":
        """Return the settings in a nested object, or None if it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{name} must be an object, got {value!r:.60}")
        return Settings.of(self.path, value)

    def error(self, problem: str) -> PretrainedError:
        return PretrainedError(f"{self.path}: {problem}")

    def _get(self, name, default, is_right, wanted):
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self.error(f"{name} is missing")
            return default
        if not is_right(value):
            raise self.error(f"{name} must be {wanted}, got {value!r:.60}")
        return value


def tensors_of(folder: Path) -> dict[str, Entry]:
    """Find every tensor of model.safetensors, or of the files in its index.

    Raises PretrainedError if the files are missing, damaged or do not match the index.
    """
    if (folder / WEIGHTS).is_file():
        return _tensors_of_file(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        if pickle := next((name for name in PICKLES if (folder / name).is_file()), None):
            raise PretrainedError(
                f"{folder} holds {pickle}, which is never unpickled; "
                f"convert it to {WEIGHTS} with the library that wrote it"
            )
        raise PretrainedError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
    index = Settings(folder / INDEX)
    places = index.part("weight_map")
    if places is None:
        raise index.error("weight_map is missing")
    names = {name: places.text(name) for name in places.values}
    found: dict[str, Entry] = {}
    for file in sorted(set(names.values())):
        if Path(file).name != file or len(file) > 255 or not file.isprintable():
            raise index.error(f"{file!r:.60} is not the name of a file in its folder")
        found |= _tensors_of_file(folder / file)
    if lost := next((name for name in names if name not in found), None):
        raise PretrainedError(
            f"{folder / names[lost]} has no {shown(lost)}, which {INDEX} says it has"
        )
    return found


def _tensors_of_file(path: Path) -> dict[str, Entry]:
    if not path.is_file():
        raise PretrainedError(f"{path.parent} has no {path.name}, which its {INDEX} names")
    try:
        with safe_open(path, "numpy"):  # checks the header, the offsets and the file's length
            pass
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(HEADER_BYTES), "little")
            header = json.loads(file.read(length))
    except (SafetensorError, OSError, ValueError) as error:
        raise PretrainedError(
            f"{path} cannot be read as safetensors, it may be cut: {one_line(error)}"
        ) from None
    header.pop("__metadata__", None)
    first = HEADER_BYTES + length
    return {
        name: Entry(name, path, at["dtype"], tuple(at["shape"]), first + at["data_offsets"][0])
        for name, at in header.items()
    }


def shown(name: str) -> str:
    """Format the name of a tensor for a message of one line: escaped and at most 100 characters."""
    return ascii(name)[1:-1][:100]


def some(names: Iterable[str]) -> str:
    """Format the first three names for a message, with the number of the others."""
    names = sorted(map(shown, names))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
