"""A setting by which the C library keeps freed memory instead of giving it back to the system.

XLA on a CPU allocates one block for all temporaries of a call and frees it at the end. The system
then hands out its pages anew and clears them, with a page fault for every 4 KiB. In a training step
with 1 GiB of temporaries that can cost as much as the arithmetic.
https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

import ctypes

# From malloc.h. A threshold of -1 means never. One arena, since the arenas of threads have blocks
# of 64 MiB at most.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1))

_kept = False


def keep_freed_memory() -> bool:
    """Keep freed memory in the process from now on; return False if that is not possible.

    For programs that call one large function many times. Call it before JAX computes anything: an
    arena that a thread has begun stays. The process stays as large as its peak. Only glibc has
    these settings.
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
    """Return how many arenas glibc has begun, from the XML that malloc_info(3) writes."""
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    count = (text.value or b"").count(b"<heap nr=")
    libc.free(text)
    return count


def freed_memory_is_kept() -> bool:
    """Return whether `keep_freed_memory` succeeded, for the records of a run."""
    return _kept
