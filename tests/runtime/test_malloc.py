"""Freed memory stays with a program that asked for it in time."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's")
# A block as large as a step's temporaries, made and freed in a thread, as XLA's are: the faults of
# the third time.
CHILD = """
import resource, sys, threading
from transformer_jax.runtime import malloc
{before}
if sys.argv[1] == "keep":
    print(malloc.keep_freed_memory(), malloc.freed_memory_is_kept())
def touch():
    block = bytearray(2**27)
    block[:: 4096] = b"x" * len(block[:: 4096])
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=touch)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(), faults()
print(faults())
"""


def in_child(word, before=""):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(before=before), word],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2], env=environment,
    )  # fmt: skip
    return done.stdout.split()


@LINUX
def test_kept_memory_is_not_mapped_anew():
    assert int(in_child("no")[0]) > 2**27 / 4096
    *said, faults = in_child("keep")
    assert said == ["True", "True"] and int(faults) < 1000


@LINUX
def test_too_late_where_threads_have_arenas():
    before = (
        "import jax.numpy as jnp; (jnp.ones((999, 999)) @ jnp.ones((999, 999))).block_until_ready()"
    )
    assert in_child("keep", before)[:2] == ["False", "False"]


@LINUX
def test_in_time_for_what_has_only_been_imported():
    *said, faults = in_child("keep", "import transformer_jax.__main__")
    assert said == ["True", "True"] and int(faults) < 1000
