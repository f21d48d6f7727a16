"""The time of a training step on a mesh, as far as published figures of the devices predict it.

    compute   operations of the matrix products / peak
    memory    bytes read and written at least / bandwidth of the memory
    network   bytes received in the collectives / bandwidth of the links (`costs.mesh`)

The step takes at least the longest of the three, if they overlap completely, and at most as long as
computing (the longer of the first two) and then communicating, if nothing overlaps. No program
reaches a published peak: these are limits, and which of them binds (Williams et al., 2009,
https://doi.org/10.1145/1498765.1498785, the roofline model).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from transformer_jax.costs.devices import Device
from transformer_jax.costs.mesh import Collective, Sizes


@dataclass(frozen=True)
class StepTime:
    """The seconds of a training step by each of the limits."""

    compute: float
    memory: float
    network: float

    @property
    def overlapped(self) -> float:
        """The time if computation and communication overlap completely."""
        return max(self.compute, self.memory, self.network)

    @property
    def sequential(self) -> float:
        """The time if devices compute and then communicate."""
        return max(self.compute, self.memory) + self.network

    @property
    def limit(self) -> str:
        """The limit that binds: compute, memory bandwidth or network."""
        found = {"compute": self.compute, "memory bandwidth": self.memory, "network": self.network}
        return max(found, key=lambda name: found[name])


def traffic_bytes(state: int, gradient: int, work: int, activations: int, *, remat: bool) -> int:
    """Return the bytes of memory that a step reads and writes on a device at least.

    The state (`mesh.state_bytes`, without the best weights) and the gradient are read and written
    once. The weights at work are written once and read in the forward and in the backward pass;
    what is kept for the gradient is written once and read once. `work` and `activations` are those
    without remat: with it the weights are gathered and read, and the rest is written, once more.
    """
    return 2 * state + 2 * gradient + (3 + 2 * remat) * work + (2 + remat) * activations


def step_time(
    flops: float,
    traffic: float,
    operations: Iterable[Collective],
    sizes: Sizes,
    device: Device,
    dtype: str,
) -> StepTime:
    """Return the seconds of a step with so many operations and bytes of memory on a device.

    >>> from transformer_jax.costs.devices import DEVICES
    >>> step_time(197e12, 819e8, [], {}, DEVICES["tpu-v5e"], "bfloat16").limit
    'compute'
    """
    return StepTime(
        flops / device.peak(dtype),
        traffic / device.memory_bandwidth,
        sum(one.seconds(sizes, device) for one in operations),
    )
