"""How much memory attention takes: of the whole process, watched from the system's side.

    pytest --benchmark-only bench/test_memory.py

XLA's plan (the peak bytes of the other benchmarks) is what the compiler says, and on a CPU it leaves out what its
YNNPACK fusions allocate inside: where logits and softmax become one such fusion, the plan grows with T and the
process with T^2. Here a child process calls each implementation and reads how far its resident memory rose,
PyTorch's and eager JAX's alike. The times of this file are those of the child and mean nothing.
"""

import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import jax
import pytest

from bench import harness
from bench.test_attention import CONTESTANTS, inputs

ROOT = Path(__file__).parent.parent
LENGTHS = harness.lengths(128, 256, 512, 1024, 2048, full=[4096])
NAMES = [name for name in CONTESTANTS if "loop" not in name]
# glibc keeps freed memory up to a limit that it raises as it goes: what is kept would hide what is taken.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


@cache
def resident(name: str, longest: int) -> dict[int, int]:
    """Bytes by which one call raises the resident memory, for each length up to the longest."""
    lengths = [str(length) for length in LENGTHS if length <= longest]
    done = subprocess.run(
        [sys.executable, "-m", "bench.test_memory", name, *lengths],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {int(length): grown for length, grown in json.loads(done.stdout).items()}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the arrays are not in this memory")
@pytest.mark.parametrize(("length", "name"), harness.every(NAMES, LENGTHS, {}))
def test_resident(benchmark, length, name):
    if CONTESTANTS[name].how == "torch":
        pytest.importorskip("torch")
    benchmark.group = f"attention, memory of a child process, T = {length:4}"
    grown = benchmark.pedantic(lambda: resident(name, max(length, 2048))[length])
    benchmark.extra_info |= {
        "subject": "resident memory of attention",
        "implementation": name,
        "length": length,
        "resident_bytes": grown,
    }


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"no {field} in /proc/self/status")


def _grown(name: str, length: int) -> int:
    """The most of three calls: what the call before has freed may be given back late, or kept after all."""
    call = harness.prepare(CONTESTANTS[name], inputs(length), None, 0.0).call
    grown = []
    for _ in range(3):
        time.sleep(0.2)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _status("VmRSS")
        value = call()
        grown.append(_status("VmHWM") - before)
        del value
    return max(grown)


if __name__ == "__main__":
    name, *lengths = sys.argv[1:]
    print(json.dumps({length: _grown(name, int(length)) for length in lengths}))
