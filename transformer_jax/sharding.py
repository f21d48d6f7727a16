"""Data parallelism: the rows of a batch are spread over the devices, everything else is on each of them.

The compiled function is the same: XLA sees where its arguments lie, and adds up what the devices have. With one
device nothing is done.
"""

from typing import Any

import jax
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


def _sharding(*axes: str) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.local_devices()), ("rows",)), PartitionSpec(*axes))
