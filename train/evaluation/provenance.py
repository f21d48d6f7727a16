"""How weights were made, for a report: the counts and times of the training, the versions, the
machine.
"""

import os
import platform
import resource
from collections import Counter
from importlib import metadata
from typing import Any

import jax

from train.trainer.checkpoints import Progress
from transformer_jax.parallel.mesh import num_devices
from transformer_jax.runtime.malloc import freed_memory_is_kept
from transformer_jax.runtime.processor import cores, processor_name

PACKAGES = ("jax", "jaxlib", "flax", "optax", "transformer_jax", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """The versions that a number depends on; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def training_facts(progress: Progress) -> dict[str, Any]:
    """What every report says of how its weights were made."""
    return {
        "freed_memory_kept": freed_memory_is_kept(),
        "devices": num_devices(),
        "steps": progress.step,
        "skipped_steps": progress.skipped,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        **(progress.best_metrics or {}),
        "train_seconds": progress.train_seconds,
        "checkpoint_seconds": progress.save_seconds,
        "tokens_per_second": progress.tokens / max(progress.step_seconds, 1e-9),
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "versions": versions(),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Return what the numbers were made on, without a host's name, so far as it can be known."""
    found = {
        "processor": processor_name(),
        "cores": cores(),
        "platform": f"{platform.system()} {platform.machine()}",
        "accelerators": dict(Counter(device.device_kind for device in jax.devices())),
    }
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        found["memory_gib"] = round(memory / 2**30, 1)
    return found
