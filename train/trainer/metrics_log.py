"""metrics.jsonl: one line for every few steps and for every validation, and how much of it a
checkpoint knows.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from train.trainer.run import RunError


class MetricsLog:
    """Appends lines; every line is in the file before the next step begins.

    A run that goes on cuts what was written after its checkpoint and writes those lines again. The
    file is cut in place, so a kill between the two loses nothing that the checkpoint knows of.
    """

    def __init__(self, path: Path, keep_bytes: int, also: Callable[[dict], None]):
        self.path, self._also = path, also
        self._file = open(path, "ab")  # noqa: SIM115 (closed by __exit__)
        size = os.fstat(self._file.fileno()).st_size
        self.missing_bytes = max(0, keep_bytes - size)  # cut by something else
        self._file.truncate(min(keep_bytes, size))
        self._file.seek(0, os.SEEK_END)

    def sync(self) -> int:
        """How many bytes are on the disk: all of them."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def write(self, **line) -> None:
        self._file.write((json.dumps(line, allow_nan=False) + "\n").encode())
        self._file.flush()
        self._also(line)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()


@contextmanager
def event_log(run: Path, tensorboard: bool) -> Iterator[Callable[[dict], None]]:
    """Yield where the lines of metrics.jsonl also go: TensorBoard when asked for, else nowhere."""
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
            if name != "step" and value is not None
        ]
