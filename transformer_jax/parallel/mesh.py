"""Data parallelism: the rows of a batch are spread over the devices, everything else is on each of
them.

The compiled function is the same: XLA sees where its arguments lie, and adds up what the devices
have. With one device nothing is done.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def num_devices() -> int:
    """Batches have a multiple of as many rows."""
    return jax.local_device_count()


def replicate(tree: Any) -> Any:
    """The same arrays on every device: parameters, optimizer state."""
    return tree if num_devices() == 1 else jax.device_put(tree, _sharding())


def split_rows(batch: Any) -> Any:
    """Each array's first axis in equal parts over the devices."""
    return batch if num_devices() == 1 else jax.device_put(batch, _sharding("rows"))


def keep_replicated(tree: Any) -> Any:
    """Inside a compiled function: what the devices computed together ends whole on each."""
    return tree if num_devices() == 1 else jax.lax.with_sharding_constraint(tree, _sharding())


def vary_like(tree: Any, like: Any) -> Any:
    """The same arrays, which inside a `shard_map` differ between the devices where any of the
    others does.

    A loop there must begin with the type that it ends with, and zeros are the same on every device.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    nothing = [jnp.ravel(x)[:0] for x in jax.tree.leaves(like)]
    zero = sum(jnp.sum(x != x, dtype=jnp.int32) for x in nothing)
    return jax.tree.map(lambda x: jnp.where(zero == 0, x, x), tree)


def _sharding(*axes: str) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.local_devices()), ("rows",)), PartitionSpec(*axes))
