"""Parameters of Flax modules: how they are initialized and read."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from transformer_jax.parallel.mesh import NO_MESH, current_sizes, place

Model = TypeVar("Model", bound=nnx.Module)


def dropout_key(rngs: nnx.Rngs | None, rate: float = 1.0):
    """Return the key of the next dropout, or None for evaluation and for a rate of 0."""
    return None if rngs is None or rate == 0.0 else rngs.dropout()


class AbstractRngs(nnx.Rngs):
    """A placeholder for random numbers under `nnx.eval_shape`; parameters drawn from it are zeros.

    Tracing an initializer takes about a millisecond for each array; this skips it.
    """


def drawn(rngs: nnx.Rngs, init: Callable, *shape: int) -> nnx.Param:
    """Return a float32 parameter with values from the initializer `init`."""
    if isinstance(rngs, AbstractRngs):
        return nnx.Param(jnp.zeros(shape, jnp.float32))
    return nnx.Param(init(rngs.params(), shape, jnp.float32))


def created(make: Callable[[], Model]) -> Model:
    """Return the module of `make()`, whose parameters lie at rest on the mesh that is set.

    If the mesh splits parameters, they are drawn in the memory of the host, because a device may
    have no room for all of them.
    """
    sizes = current_sizes()
    if all(size == 1 for axis, size in sizes.items() if axis != "data"):
        return make()
    with jax.set_mesh(NO_MESH), jax.default_device(jax.local_devices(backend="cpu")[0]):
        graph, state = nnx.split(make())
    return nnx.merge(graph, place(state))


def kernel(rngs: nnx.Rngs, *shape: int, inputs: int = 1) -> nnx.Param:
    """Return LeCun-normal weights (variance 1/fan-in); the first `inputs` axes are summed over."""
    return drawn(rngs, _lecun_normal(inputs, len(shape)), *shape)


@cache
def _lecun_normal(inputs: int, axes: int) -> Callable:
    """Return an initializer that is compiled as one program for each shape."""
    init = jax.nn.initializers.lecun_normal(
        in_axis=tuple(range(inputs)), out_axis=tuple(range(inputs, axes))
    )
    return jax.jit(init, static_argnums=(1, 2))


def zeros(*shape: int) -> nnx.Param:
    """Return a float32 parameter of zeros."""
    return nnx.Param(jnp.zeros(shape, jnp.float32))


def bias_of(use: bool, *shape: int) -> nnx.Param | None:
    """Return a bias of zeros, or None if no bias is used."""
    return zeros(*shape) if use else None


def read(parameter: nnx.Param | None) -> Array | None:
    """Return the array of a parameter, or None if there is no parameter."""
    return None if parameter is None else parameter[...]
