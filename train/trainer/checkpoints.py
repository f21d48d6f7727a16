"""Checkpoints: the training state on disk, written with orbax, from which a run is resumed.

    checkpoints/step-00000120-epochs-003/
        state/          orbax's arrays: parameters, their average, the optimizer, the step,
                        the best weights
        progress.json   counts, scores and times of the run
        SHA256SUMS      of every other file, written last; `sha256sum -c SHA256SUMS` reads it too

A checkpoint is written under a name that begins with a dot and renamed when it is complete. orbax
does not detect a flipped byte, so every file is compared with SHA256SUMS before it is used; a
mismatch is reported, and the checkpoint before it is loaded instead. The newest two checkpoints
(`KEEP`) and the one with the best score are kept. The model to use is saved elsewhere.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from train.trainer.exchange import exchange, from_first
from train.trainer.step import copied
from transformer_jax.parallel.processes import is_first
from transformer_jax.runtime.errors import one_line
from transformer_jax.runtime.files import write_text

logging.getLogger("absl").setLevel(logging.WARNING)  # orbax reports every save at INFO

SUMS, PROGRESS, STATE = "SHA256SUMS", "progress.json", "state"
KEEP = 2  # number of newest checkpoints to keep, in addition to the one with the best score
SLOWEST = 20e6  # bytes a second that a disk reads


class CheckpointError(Exception):
    """A checkpoint that could not be written; the message says why."""


@dataclass(frozen=True)
class Progress:
    """The counts, scores and times of a run, saved with its arrays."""

    step: int = 0
    epoch: int = 0  # epochs completed, validation included
    tokens: int = 0
    best_score: float | None = None
    best_epoch: int | None = None
    best_step: int | None = None
    best_metrics: dict | None = None
    metrics_bytes: int = 0  # length of metrics.jsonl at this state
    losses: tuple[float, ...] = ()  # of the steps since its last line; NaN for a skipped step
    losses_tokens: int = 0
    losses_seconds: float = 0.0
    skipped: int = 0  # steps whose loss or gradient was not finite
    skipped_in_a_row: int = 0
    train_seconds: float = 0.0  # compilation, validation and saving included
    step_seconds: float = 0.0  # in training steps only
    save_seconds: float = 0.0  # in writing checkpoints before this one
    meshes: tuple[dict, ...] = ()  # that the run was trained on, each with its first step

    def on_mesh(self, sizes: dict[str, int], processes: int) -> "Progress":
        """Return the progress of a run that continues with this mesh and number of processes.

        Runs that always had a single device have no meshes.
        """
        now = {"data": 1, "fsdp": 1, "tensor": 1} | sizes | {"processes": processes}
        before = {k: v for k, v in self.meshes[-1].items() if k != "step"} if self.meshes else None
        if now == before or not (sizes or self.meshes):
            return self
        began = self.meshes
        if self.step and not began:  # on a single device
            began = ({"step": 0, "data": 1, "fsdp": 1, "tensor": 1, "processes": 1},)
        return replace(self, meshes=(*began, {"step": self.step} | now))


def save(folder: Path, state: Any, progress: Progress) -> None:
    """Write a checkpoint and remove older ones: all but the newest `KEEP` and the best.

    Each of several processes must call it; the first does what is not orbax's. Raises
    CheckpointError if the disk is full or writing fails; older checkpoints then stay as they were.
    """
    name = f"step-{progress.step:08d}-epochs-{progress.epoch:03d}"
    target, beside = folder / name, folder / f".{name}.part"
    first = is_first()
    try:
        if first:
            _clear(folder)
            beside.mkdir(parents=True)
            _try_room(beside / "room", state)
        exchange("room")  # raises in all processes what the first one raised
        with _options():
            ocp.save((beside / STATE).absolute(), state)
        if not first:
            exchange("saved", _seconds(state))
            return
        write_text(beside / PROGRESS, json.dumps(asdict(progress), indent=1) + "\n")
        write_text(beside / SUMS, _listed(_sums(beside)))
        # Only a damaged checkpoint, or an equal one, can have this name already.
        shutil.rmtree(target, ignore_errors=True)
        os.rename(beside, target)
        _prune(folder)
        exchange("saved", _seconds(state))
    except Exception as error:  # orbax and tensorstore wrap the system's errors in their own
        if first:
            shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(f"cannot write {target}: {one_line(error)}") from error


def load(
    folder: Path, state: Any, warn: Callable[[str], None] = lambda line: None
) -> tuple[Any, Progress] | None:
    """Load the newest undamaged checkpoint with the structure of `state`, as (state, progress).

    Returns None if there is none. Skipped checkpoints are reported to `warn`.
    """
    # The first process says which there are, and which are damaged.
    for name in json.loads(from_first(json.dumps([path.name for path in _all(folder)])))[::-1]:
        path = folder / name
        problem = from_first((is_first() and damage(path)) or "", _seconds(state))
        if not problem:
            try:
                found = _read(path, state)
            except Exception as error:  # the files are undamaged, but orbax cannot load them
                problem = f"is of another model or version: {one_line(error)}"
            problem = next(filter(None, exchange(problem)), "")
            if not problem:
                return found
        warn(f"{path} {problem}; using the checkpoint before it")
    return None


def damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint's files, as a phrase, or None if they are intact."""
    try:
        text = (path / SUMS).read_text(encoding="utf-8")
        found = _sums(path)
    except (OSError, UnicodeDecodeError):
        return f"has no readable {SUMS}"
    for line in text.splitlines():
        sum_, _, name = line.partition("  ")
        if name not in found:
            return f"is damaged: {name} is missing"
        if found[name] != sum_:
            return f"is damaged: {name} does not match {SUMS}"
    return None if text == _listed(found) else f"is damaged: {SUMS} does not list all files"


def _read(path: Path, state: Any) -> tuple[Any, Progress]:
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    progress = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
    progress |= {name: tuple(progress.get(name, ())) for name in ("losses", "meshes")}
    with _options():
        found = ocp.load((path / STATE).absolute(), abstract)
    if not any(x.committed for x in jax.tree.leaves(state)):
        # orbax binds arrays to their device, and for those JAX compiles other programs: a run that
        # goes on would wait for all of them again.
        found = copied(jax.device_put(jax.device_get(found)))
    return found, Progress(**progress)


# If orbax cannot create a folder, it raises an error, but its threads keep the process alive for
# another 20 minutes. So a full disk is detected here, before orbax starts.
def _try_room(probe: Path, state: Any) -> None:
    """Raise OSError if the disk has no room for the files and folders that orbax will write."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + 2**20
    if shutil.disk_usage(probe.parent).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for n in range(20):
        (probe / str(n)).mkdir(parents=True)
    shutil.rmtree(probe)


def _seconds(state: Any) -> float:
    """Return how many seconds more the first process may take to sum the files of a checkpoint."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / SLOWEST


def _options() -> ocp.Context:
    context = ocp.Context()
    # Weights do not compress, and SHA256SUMS is the better check. Without both a save takes a
    # third of the time.
    context.array.saving.use_compression = False
    context.array.saving.enable_post_merge_validation = False
    return context


def _prune(folder: Path) -> None:
    """Remove all but the newest `KEEP` and the one whose averaged weights have the best score."""
    whole = _all(folder)
    if len(whole) <= KEEP:
        return
    progress = json.loads((whole[-1] / PROGRESS).read_text(encoding="utf-8"))
    best = f"step-{progress['best_step'] or 0:08d}-epochs-{progress['best_epoch'] or 0:03d}"
    for path in whole[:-KEEP]:
        if path.name != best:
            # Rename first, so that a half-removed checkpoint never has the name of a complete one.
            os.rename(path, path.with_name(f".{path.name}.part"))
    _clear(folder)


def _clear(folder: Path) -> None:
    """Remove checkpoints that a killed process left half written or half removed."""
    for path in folder.glob(".*.part"):
        shutil.rmtree(path)


def _all(folder: Path) -> list[Path]:
    """Return every checkpoint, oldest first."""
    # By length first: a step number may outgrow the digits that the name reserves.
    return sorted(folder.glob("step-*"), key=lambda path: (len(path.name), path.name))


def _sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file except SHA256SUMS itself, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def _listed(sums: dict[str, str]) -> str:
    return "".join(f"{sum_}  {name}\n" for name, sum_ in sums.items())


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
