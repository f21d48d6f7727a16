"""Libraries that a C++ compiler of the system builds for this processor."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
from jaxlib.version import __version__ as jaxlib_version

from transformer_jax.runtime.compilation_cache import user_cache
from transformer_jax.runtime.processor import processor_description

COMPILERS = ("c++", "g++", "clang++")
# -march=native: for the instructions of this processor. The others allow the compiler to turn
# comparisons and rounding into vector instructions; NaN and infinity keep their meaning.
OPTIONS = "-O3 -march=native -std=c++17 -fPIC -shared -fno-math-errno -fno-trapping-math".split()


def library_path(source: Path) -> Path:
    """Return the path of the library that is built from a source file on this machine.

    It is below the user's cache directory. Its name depends on the source and the headers beside
    it, the processor, the options and the version of jaxlib, whose headers are compiled into it.
    Raises RuntimeError if there is no home directory.
    """
    parts = "\0".join((processor_description(), jaxlib_version, *OPTIONS))
    sources = b"".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    name = hashlib.sha256(sources + parts.encode()).hexdigest()[:16]
    return user_cache() / "libraries" / f"{source.stem}-{name}.so"


def build_library(source: Path) -> Path:
    """Build the library of a C++ source file, unless it is built already, and return its path.

    `CXX` is the compiler, or one of `COMPILERS` that is found. Raises FileNotFoundError if there is
    none, and RuntimeError with its first error if it fails.
    """
    target = library_path(source)
    if target.exists():
        return target
    asked = os.environ.get("CXX")
    found = [path for name in ([asked] if asked else COMPILERS) if (path := shutil.which(name))]
    if not found:
        raise FileNotFoundError(
            f"there is no C++ compiler ({asked or ', '.join(COMPILERS)}); install one, or name it "
            "in the environment variable CXX"
        )
    # What is in the folder will be executed.
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        beside = Path(folder) / target.name
        headers = ["-isystem", jax.ffi.include_dir()]
        command = [found[0], *OPTIONS, *headers, str(source), "-o", str(beside)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
            raise RuntimeError(f"{found[0]} cannot compile {source.name}: {said[0].strip()}")
        os.replace(beside, target)  # whole or not at all, also if two processes build it
    return target
