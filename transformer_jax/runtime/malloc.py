"""Memory that the C library keeps instead of giving it back to the system after every step.

XLA on a CPU takes one block for all temporaries of a call and gives it back at the end; the system
then hands out, and clears, its pages anew, with a fault for every 4 KiB. In a training step of 1
GiB of temporaries that can cost as much as the arithmetic.
https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

import ctypes

# From malloc.h; -1 for the threshold stands for never. One arena, since those of threads hold at
# most 64 MiB a block.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1))

_kept = False


def keep_freed_memory() -> bool:
    """From now on freed memory stays with the process; False where that cannot be had.

    For programs that call one large function many times, and before JAX computes anything: an arena
    that a thread has begun stays. The process stays as large as it once was. Only glibc knows these
    settings.
    """
    global _kept
    try:
        libc = ctypes.CDLL("libc.so.6")
        if _arenas(libc) > 1:
            return False
        _kept = all([libc.mallopt(name, value) for name, value in SETTINGS])
    except (OSError, AttributeError):
        return False
    return _kept


def _arenas(libc: ctypes.CDLL) -> int:
    """How many glibc has begun: elements of what malloc_info(3) writes."""
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    count = (text.value or b"").count(b"<heap nr=")
    libc.free(text)
    return count


def freed_memory_is_kept() -> bool:
    """For the record."""
    return _kept
