"""Failures of the machine during training, such as a full disk, reported as one line."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from train.trainer.checkpoints import CheckpointError
from train.trainer.run import TrainingError


@contextmanager
def faults_of(run: Path, batch_tokens: int) -> Iterator[None]:
    """Convert errors of a full disk or full memory to a TrainingError that says what to do."""
    try:
        yield
    except CheckpointError as error:
        raise TrainingError(f"{error}; free disk space or fix the cause", mendable=True) from error
    except OSError as error:
        where = error.filename or run
        raise TrainingError(
            f"cannot write {where}: {error.strerror or error}; "
            + ("free disk space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "fix that"),
            mendable=True,
        ) from error
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise TrainingError(
            f"out of memory; start a new run with fewer than --batch-tokens {batch_tokens}, "
            "shorter texts or a smaller model",
            mendable=False,
        ) from error


def out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python or XLA means that memory ran out."""
    signs = ("RESOURCE_EXHAUSTED", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(s.lower() in str(error).lower() for s in signs)
