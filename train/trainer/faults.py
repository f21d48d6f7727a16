"""What can go wrong while training that is nobody's mistake: one line, what is kept, and the way
on.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from train.trainer.checkpoints import CheckpointError


class TrainingError(Exception):
    """Training cannot go on; what the last checkpoint has is kept.

    `mendable` says whether the same run can go on once something outside it is mended.
    """

    def __init__(self, message: str, *, mendable: bool):
        super().__init__(message)
        self.mendable = mendable


@contextmanager
def faults_of(run: Path, batch_tokens: int) -> Iterator[None]:
    """Turns a full disk and a full memory into a TrainingError that says what to do."""
    try:
        yield
    except CheckpointError as error:
        raise TrainingError(f"{error}; make room or mend it", mendable=True) from error
    except OSError as error:
        where = error.filename or run
        raise TrainingError(
            f"cannot write {where}: {error.strerror or error}; "
            + ("make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend it"),
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
    signs = ("RESOURCE_EXHAUSTED", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(s.lower() in str(error).lower() for s in signs)
