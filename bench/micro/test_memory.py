"""Benchmarks of the memory that attention takes: the resident memory of a whole process.

    pytest --benchmark-only bench/micro/test_memory.py

The peak bytes of the other benchmarks are XLA's plan. On a CPU the plan leaves out what XLA's
YNNPACK fusions allocate inside: where logits and softmax become one such fusion, the plan grows
with T and the process with T^2. Here a child process calls each implementation and reads how far
its resident memory rose, also for PyTorch and eager JAX. The times of this file are those of the
child and mean nothing.
"""

import json
import sys
from functools import cache

import pytest

from bench.measure import harness
from bench.micro.test_attention import CONTESTANTS, inputs
from bench.peers.resident_memory import can_be_read, grown, in_child

LENGTHS = harness.lengths(128, 256, 512, 1024, 2048, full=[4096])
NAMES = [name for name in CONTESTANTS if "loop" not in name]


@cache
def resident(name: str, longest: int) -> dict[int, int]:
    """Return the growth in resident memory of one call, by length up to `longest`."""
    return in_child(
        "bench.micro.test_memory", name, *(length for length in LENGTHS if length <= longest)
    )


@pytest.mark.skipif(not can_be_read(), reason="reads CPU memory from Linux's /proc")
@pytest.mark.parametrize(("length", "name"), harness.every(NAMES, LENGTHS, {}))
def test_resident(benchmark, length, name):
    if CONTESTANTS[name].how == "torch":
        pytest.importorskip("torch")
    benchmark.group = f"attention, memory of a child process, T = {length:4}"
    taken = benchmark.pedantic(lambda: resident(name, max(length, 2048))[length])
    benchmark.extra_info |= {
        "subject": "resident memory of attention",
        "implementation": name,
        "length": length,
        "resident_bytes": taken,
    }


if __name__ == "__main__":
    name, *lengths = sys.argv[1:]
    calls = {
        int(length): harness.prepare(CONTESTANTS[name], inputs(int(length)), None, 0.0).call
        for length in lengths
    }
    print(json.dumps({length: grown(call) for length, call in calls.items()}))
