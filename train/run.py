"""Where a run writes: a folder of its own, which holds the options that it was started with."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_jax.files import write_text

OPTIONS = "options.json"


class RunError(ValueError):
    """A run folder that cannot be used."""


def new_run(out: str | None, name: str) -> Path:
    """Where a new run will write: --out, or runs/NAME-DATE-TIME. It never writes over another run."""
    folder = Path(out) if out else Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        if folder.exists() and any(folder.iterdir()):
            raise RunError(
                f"{folder} is not empty and would be written over; "
                f"pass another --out, or --resume {folder}"
            )
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; pass another --out") from None
    return folder


def make_folder(folder: Path, options: argparse.Namespace) -> None:
    """Makes the folder once all that the user gave has been found good, so that a mistake leaves none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / OPTIONS, json.dumps(vars(options), indent=2) + "\n")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; pass another --out") from None


def resume_run(options: argparse.Namespace) -> tuple[Path, argparse.Namespace]:
    """The folder of --resume and the options that it was started with; --epochs may be given anew."""
    folder = Path(options.resume)
    try:
        saved = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise RunError(
            f"{folder} is not a run to go on with: it has no readable {OPTIONS}"
        ) from None
    if set(saved) != set(vars(options)):
        raise RunError(f"{folder} was made by another program or version; start a new run")
    if options.epochs is not None:
        saved["epochs"] = options.epochs
    return folder, argparse.Namespace(**{**saved, "resume": options.resume})


@contextmanager
def event_log(run: Path, tensorboard: bool) -> Iterator[Callable[[dict], None]]:
    """Where the lines of metrics.jsonl also go: TensorBoard when asked for, else nowhere."""
    if not tensorboard:
        yield lambda line: None
        return
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise RunError("--tensorboard needs tensorboardX: pip install tensorboardX") from None
    with SummaryWriter(str(run / "tensorboard")) as writer:
        yield lambda line: [
            writer.add_scalar(name, value, line["step"])
            for name, value in line.items()
            if name != "step"
        ]
