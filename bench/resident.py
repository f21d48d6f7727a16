"""By how much a call raises the memory of its process, seen from the system's side, in a process of its own.

python -m bench.resident NAME KIND DTYPE forward|gradient LENGTH ...     bytes by length, as JSON
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).parent.parent
CALLS = 3
# glibc keeps freed memory up to a limit that it raises as it goes: what is kept would hide what is taken.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def can_be_read() -> bool:
    """Linux says it, and on a GPU the arrays are elsewhere."""
    return Path("/proc/self/clear_refs").exists() and jax.default_backend() == "cpu"


def in_child(module: str, *words: str | int) -> dict[int, int]:
    """Bytes by length, that `python -m module words` prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | ENVIRONMENT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(map(str, words))} failed:\n{done.stderr}")
    return {int(length): grown for length, grown in json.loads(done.stdout).items()}


def grown(call: Callable[[], Any]) -> int:
    """The most of some calls: what the call before has freed may be given back late, or kept after all."""
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
    from bench import attention
    from bench.contestants import Cell, contestants

    name, kind, dtype, what, *lengths = words
    found = {}
    for length in map(int, lengths):
        cell = Cell(kind, length, dtype, what == "gradient")
        contestant, arrays = contestants(cell)[name]
        call, (args,) = attention.ready(contestant, cell.inputs(seed=0, sets=1), arrays)
        jax.block_until_ready(call(*args))
        found[length] = grown(lambda call=call, args=args: call(*args))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
