"""The training state on disk, by orbax: what it takes to go on, apart from the model that one keeps.

One checkpoint is a folder `checkpoints/STEP` with orbax's arrays and `progress.json`, written last: a folder
without it was cut short and is not used. The newest whole one is kept, older ones are removed after it stands.
"""

import json
import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from transformer_jax.files import write_text

logging.getLogger("absl").setLevel(logging.WARNING)  # orbax reports every save at INFO


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside the arrays."""

    step: int = 0
    epoch: int = 0  # the epoch that comes next
    tokens: int = 0
    train_seconds: float = 0.0  # compilation and validation included
    step_seconds: float = 0.0  # in training steps alone
    best_score: float | None = None
    best_epoch: int | None = None
    best_metrics: dict | None = None
    metrics_lines: int = 0  # how much of metrics.jsonl belongs to this state


def save(folder: Path, state: Any, progress: Progress) -> None:
    target = folder / f"{progress.step:08d}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    ocp.save((target / "state").absolute(), state)
    write_text(target / "progress.json", json.dumps(asdict(progress)))
    for older in _whole(folder)[:-1]:
        shutil.rmtree(older)


def load(folder: Path, state: Any) -> tuple[Any, Progress] | None:
    """The newest whole checkpoint in the shape of `state`, or None."""
    whole = _whole(folder)
    if not whole:
        return None
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    loaded = ocp.load((whole[-1] / "state").absolute(), abstract)
    return loaded, Progress(**json.loads((whole[-1] / "progress.json").read_text()))


def _whole(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/progress.json"))
