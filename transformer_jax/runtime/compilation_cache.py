"""JAX's persistent compilation cache for programs: a later one reads what an earlier one compiled.

https://docs.jax.dev/en/latest/persistent_compilation_cache.html

JAX names an entry by the computation, the options and the version of jaxlib. That it is also named
by the instructions of the processor is not promised, and a program with others would crash. So each
version and each kind of processor has a folder of its own.
"""

import hashlib
import os
import shutil
import sys
import time
import warnings
from pathlib import Path

import filelock
import jax
from jaxlib.version import __version__ as jaxlib_version

from transformer_jax.runtime.processor import processor_description

MOST_BYTES = 2**30  # of one folder; JAX then removes the entries that were not read for longest
LEAST_SECONDS = 0.02  # what compiles faster is compiled again
MOST_DAYS = 90  # a folder that was not used for longer is removed when a new one is made
LOCK, ENTRY, READ = ".lockfile", "-cache", "-atime"  # names of jax/_src/lru_cache.py


def use_compilation_cache() -> Path | None:
    """Keep what XLA compiles for later programs, and return the folder, or None without one.

    The folder is `JAX_COMPILATION_CACHE_DIR` if that is set, else one below the user's cache
    directory, which holds at most `MOST_BYTES`. `JAX_ENABLE_COMPILATION_CACHE=false` switches the
    cache off; it is off, too, where the folder cannot be written. For programs: call it before JAX
    computes anything.
    """
    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"]:
        return None
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    chosen = settings["jax_compilation_cache_dir"]
    if chosen is not None:
        return Path(chosen) if chosen else None
    bounded = "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ
    try:
        folder = cache_folder()
        _prepare(folder, mend=bounded or settings["jax_compilation_cache_max_size"] > 0)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    if bounded:
        jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    # An entry that cannot be read or written, on a full disk for example, costs time and no more.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


def cache_folder() -> Path:
    """Return the folder of the cache for this version of JAX and this processor."""
    name = f"xla-{jax.__version__}-{jaxlib_version}"
    processor = hashlib.sha256(processor_description().encode()).hexdigest()[:12]
    return user_cache() / f"{name}-{processor}"


def user_cache() -> Path:
    """Return this library's folder in the user's cache directory."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not given.is_absolute():  # others are to be ignored, says the XDG specification
        given = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return given / "transformer_jax"


def _prepare(folder: Path, *, mend: bool) -> None:
    """Make the folder, or mend it; raise OSError if it cannot be written."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in it will be executed
        for other in folder.parent.glob("xla-*"):
            if other.stat().st_mtime < time.time() - MOST_DAYS * 86_400:
                shutil.rmtree(other, ignore_errors=True)
    os.utime(folder)  # it was used today
    with filelock.FileLock(folder / LOCK, timeout=10):  # JAX's own, which it holds while it writes
        if mend:  # entries of a cache without a bound have no second half
            _remove_halves(folder)


def _remove_halves(folder: Path) -> None:
    """Remove what a killed program left of an entry, with which JAX could not remove others."""
    names = set(os.listdir(folder))
    for kind, other in ((ENTRY, READ), (READ, ENTRY)):
        for name in names:
            if name.endswith(kind) and name.removesuffix(kind) + other not in names:
                (folder / name).unlink()
