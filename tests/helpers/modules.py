"""Modules with parameters that NumPy draws: JAX would compile an initializer for each shape."""

from collections.abc import Callable

import jax
import numpy as np
from flax import nnx

from transformer_jax.nn.parameters import AbstractRngs


def drawn(make: Callable[[nnx.Rngs], nnx.Module], seed: int = 3) -> nnx.Module:
    """Return the module of `make(rngs)`, with no parameter at its initial 0 or 1.

    They are large enough that attention matters.
    """
    graph, params = nnx.split(nnx.eval_shape(lambda: make(AbstractRngs())), nnx.Param)
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        around = 1 if "scale" in jax.tree_util.keystr(path) else 0
        return jax.device_put(np.float32(around + 0.4 * rng.normal(size=leaf.shape)))

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, params))
