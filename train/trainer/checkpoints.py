"""The training state on disk, by orbax: what it takes to go on, apart from the model that one
keeps.

    checkpoints/step-00000120-epochs-003/
        state/          orbax's arrays: parameters, their average, the optimizer, the step,
                        the best weights
        progress.json   where the run stands beside the arrays
        SHA256SUMS      of every other file, written last; `sha256sum -c SHA256SUMS` reads it too

A checkpoint is written under a name that begins with a dot and renamed when it is whole. orbax
reads a flipped byte without a word, so every file is compared with the list before it is used; what
does not agree is named, and the checkpoint before it is taken. Kept are the newest two and the one
with the best score (`KEEP`).
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from train.trainer.step import copied
from transformer_jax.runtime.errors import one_line
from transformer_jax.runtime.files import write_text

logging.getLogger("absl").setLevel(logging.WARNING)  # orbax reports every save at INFO

SUMS, PROGRESS, STATE = "SHA256SUMS", "progress.json", "state"
KEEP = 2  # of the newest; the one with the best score beside them


class CheckpointError(Exception):
    """A checkpoint that could not be written."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside the arrays."""

    step: int = 0
    epoch: int = 0  # how many are done, validated included
    tokens: int = 0
    best_score: float | None = None
    best_epoch: int | None = None
    best_step: int | None = None
    best_metrics: dict | None = None
    metrics_bytes: int = 0  # how much of metrics.jsonl belongs to this state
    losses: tuple[float, ...] = ()  # of the steps since its last line; NaN where one was skipped
    losses_tokens: int = 0
    losses_seconds: float = 0.0
    skipped: int = 0  # steps whose loss or gradient was not finite
    skipped_in_a_row: int = 0
    train_seconds: float = 0.0  # compilation, validation and saving included
    step_seconds: float = 0.0  # in training steps alone
    save_seconds: float = 0.0  # in writing checkpoints, this one not yet counted


def save(folder: Path, state: Any, progress: Progress) -> None:
    """Writes one more checkpoint and removes those that `KEEP` does not ask for.

    Raises CheckpointError, and leaves the older ones as they were, if the disk is full or will not
    have it.
    """
    name = f"step-{progress.step:08d}-epochs-{progress.epoch:03d}"
    target, beside = folder / name, folder / f".{name}.part"
    try:
        _clear(folder)
        beside.mkdir(parents=True)
        _try_room(beside / "room", state)
        with _options():
            ocp.save((beside / STATE).absolute(), state)
        write_text(beside / PROGRESS, json.dumps(asdict(progress), indent=1) + "\n")
        write_text(beside / SUMS, _listed(_sums(beside)))
        # Only a damaged checkpoint, or an equal one, can have this name already.
        shutil.rmtree(target, ignore_errors=True)
        os.rename(beside, target)
        _prune(folder)
    except Exception as error:  # orbax and tensorstore raise their own for what the system said
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(f"cannot write {target}: {one_line(error)}") from error


def load(
    folder: Path, state: Any, warn: Callable[[str], None] = lambda line: None
) -> tuple[Any, Progress] | None:
    """The newest whole checkpoint in the shape of `state`, or None; what is passed over goes to
    `warn`.
    """
    for path in reversed(_all(folder)):
        if (problem := damage(path)) is None:
            try:
                return _read(path, state)
            except Exception as error:  # the files are as they were written, and orbax objects
                problem = f"is of another model or version: {one_line(error)}"
        warn(f"{path} {problem}; the checkpoint before it is taken")
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None."""
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
            return f"is damaged: {name} is not what {SUMS} says"
    return None if text == _listed(found) else f"is damaged: {SUMS} does not list all files"


def _read(path: Path, state: Any) -> tuple[Any, Progress]:
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    progress = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
    progress["losses"] = tuple(progress["losses"])
    with _options():
        found = ocp.load((path / STATE).absolute(), abstract)
    if not any(x.committed for x in jax.tree.leaves(state)):
        # orbax binds arrays to their device, and for those JAX compiles other programs: a run that
        # goes on would wait for all of them again.
        found = copied(jax.device_put(jax.device_get(found)))
    return found, Progress(**progress)


def _try_room(probe: Path, state: Any) -> None:
    """Takes the room that orbax is going to need, and gives it back; OSError if there is not
    enough.

    Where orbax cannot make a folder, it says so but its threads keep the process from ending for 20
    minutes.
    """
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + 2**20
    if shutil.disk_usage(probe.parent).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for n in range(20):
        (probe / str(n)).mkdir(parents=True)
    shutil.rmtree(probe)


def _options() -> ocp.Context:
    context = ocp.Context()
    # Weights do not shrink, and the list of sums is the better check: together two thirds of a
    # save.
    context.array.saving.use_compression = False
    context.array.saving.enable_post_merge_validation = False
    return context


def _prune(folder: Path) -> None:
    """Removes all but the newest `KEEP` and the one whose average has the best score."""
    whole = _all(folder)
    if len(whole) <= KEEP:
        return
    progress = json.loads((whole[-1] / PROGRESS).read_text(encoding="utf-8"))
    best = f"step-{progress['best_step'] or 0:08d}-epochs-{progress['best_epoch'] or 0:03d}"
    for path in whole[:-KEEP]:
        if path.name != best:
            # Renamed first: half of a checkpoint must not stand under the name of a whole one.
            os.rename(path, path.with_name(f".{path.name}.part"))
    _clear(folder)


def _clear(folder: Path) -> None:
    """Removes what a kill has left half written or half removed."""
    for path in folder.glob(".*.part"):
        shutil.rmtree(path)


def _all(folder: Path) -> list[Path]:
    """Every checkpoint, oldest first; a step of more digits than the name gives room is a later
    one.
    """
    return sorted(folder.glob("step-*"), key=lambda path: (len(path.name), path.name))


def _sums(folder: Path) -> dict[str, str]:
    """The sum of every file but the list itself, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def _listed(sums: dict[str, str]) -> str:
    return "".join(f"{sum_}  {name}\n" for name, sum_ in sums.items())


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
