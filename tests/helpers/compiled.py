"""A module as one compiled program: called eagerly, each of its operations is compiled alone."""

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx


def compiled(module: nnx.Module, **static) -> Callable:
    """Return the call of a module with these static options, on the parameters that it has then."""
    options = tuple(static.items())

    def call(*arguments, **more):
        graph, state = nnx.split(module)
        return _call(graph, options, state, arguments, more)

    return call


@partial(jax.jit, static_argnums=(0, 1))
def _call(graph, options, state, arguments, more):
    return nnx.merge(graph, state)(*arguments, **dict(options), **more)
