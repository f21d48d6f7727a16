"""The placement of a model that is used: its parameters and the rows that it reads, on the mesh.

A model that is loaded under a mesh lies on it at rest: each process reads the parts of the files
that its devices hold. A loop over many calls of the model gathers the parameters once, before it.
Without a mesh, no function here changes anything.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.parallel.mesh import (
    AT_REST,
    ROWS,
    current_sizes,
    gather,
    num_row_parts,
    place,
    settled,
    spec_of,
    split_rows,
)


def at_rest(name: str, shape: tuple[int, ...]) -> NamedSharding | None:
    """Return where a parameter lies at rest, or None without a mesh."""
    sizes = current_sizes()
    if not sizes:
        return None
    return NamedSharding(jax.sharding.get_mesh(), spec_of(name, shape, AT_REST, sizes))


def from_parts(
    shape: tuple[int, ...],
    sharding: NamedSharding,
    read: Callable[[tuple[slice, ...]], np.ndarray],
) -> jax.Array:
    """Make an array of the parts that the devices of this process hold.

    `read` returns the part in a slice of each axis. It is called once for each different part,
    though several devices may hold it.
    """
    parts: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def part(index):
        bounds = tuple(one.indices(n)[:2] for one, n in zip(index, shape, strict=True))
        if bounds not in parts:
            parts[bounds] = read(tuple(slice(*pair) for pair in bounds))
        return parts[bounds]

    return jax.make_array_from_callback(shape, sharding, part)


def gathered(params: Any) -> Any:
    """Return parameters where they lie at work, gathered from where they lie at rest.

    Programs that are called with them do not gather them again.
    """
    if not current_sizes():
        return params
    return _gathered(params) if _is_transformed() else settled(_gathered(place(params)))


def split_filled(*arrays: Any) -> tuple[Any, ...]:
    """Split the rows of arrays as `split_rows` does, but fill them with copies of the first row.

    A loop that ends with its longest row is not prolonged by a copy. Under a transformation of JAX
    the arrays stay as they are.
    """
    if not current_sizes() or _is_transformed():
        return arrays
    rows = np.arange(len(arrays[0]) + -len(arrays[0]) % num_row_parts())
    rows[len(arrays[0]) :] = 0
    return split_rows(tuple(np.asarray(array)[rows] for array in arrays))


def first_rows(tree: Any, count: int) -> Any:
    """Return the results of so many rows, without those of the copies of `split_filled`.

    The results are whole on every device, and no later program waits for theirs: see `settled`.
    """
    tree = settled(tree)
    # By their shape, because a number of rows may be symbolic, which `len` is not.
    return jax.tree.map(lambda x: x if x.shape[0] == count else x[:count], tree)


def keep_rows(tree: Any, tensor_axis: int | None = None) -> Any:
    """Constrain arrays to be split by rows, inside a compiled function.

    The axis `tensor_axis`, of heads or of the vocabulary, is split over `tensor`. An axis that its
    part of the mesh does not divide stays whole.
    """
    sizes = current_sizes()
    if not sizes:
        return tree
    rows = tuple(axis for axis in ROWS if sizes[axis] > 1)

    def constrained(x):
        split: list[Any] = [None] * x.ndim
        if rows and x.shape[0] % num_row_parts() == 0:
            split[0] = rows
        if tensor_axis is not None and x.shape[tensor_axis] % sizes["tensor"] == 0:
            split[tensor_axis] = "tensor"
        return jax.lax.with_sharding_constraint(x, P(*split))

    return jax.tree.map(constrained, tree)


@jax.jit
def _gathered(params: Any) -> Any:
    return gather(params)


def _is_transformed() -> bool:
    """Return whether the caller is compiled or mapped, so that it cannot place arrays itself."""
    try:
        jax.sharding.get_mesh()
    except ValueError:
        return True
    return False
