"""Accelerators and their published figures: operations, memory and network of one device.

Each figure is the vendor's, of the pages in `sources`. Vendors state network bandwidth as the sum
of both directions; here it is that of one, in which a device receives. Peaks are without sparsity:
half of those that NVIDIA states with it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """The figures of an accelerator: operations and bytes a second, and bytes.

    `float32` is what JAX does with float32 by default: TF32 on these GPUs, bfloat16 on TPUs
    (https://docs.jax.dev/en/latest/201/precision.html). `near` is the bandwidth between the
    `domain` devices of a node or pod, `far` that between nodes or pods, for each device.
    """

    name: str
    bfloat16: float
    float32: float
    memory: float
    memory_bandwidth: float
    near: float
    domain: int
    far: float
    sources: tuple[str, ...]

    def peak(self, dtype: str) -> float:
        """Return the operations a second of matrix products in a dtype of training."""
        return self.float32 if dtype == "float32" else self.bfloat16


NVIDIA, GOOGLE = (
    "https://www.nvidia.com/en-us/data-center",
    "https://docs.cloud.google.com/tpu/docs",
)
DGX = "https://docs.nvidia.com/dgx"

# By the name for `--device`.
DEVICES = {
    # A node of eight (DGX) with an adapter of 400 Gb/s for each GPU.
    "h100": Device(
        "NVIDIA H100 SXM", 1979e12 / 2, 989e12 / 2, 80e9, 3.35e12, 900e9 / 2, 8, 400e9 / 8,
        (f"{NVIDIA}/h100/", f"{DGX}/dgxh100-user-guide/introduction-to-dgxh100.html"),
    ),
    "h200": Device(
        "NVIDIA H200 SXM", 1979e12 / 2, 989e12 / 2, 141e9, 4.8e12, 900e9 / 2, 8, 400e9 / 8,
        (f"{NVIDIA}/h200/", f"{DGX}/dgxh100-user-guide/introduction-to-dgxh100.html"),
    ),
    # A node of eight (DGX) with an adapter of 200 Gb/s for each GPU.
    "a100": Device(
        "NVIDIA A100 80GB SXM", 312e12, 156e12, 80e9, 2.039e12, 600e9 / 2, 8, 200e9 / 8,
        (f"{NVIDIA}/a100/", f"{DGX}/dgxa100-user-guide/introduction-to-dgxa100.html"),
    ),
    # Between pods: the bandwidth of the data centre network of a pod, for each chip.
    "tpu-v5e": Device(
        "TPU v5e", 197e12, 197e12, 16e9, 819e9, 400e9 / 2, 256, 6.4e12 / 8 / 256,
        (f"{GOOGLE}/v5e",),
    ),
    "tpu-v5p": Device(
        "TPU v5p", 459e12, 459e12, 95e9, 2765e9, 1200e9 / 2, 8960, 50e9 / 8,
        (f"{GOOGLE}/v5p-training",),
    ),
    "tpu-v6e": Device(
        "TPU v6e", 918e12, 918e12, 32e9, 1600e9, 800e9 / 2, 256, 25.6e12 / 8 / 256,
        (f"{GOOGLE}/v6e",),
    ),
}  # fmt: skip
