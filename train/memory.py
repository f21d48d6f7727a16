"""Memory that the C library keeps instead of giving it back to the system after every step.

XLA on a CPU takes one block for all temporaries of a call and gives it back at the end; the system then hands out, and
clears, its pages anew, with a fault for every 4 KiB. In a training step of 1 GiB of temporaries that can cost as much
as the arithmetic. https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

import ctypes
from pathlib import Path

# From malloc.h; -1 for the threshold stands for never. One arena, since those of threads hold at most 64 MiB a block.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1))

_kept = False


def keep_freed_memory() -> bool:
    """From now on freed memory stays with the process; False where that cannot be had.

    For programs that call one large function many times, and before they import NumPy or JAX: arenas are counted when
    the first thread starts. The process stays as large as it once was. Only glibc knows these settings.
    """
    global _kept
    threads = Path("/proc/self/task")
    if not threads.is_dir() or len(list(threads.iterdir())) > 1:
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    _kept = all([mallopt(name, value) for name, value in SETTINGS])
    return _kept


def freed_memory_is_kept() -> bool:
    """For the record."""
    return _kept
