"""Report entries on how weights were trained: counts, times, package versions, machine."""

import os
import platform
import resource
from collections import Counter
from importlib import metadata
from typing import Any

import jax

from train.trainer.checkpoints import Progress
from transformer_jax.runtime.malloc import freed_memory_is_kept
from transformer_jax.runtime.processor import cores, processor_name

PACKAGES = ("jax", "jaxlib", "flax", "optax", "transformer_jax", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """Return the versions that results depend on; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def training_facts(progress: Progress) -> dict[str, Any]:
    """Return the entries of every report on how its weights were trained."""
    return {
        "freed_memory_kept": freed_memory_is_kept(),
        "devices": jax.device_count(),
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
    """Return a description of the machine as far as it can be found out, without a host name."""
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
