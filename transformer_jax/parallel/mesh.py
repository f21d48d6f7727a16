"""The device mesh: data, FSDP and tensor parallelism, and where each array lies on it.

    data     the rows of a batch are split; every part of the mesh has all parameters
    fsdp     the rows of a batch are split, and at rest the parameters too: each is gathered
             before it is used (fully sharded data parallelism, ZeRO stage 3)
    tensor   heads, hidden features and the vocabulary are split, at rest and at work

The compiled functions are the same as for one device: XLA sees where their arguments lie, and adds
the collectives. The mesh is the one of `jax.set_mesh`. Without a mesh, no function here changes
anything.

Sources: Xu et al., 2021, https://arxiv.org/abs/2105.04663 (GSPMD); Rajbhandari et al., 2020,
https://arxiv.org/abs/1910.02054 (ZeRO); Shoeybi et al., 2019, https://arxiv.org/abs/1909.08053
(tensor parallelism).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.parallel.axes import axes_of, parameter_name

AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")  # the axes over which the rows of a batch are split
# From the axes of parameters to those of the mesh, in a computation and outside of one.
AT_WORK = {"heads": "tensor", "hidden": "tensor", "vocab": "tensor"}
AT_REST = AT_WORK | {"embed": "fsdp"}
NO_MESH = Mesh(np.empty((), object), ())  # as `jax.set_mesh` takes none


def parse_mesh(text: str | None) -> dict[str, int]:
    """Return the sizes of the axes in a text such as "data=2,fsdp=4"; -1 stands for the rest.

    An axis that is not named has size 1, but `data` has the rest, unless another axis has it.
    Raises ValueError if an axis is unknown or named twice, or a size is not possible.

    >>> parse_mesh("fsdp=4")
    {'data': -1, 'fsdp': 4, 'tensor': 1}
    """
    found: dict[str, int] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, size = (each.strip() for each in part.partition("="))
        if name not in AXES:
            raise ValueError(
                f"--mesh has no axis {name!r:.40}; pass sizes of {', '.join(AXES)}, such as "
                "data=2,fsdp=4"
            )
        if name in found:
            raise ValueError(f"--mesh has {name} twice: {text!r:.60}")
        if not re.fullmatch(r"-1|0*[1-9]\d{0,8}", size):
            raise ValueError(
                f"--mesh: the size of {name} must be 1 or more, or -1 for the rest; "
                f"got {size!r:.40}"
            )
        found[name] = int(size)
    rest = [name for name, size in found.items() if size == -1]
    if len(rest) > 1:
        raise ValueError(f"--mesh: only one axis can have the rest (-1); got {', '.join(rest)}")
    return {"data": 1 if rest else -1, "fsdp": 1, "tensor": 1} | found


def mesh_sizes(text: str | None, devices: int) -> dict[str, int]:
    """Return the sizes of the axes of a mesh of so many devices, without -1; see `parse_mesh`.

    Raises ValueError if the product of the sizes is not the number of devices.

    >>> mesh_sizes("fsdp=4", devices=8)
    {'data': 2, 'fsdp': 4, 'tensor': 1}
    """
    sizes = parse_mesh(text)
    given = math.prod(size for size in sizes.values() if size != -1)
    filled = {name: devices // given if n == -1 else n for name, n in sizes.items()}
    if math.prod(filled.values()) != devices:
        needed = f"a multiple of {given} devices" if -1 in sizes.values() else f"{given} devices"
        raise ValueError(
            f"--mesh {text} needs {needed}, and there {'is' if devices == 1 else 'are'} {devices}; "
            "change a size, or pass -1 for one of them"
        )
    return filled


def make_mesh(sizes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh of these devices, by default of all, with these sizes, for `jax.set_mesh`."""
    kinds = (AxisType.Auto,) * len(AXES)  # XLA places what the functions here do not
    shape = tuple(sizes[name] for name in AXES)
    return jax.make_mesh(shape, AXES, axis_types=kinds, devices=devices)


def use_mesh(text: str | None = None) -> AbstractContextManager[None]:
    """Return a context that sets the mesh of all devices, by default with data = all.

    With a single device no mesh is set. Raises ValueError as `mesh_sizes` does.
    """
    sizes = mesh_sizes(text, jax.device_count())
    return nullcontext() if jax.device_count() == 1 else _set(sizes)


@contextmanager
def use_any_mesh() -> Iterator[None]:
    """Set a mesh with data = all for the duration of the context, unless a mesh is set already."""
    if current_sizes() or jax.process_count() > 1:
        yield
        return
    with use_mesh():
        yield


def current_sizes() -> dict[str, int]:
    """Return the sizes of the axes of the mesh that is set, or an empty dictionary.

    A mesh with other axes is that of a user's own program, and counts as none.
    """
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    return sizes if set(AXES) <= set(sizes) else {}


def num_row_parts() -> int:
    """Return the number of parts into which the rows of a batch are split."""
    sizes = current_sizes()
    return math.prod(sizes.get(axis, 1) for axis in ROWS)


def spec_of(name: str, shape: tuple[int, ...], rules: Mapping[str, str], sizes: Any) -> P:
    """Return where a parameter lies, on a mesh with these sizes, by one of the two maps.

    An axis that its part of the mesh does not divide stays whole. Axes of size 1 and trailing axes
    that are not split are left out, as XLA does: another spelling would compile a step twice.

    >>> tuple(spec_of("head.kernel", (64, 96), AT_REST, {"data": 1, "fsdp": 4, "tensor": 2}))
    ('fsdp', 'tensor')
    """
    axes = [rules.get(axis) for axis in axes_of(name, len(shape))]
    split = [
        axis if axis and sizes[axis] > 1 and size % sizes[axis] == 0 else None
        for axis, size in zip(axes, shape, strict=True)
    ]
    while split and split[-1] is None:
        split.pop()
    return P(*split)


def place(params: Any) -> Any:
    """Return parameters placed where they lie at rest."""
    return params if not current_sizes() else jax.tree.map(_put, params, _specs(params, AT_REST))


def gather(params: Any, *, layers: bool = True) -> Any:
    """Constrain parameters to where they lie at work, inside a compiled function.

    Without this line at the top of an objective, XLA gathers the batch instead of the parameters.
    Without `layers`, those of the layers of a stack stay at rest, and the stack must gather them.
    """
    at_rest = None if layers else lambda name: ".layers." in name
    return _constrained(params, lambda: _specs(params, AT_WORK, at_rest))


def keep_at_rest(params: Any) -> Any:
    """Constrain parameters to where they lie at rest, inside a compiled function."""
    return _constrained(params, lambda: _specs(params, AT_REST))


def keep_like(tree: Any, params: Any) -> Any:
    """Constrain arrays that have the name and the shape of a parameter to lie as it does at rest.

    All other arrays are whole on every device. For the optimizer state, inside a compiled function.
    """
    return _constrained(tree, lambda: _specs_like(tree, params))


def keep_whole(tree: Any) -> Any:
    """Constrain arrays to be whole on every device, so that every process can read them."""
    return _constrained(tree, lambda: jax.tree.map(lambda _: P(), tree))


def split_rows(batch: Any, microbatches: int = 1) -> Any:
    """Split the first axis of each NumPy array into equal parts over the axes `ROWS` of the mesh.

    Every process has the whole batch, and each device takes its rows of it. Rows of zeros are added
    where there are no equal parts, or those are not divisible by the number of microbatches. A zero
    is False in the masks of a batch, so that these rows have no weight in a loss and are no
    results.
    """
    sizes = current_sizes()
    multiple = num_row_parts() * microbatches
    if not sizes:
        return batch if multiple == 1 else jax.tree.map(lambda x: _filled(x, multiple), batch)
    rows = NamedSharding(jax.sharding.get_mesh(), P(tuple(a for a in ROWS if sizes[a] > 1) or None))

    def split(x):
        x = _filled(x, multiple)
        return jax.make_array_from_callback(x.shape, rows, lambda index: x[index])

    return jax.tree.map(split, batch)


def settled(tree: Any) -> Any:
    """Return results that later ones do not depend on, after waiting for them if they need that.

    On the devices that XLA makes of a CPU, the threads of two programs with collectives can wait
    for each other forever.
    """
    on_cpu = current_sizes() and jax.default_backend() == "cpu"
    return jax.block_until_ready(tree) if on_cpu else tree


def to_host(x: Any) -> np.ndarray:
    """Return an array as NumPy, gathered from all devices; every process must call it."""
    return np.asarray(x if getattr(x, "is_fully_addressable", True) else _gathered(x))


def whole_share(params: Any, axis: str) -> float:
    """Return the share of the parameters that an axis of the mesh does not split at rest."""
    specs = jax.tree.leaves(_specs(params, AT_REST), is_leaf=lambda x: isinstance(x, P))
    leaves = jax.tree.leaves(params)
    whole = sum(x.size for x, spec in zip(leaves, specs, strict=True) if axis not in spec)
    return whole / max(sum(x.size for x in leaves), 1)


def vary_like(tree: Any, like: Any) -> Any:
    """Return the same arrays, but varying over devices in a `shard_map` if any of `like` does.

    A loop in a `shard_map` must begin with the type that it ends with, and zeros have the type of
    arrays that are the same on every device.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    nothing = [jnp.ravel(x)[:0] for x in jax.tree.leaves(like)]
    zero = sum(jnp.sum(x != x, dtype=jnp.int32) for x in nothing)
    return jax.tree.map(lambda x: jnp.where(zero == 0, x, x), tree)


@jax.jit
def _gathered(x: Any) -> Any:
    return keep_whole(x)


@contextmanager
def _set(sizes: Mapping[str, int]) -> Iterator[None]:
    with jax.set_mesh(make_mesh(sizes)):
        yield


def _put(x: Any, spec: P) -> jax.Array:
    sharding = NamedSharding(jax.sharding.get_mesh(), spec)
    if isinstance(x, jax.Array) and x.sharding.is_equivalent_to(sharding, x.ndim):
        return x
    if jax.process_count() > 1 and getattr(x, "is_fully_addressable", True):
        x = np.asarray(x)  # each process gives its devices their parts, without a collective
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.device_put(x, sharding)


def _filled(x: Any, multiple: int) -> np.ndarray:
    """Return an array with rows of zeros added, so that their number is a multiple of this one."""
    return np.pad(x, [(0, -len(x) % multiple), *[(0, 0)] * (np.ndim(x) - 1)])


def _constrained(tree: Any, specs: Callable[[], Any]) -> Any:
    return jax.lax.with_sharding_constraint(tree, specs()) if current_sizes() else tree


def _specs(
    params: Any, rules: Mapping[str, str], at_rest: Callable[[str], bool] | None = None
) -> Any:
    """Return the specs of parameters by `rules`; by AT_REST for the names for which it is true."""
    sizes = current_sizes()

    def spec(path, x):
        name = parameter_name(path)
        return spec_of(name, x.shape, AT_REST if at_rest and at_rest(name) else rules, sizes)

    return jax.tree_util.tree_map_with_path(spec, params)


def _specs_like(tree: Any, params: Any) -> Any:
    """Return the specs of arrays, of which those of a parameter's name and shape lie as it does."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    shapes = {parameter_name(path): x.shape for path, x in flat}
    sizes = current_sizes()

    def spec(path, x):
        name = parameter_name(path)
        while name and shapes.get(name) != x.shape:
            name = name.partition(".")[2]  # an optimizer of several groups puts theirs in front
        return spec_of(name, x.shape, AT_REST, sizes) if name else P()

    return jax.tree_util.tree_map_with_path(spec, tree)
