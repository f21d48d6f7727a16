"""Data parallelism: the rows of a batch are split over the devices, all else is on each of them.

The compiled function is the same as for one device: XLA sees where its arguments are, and adds up
the results of the devices. With one device these functions do nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def num_devices() -> int:
    """Return the number of devices of this process."""
    return jax.local_device_count()


def replicate(tree: Any) -> Any:
    """Place the same arrays on every device: parameters, optimizer state."""
    return tree if num_devices() == 1 else jax.device_put(tree, _sharding())


def split_rows(batch: Any) -> Any:
    """Split the first axis of each NumPy array into equal parts over the devices.

    Rows of zeros are added where it has no equal parts. A zero is False in the masks of a batch, so
    that these rows have no weight in a loss and are no results.
    """
    devices = num_devices()
    if devices == 1:
        return batch

    def filled(x):
        return np.pad(x, [(0, -len(x) % devices), *[(0, 0)] * (x.ndim - 1)])

    return jax.device_put(jax.tree.map(filled, batch), _sharding("rows"))


def keep_replicated(tree: Any) -> Any:
    """Keep results whole on every device, inside a compiled function."""
    return tree if num_devices() == 1 else jax.lax.with_sharding_constraint(tree, _sharding())


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


def _sharding(*axes: str) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.local_devices()), ("rows",)), PartitionSpec(*axes))
