"""How the parameters of a model lie in the tensors of a file: names, and one of four layouts.

A kernel of ours is [inputs ..., outputs ...], heads being axes: [D, N, H] of queries, [N, H, D]
behind attention. PyTorch's `Linear` has [outputs, inputs], GPT-2's `Conv1D` [inputs, outputs].
Where a file has several kernels in one tensor (queries, keys and values) their outputs stand side
by side.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

Shape = tuple[int, ...]
Layout = Literal["linear", "conv1d", "vector", "table"]
STRIPE = 32  # rows that a core's cache holds


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file and the parameters that it holds, by their dotted names."""

    name: str
    parameters: tuple[str, ...]
    layout: Layout
    inputs: int = 1  # how many axes of a kernel are summed over
    skip: int = 0  # rows of a table that come before ours

    def shape(self, shapes: dict[str, Shape]) -> Shape:
        """In the file, when the parameters have these shapes."""
        own = [shapes[name] for name in self.parameters]
        if self.layout == "vector":
            return (sum(map(prod, own)),)
        if self.layout == "table":
            return (own[0][0] + self.skip, *own[0][1:])
        inputs = prod(own[0][: self.inputs])
        outputs = sum(prod(shape[self.inputs :]) for shape in own)
        return (outputs, inputs) if self.layout == "linear" else (inputs, outputs)

    def read(self, tensor: np.ndarray, shapes: dict[str, Shape]) -> dict[str, np.ndarray]:
        """The parameters, each in rows of its own."""
        if self.layout == "table":
            return {self.parameters[0]: tensor[self.skip :]}
        axis = 1 if self.layout == "conv1d" else 0
        sizes = [prod(shapes[name][self._first_output :]) for name in self.parameters]
        parts = np.split(tensor, np.cumsum(sizes)[:-1], axis=axis)
        transposed = map(_transposed if self.layout == "linear" else np.ascontiguousarray, parts)
        return {
            name: part.reshape(shapes[name])
            for name, part in zip(self.parameters, transposed, strict=True)
        }

    def write(self, parameters: dict[str, np.ndarray]) -> np.ndarray:
        """The tensor; rows that are not ours are zeros."""
        arrays = [parameters[name] for name in self.parameters]
        if self.layout == "vector":
            return np.concatenate([array.ravel() for array in arrays])
        if self.layout == "table":
            return np.pad(arrays[0], ((self.skip, 0), (0, 0)))
        flat = [array.reshape(prod(array.shape[: self.inputs]), -1) for array in arrays]
        joined = np.concatenate(flat, axis=1)
        return np.ascontiguousarray(joined.T) if self.layout == "linear" else joined

    @property
    def _first_output(self) -> int:
        return 0 if self.layout == "vector" else self.inputs


def _transposed(matrix: np.ndarray) -> np.ndarray:
    """The transpose, written a stripe at a time: of a large matrix three times as fast as NumPy's
    own copy.
    """
    transposed = np.empty(matrix.shape[::-1], matrix.dtype)
    for row in range(0, len(matrix), STRIPE):
        transposed[:, row : row + STRIPE] = matrix[row : row + STRIPE].T
    return transposed


def linear(name: str, parameter: str, *, bias: bool = True, inputs: int = 1) -> list[Tensor]:
    """Return the tensors of the PyTorch `Linear` called `name`.

    `parameter` is what stands before `kernel` and `bias`: "head." or "attention.query_".
    """
    return fused_linear(name, (parameter,), bias=bias, inputs=inputs)


def fused_linear(
    name: str,
    parameters: tuple[str, ...],
    *,
    bias: bool = True,
    inputs: int = 1,
    layout: Layout = "linear",
) -> list[Tensor]:
    """Return the tensors of a `Linear` that has the outputs of several kernels side by side."""
    kernels, biases = ([f"{one}{part}" for one in parameters] for part in ("kernel", "bias"))
    kernel = Tensor(f"{name}.weight", tuple(kernels), layout, inputs)
    return [kernel, Tensor(f"{name}.bias", tuple(biases), "vector")] if bias else [kernel]


def conv1d(name: str, *parameters: str, inputs: int = 1) -> list[Tensor]:
    """Return the tensors of GPT-2's `Conv1D`."""
    return fused_linear(name, parameters, inputs=inputs, layout="conv1d")


def norm(name: str, parameter: str, *, bias: bool = True) -> list[Tensor]:
    """Return the tensors of a norm, the `scale` and the `bias` of `parameter`."""
    scale = Tensor(f"{name}.weight", (f"{parameter}.scale",), "vector")
    return [scale, Tensor(f"{name}.bias", (f"{parameter}.bias",), "vector")] if bias else [scale]


def embedding(name: str, parameter: str, *, skip: int = 0) -> Tensor:
    """Return the tensor of an embedding table, of which the first `skip` rows are not used."""
    return Tensor(f"{name}.weight", (f"{parameter}.embedding",), "table", skip=skip)
