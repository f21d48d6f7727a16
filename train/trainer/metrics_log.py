"""metrics.jsonl, a log with one line every few steps and one per validation; TensorBoard events."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from train.trainer.run import RunError
from transformer_jax.runtime.files import are_discarded


class MetricsLog:
    """A log file to which lines are appended; each is in the file before the next step begins.

    A resumed run removes the lines written after its checkpoint (all beyond `keep_bytes`) and
    writes them again. The file is truncated in place, so if the process is killed in between, no
    line from before the checkpoint is lost. Every line is also passed to `also`.
    """

    def __init__(self, path: Path, keep_bytes: int, also: Callable[[dict], None]):
        self.path, self._also = path, also
        # One process of several writes the log; __exit__ closes the file.
        self._file = TemporaryFile() if are_discarded() else open(path, "ab")  # noqa: SIM115
        size = os.fstat(self._file.fileno()).st_size
        self.missing_bytes = max(0, keep_bytes - size)  # removed by something else
        self._file.truncate(min(keep_bytes, size))
        self._file.seek(0, os.SEEK_END)

    def sync(self) -> int:
        """Write everything to disk (fsync) and return the length of the file in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def write(self, **line) -> None:
        """Write one line, as JSON, to the end of the file."""
        self._file.write((json.dumps(line, allow_nan=False) + "\n").encode())
        self._file.flush()
        self._also(line)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()


@contextmanager
def event_log(run: Path, tensorboard: bool) -> Iterator[Callable[[dict], None]]:
    """Yield a function that writes a line of metrics to TensorBoard, or discards it."""
    if not tensorboard or are_discarded():
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
