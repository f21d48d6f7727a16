"""Parameters of Flax modules: how they are initialized and read."""

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array

from transformer_jax.parallel.mesh import NO_MESH, current_sizes, place

Model = TypeVar("Model", bound=nnx.Module)
TRUNCATED_STDDEV = np.float32(0.87962566103423978)  # of a standard normal cut off at -2 and 2
# Sizes of parameters between which they are padded to a power of two, drawn, and cut again.
LEAST_DRAWN, MOST_PADDED = 2**12, 2**20


def dropout_key(rngs: nnx.Rngs | None, rate: float = 1.0):
    """Return the key of the next dropout, or None for evaluation and for a rate of 0."""
    return None if rngs is None or rate == 0.0 else rngs.dropout()


class AbstractRngs(nnx.Rngs):
    """A placeholder for random numbers under `nnx.eval_shape`; parameters drawn from it are zeros.

    Tracing an initializer takes about a millisecond for each array; this skips it.
    """


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


def normal(rngs: nnx.Rngs, *shape: int, stddev: float) -> nnx.Param:
    """Return a float32 parameter of normally distributed values."""
    return _drawn(rngs, jax.random.normal, np.float32(stddev), shape)


def kernel(rngs: nnx.Rngs, *shape: int, inputs: int = 1) -> nnx.Param:
    """Return LeCun-normal weights (variance 1/fan-in); the first `inputs` axes are summed over.

    They are those of `jax.nn.initializers.lecun_normal` up to rounding.
    """
    variance = np.float32(1 / math.prod(shape[:inputs]))
    return _drawn(rngs, _truncated_normal, np.sqrt(variance) / TRUNCATED_STDDEV, shape)


def _drawn(rngs, draw, stddev, shape) -> nnx.Param:
    if isinstance(rngs, AbstractRngs):
        return nnx.Param(jnp.zeros(shape, jnp.float32))
    key, size = rngs.params(), math.prod(shape)
    if isinstance(key, Tracer) or size > MOST_PADDED:
        return nnx.Param(_standard(key, draw=draw, shape=shape) * stddev)
    # Value i depends on the key and i alone, so parameters of many shapes can share a program.
    padded = max(LEAST_DRAWN, 1 << (size - 1).bit_length())
    values = np.asarray(_standard(key, draw=draw, shape=(padded,)))[:size]
    return nnx.Param(jax.device_put(values.reshape(shape) * stddev))


@partial(jax.jit, static_argnames=("draw", "shape"))
def _standard(key, *, draw, shape):
    return draw(key, shape, jnp.float32)


def _truncated_normal(key, shape, dtype):
    return jax.random.truncated_normal(key, -2, 2, shape, dtype)


def zeros(*shape: int) -> nnx.Param:
    """Return a float32 parameter of zeros."""
    return nnx.Param(jnp.zeros(shape, jnp.float32))


def bias_of(use: bool, *shape: int) -> nnx.Param | None:
    """Return a bias of zeros, or None if no bias is used."""
    return zeros(*shape) if use else None


def read(parameter: nnx.Param | None) -> Array | None:
    """Return the array of a parameter, or None if there is no parameter."""
    return None if parameter is None else parameter[...]
