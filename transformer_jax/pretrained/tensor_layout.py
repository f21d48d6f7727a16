"""The layout of a model's parameters in the tensors of a file: names, and one of four layouts.

A kernel of this library is [inputs ..., outputs ...], with heads as axes: [D, N, H] for queries,
[N, H, D] for the output of attention. PyTorch's `Linear` is [outputs, inputs], GPT-2's `Conv1D`
[inputs, outputs]. If a tensor of a file contains several kernels (queries, keys and values), their
outputs are concatenated.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

Shape = tuple[int, ...]
Layout = Literal["linear", "conv1d", "vector", "table"]
STRIPE = 32  # number of rows that fit a core's cache


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file and the dotted names of the parameters that it contains."""

    name: str
    parameters: tuple[str, ...]
    layout: Layout
    inputs: int = 1  # number of input axes of a kernel, which are summed over
    skip: int = 0  # number of unused rows at the start of a table

    def shape(self, shapes: dict[str, Shape]) -> Shape:
        """Compute the shape of the tensor in the file from the shapes of the parameters."""
        own = [shapes[name] for name in self.parameters]
        if self.layout == "vector":
            return (sum(map(prod, own)),)
        if self.layout == "table":
            return (own[0][0] + self.skip, *own[0][1:])
        inputs = prod(own[0][: self.inputs])
        outputs = sum(prod(shape[self.inputs :]) for shape in own)
        return (outputs, inputs) if self.layout == "linear" else (inputs, outputs)

    def read(self, tensor: np.ndarray, shapes: dict[str, Shape]) -> dict[str, np.ndarray]:
        """Convert the tensor of a file to parameters, each as a contiguous array."""
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

    def read_part(
        self,
        parameter: str,
        index: tuple[slice, ...],
        shapes: dict[str, Shape],
        read: Callable[[tuple[slice, ...]], np.ndarray],
    ) -> np.ndarray:
        """Convert the part of a parameter in a slice of each axis.

        `read` returns a part of the tensor of the file. Only what is needed is asked for, except
        that the inputs, or the outputs, are sliced by their first axis alone: all features of some
        heads. No parameter is sharded otherwise (`parallel.axes`).
        """
        if self.layout == "table":
            rows = slice(index[0].start + self.skip, index[0].stop + self.skip)
            return read((rows, *index[1:]))
        shape, split = shapes[parameter], self._first_output
        before = itertools.takewhile(lambda name: name != parameter, self.parameters)
        offset = sum(prod(shapes[name][split:]) for name in before)
        outputs = _flat(shape[split:], index[split:], offset)
        if self.layout == "vector":
            part = read((outputs,))
        else:
            inputs = _flat(shape[:split], index[:split])
            is_linear = self.layout == "linear"
            part = read((outputs, inputs) if is_linear else (inputs, outputs))
            part = _transposed(part) if is_linear else part
        firsts = {0, split}
        part = part.reshape(
            [one.stop - one.start if i in firsts else shape[i] for i, one in enumerate(index)]
        )
        return part[tuple(slice(None) if i in firsts else one for i, one in enumerate(index))]

    def write(self, parameters: dict[str, np.ndarray]) -> np.ndarray:
        """Convert parameters to the tensor of a file. Unused rows of a table are zeros."""
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


def _flat(shape: Shape, index: tuple[slice, ...], offset: int = 0) -> slice:
    """Return where the slice of the first of several axes lies when they are one axis."""
    size = prod(shape[1:])
    return slice(offset + index[0].start * size, offset + index[0].stop * size)


def _transposed(matrix: np.ndarray) -> np.ndarray:
    """Transpose a matrix in stripes, which for large ones is three times as fast as NumPy."""
    transposed = np.empty(matrix.shape[::-1], matrix.dtype)
    for row in range(0, len(matrix), STRIPE):
        transposed[:, row : row + STRIPE] = matrix[row : row + STRIPE].T
    return transposed


def linear(name: str, parameter: str, *, bias: bool = True, inputs: int = 1) -> list[Tensor]:
    """Return the tensors of the PyTorch `Linear` called `name`.

    `parameter` is the prefix of `kernel` and `bias`, such as "head." or "attention.query_".
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
    """Return the tensors of a `Linear` that concatenates the outputs of several kernels."""
    kernels, biases = ([f"{one}{part}" for one in parameters] for part in ("kernel", "bias"))
    kernel = Tensor(f"{name}.weight", tuple(kernels), layout, inputs)
    return [kernel, Tensor(f"{name}.bias", tuple(biases), "vector")] if bias else [kernel]


def conv1d(name: str, *parameters: str, inputs: int = 1) -> list[Tensor]:
    """Return the tensors of GPT-2's `Conv1D`."""
    return fused_linear(name, parameters, inputs=inputs, layout="conv1d")


def norm(name: str, parameter: str, *, bias: bool = True) -> list[Tensor]:
    """Return the tensors of a norm: the `scale` and the `bias` of `parameter`."""
    scale = Tensor(f"{name}.weight", (f"{parameter}.scale",), "vector")
    return [scale, Tensor(f"{name}.bias", (f"{parameter}.bias",), "vector")] if bias else [scale]


def embedding(name: str, parameter: str, *, skip: int = 0) -> Tensor:
    """Return the tensor of an embedding table. Its first `skip` rows are not used."""
    return Tensor(f"{name}.weight", (f"{parameter}.embedding",), "table", skip=skip)
