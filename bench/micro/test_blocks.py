"""Benchmarks of skipping the blocks that a causal or window mask hides, against full attention.

    pytest --benchmark-only bench/micro/test_blocks.py

Half of the keys are visible under a causal mask, and one in sixteen in a window of 128 on each side
at T = 4096. The visited blocks cover a little more. The implementation is the chosen one.
"""

import numpy as np
import pytest

from bench.measure import harness
from bench.measure.harness import Contestant
from bench.peers.contestants import Cell, definition, our_attention

T = 4096
ATOL = 2e-5


@pytest.mark.parametrize("kind", ["causal", "window"])
def test_hidden_blocks_take_no_time(benchmark, kind):
    attend = {name: Contestant(our_attention(name, None)) for name in ("full", kind)}
    inputs = Cell(kind, T).inputs(seed=0)
    for name, contestant in attend.items():
        value = harness.prepare(contestant, inputs, None, 0.0).call()  # of the first inputs
        (right,) = definition(Cell(name, T), inputs[0], head=3)
        np.testing.assert_allclose(value[:, :, 3], right, rtol=0, atol=ATOL)
    harness.compare(
        benchmark,
        attend["full"],
        attend[kind],
        inputs,
        subject="attention that skips",
        implementation="full",
        reference=kind,
        length=T,
    )
