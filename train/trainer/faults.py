"""Failures of the machine during training, such as a full disk, reported as one line."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from train.trainer.checkpoints import CheckpointError
from train.trainer.run import LostProcess, TrainingError
from transformer_jax.parallel.processes import ProcessError, are_several


@contextmanager
def faults_of(run: Path, batch_tokens: int) -> Iterator[None]:
    """Convert errors of the machine to a TrainingError that says what to do.

    They are a full disk, full memory, and another process of the run that is gone.
    """
    try:
        with lost_processes():
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


@contextmanager
def lost_processes() -> Iterator[None]:
    """Convert the errors that follow when another process of the run is gone to LostProcess."""
    try:
        yield
    except Exception as error:
        if not (are_several() and is_lost(error)):
            raise
        raise LostProcess(
            "another process of this run is gone, or did not come; see what it printed, and "
            "start all processes again",
            mendable=True,
        ) from error


def is_lost(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, is of a lost connection to another process."""
    if error is None:
        return False
    signs = ("gloo", "connection reset by peer", "connection closed by peer", "nccl")
    found = isinstance(error, ProcessError) or any(sign in str(error).lower() for sign in signs)
    return found or is_lost(error.__cause__)


def out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python or XLA means that memory ran out."""
    signs = ("RESOURCE_EXHAUSTED", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(s.lower() in str(error).lower() for s in signs)
