"""Print the growth of resident memory by one call of attention, by length, as JSON."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from bench.measure.harness import ready
from bench.peers.contestants import Cell, contestants
from bench.peers.mask_kinds import KINDS

ROOT = Path(__file__).parents[2]
CALLS = 3
# glibc keeps freed memory up to a limit that it raises as it runs; a later call would reuse that
# memory and seem to take none.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def can_be_read() -> bool:
    """Return whether Linux reports the memory of arrays here; on a GPU they are elsewhere."""
    return Path("/proc/self/clear_refs").exists() and jax.default_backend() == "cpu"


def in_child(module: str, *words: str | int) -> dict[int, int]:
    """Run `python -m module words` in a child process; return the bytes by length that it prints.

    Raises RuntimeError if the child fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | ENVIRONMENT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(map(str, words))} failed:\n{done.stderr}")
    return {int(length): grown for length, grown in json.loads(done.stdout).items()}


def grown(call: Callable[[], Any]) -> int:
    """Return the largest growth of resident memory over several calls.

    A single call may hide its memory: the system may take back late, or keep, what the call before
    freed.
    """
    found = []
    for _ in range(CALLS):
        time.sleep(0.2)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _status("VmRSS")
        value = call()
        found.append(_status("VmHWM") - before)
        del value
    return max(found)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"no {field} in /proc/self/status")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers.resident_memory", description=__doc__
    )
    add = parser.add_argument
    add("name", metavar="NAME", help="an implementation of attention, as bench.attention names it")
    add("kind", choices=KINDS, help="kind of mask")
    add("dtype", choices=("float32", "bfloat16"))
    add("passes", choices=("forward", "gradient"))
    add("lengths", type=int, nargs="+", metavar="LENGTH", help="tokens of a text")
    options = parser.parse_args(words)
    if min(options.lengths) < 1:
        parser.error(f"LENGTH must be 1 or more; got {min(options.lengths)}")
    if not can_be_read():
        parser.error("resident memory is read from Linux's /proc and only for arrays on a CPU")
    found = {}
    for length in options.lengths:
        cell = Cell(options.kind, length, options.dtype, options.passes == "gradient")
        if options.name not in (known := contestants(cell)):
            parser.error(f"NAME must be one of {', '.join(known)}; got {options.name!r}")
        contestant, arrays = known[options.name]
        call, (args,) = ready(contestant, cell.inputs(seed=0, sets=1), arrays)
        jax.block_until_ready(call(*args))
        found[length] = grown(lambda call=call, args=args: call(*args))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
