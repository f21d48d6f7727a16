"""A description of the machine that ran a measurement.

It contains everything that affects a time, and nothing that identifies whose machine it is.
"""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from transformer_jax.cpu.library import is_built
from transformer_jax.runtime.processor import cores, processor_name

PACKAGES = "jax jaxlib flax numpy torch tiktoken tokenizers".split()
SETTINGS = "OMP_NUM_THREADS OPENBLAS_NUM_THREADS OMP_WAIT_POLICY XLA_FLAGS".split()


def describe() -> dict[str, Any]:
    """Return the processor, cores, threads, devices, versions, settings, and whether there are the
    kernels in C++.
    """
    return {
        "processor": processor_name(),
        "system": platform.system(),
        "cores": cores(),
        "threads": threads(),
        "devices": sorted({f"{d.platform}: {d.device_kind}" for d in jax.devices()}),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "has_cpu_kernels": is_built(),
    }


def threads() -> dict[str, int]:
    """Return how many threads each library may use; the number changes the time of a product.

    XLA has no such setting; on a CPU it uses one thread per core.
    """
    from threadpoolctl import threadpool_info

    found = {f"numpy ({pool['internal_api']})": pool["num_threads"] for pool in threadpool_info()}
    if "torch" in sys.modules:
        found["torch"] = sys.modules["torch"].get_num_threads()
    return found


def load_average() -> float | None:
    """Return the average number of running programs in the last minute, including this one.

    Return None where the system does not count them.
    """
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
