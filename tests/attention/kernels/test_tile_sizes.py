"""The tiles: how large they are, and that hidden ones are not visited."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.implementations import forced, tiling
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.kernels.tile_sizes import TILE, choose_tiling, visited_blocks
from transformer_jax.attention.kernels.tiles import Tiles, visits
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window

pytestmark = pytest.mark.usefixtures("strict")

ROOT = Path(__file__).parents[3]


# How much is visited
# ---------------------------------------------------------------------------------------


def test_half_of_a_causal_matrix_is_visited():
    assert 0.5 <= visited_blocks(causal(), 4096) <= 0.56


def test_a_tenth_of_a_windowed_matrix_is_visited():
    assert 0.0625 <= visited_blocks(sliding_window(128, 128), 4096) <= 0.1


def test_all_of_a_matrix_without_a_mask_is_visited():
    assert visited_blocks(None, 4096) == 1
    assert visited_blocks(np.ones((16, 16), bool), 16) == 1


def test_nothing_of_a_hidden_matrix_is_visited():
    assert visited_blocks(padding(np.zeros((2, 4096), bool)), 4096) == 0
    assert visited_blocks(np.zeros((4096, 1), bool), 4096, 100) == 0


def test_a_longer_text_with_the_same_window_visits_less():
    parts = [visited_blocks(sliding_window(128, 128), T) for T in (1024, 4096)]
    assert parts[1] < 0.4 * parts[0]


def test_more_keys_than_queries_visit_what_the_last_queries_see():
    assert visited_blocks(causal(), 512, 4096) > 0.85
    assert visited_blocks(sliding_window(128, 0), 512, 4096) < 0.25


MASKS = {
    "none": None,
    "causal": causal(),
    "window": sliding_window(7, 0),
    "prefix": causal() | prefix(np.array([5, 40])),
    "padding": padding(np.arange(60)[None] < np.array([[20], [60]])),
    "segments": causal() & segments(np.repeat([[0, 1, 2, 3]], 15, axis=1)),
    "nothing": padding(np.zeros((2, 60), bool)),
}


def as_array(mask, T):
    return np.asarray(jax.jit(lambda mask: mask.to_array(T))(mask))


class Counter:
    """Count the runs of the body of the loop over keys, forward and backward together."""

    def __init__(self):
        self.steps = 0
        logits = Tiles.logits

        def counted(tiles, *arguments):
            jax.debug.callback(self._step)
            return logits(tiles, *arguments)

        self.patch = patch.object(Tiles, "logits", counted)

    def _step(self):
        self.steps += 1


@pytest.mark.parametrize(
    ("name", "at_once"),
    [
        *(
            pytest.param(name, False, marks=() if i % 2 else pytest.mark.slow)
            for i, name in enumerate(MASKS)
        ),
        ("causal", True),
        ("padding", True),
    ],
)
def test_the_loops_run_as_often_as_blocks_are_seen_and_no_more(name, at_once):
    """60 x 60 in blocks of 7 x 8: the last ones share rows and columns with those before."""
    B, T, N, K = 2, 60, 4, 2
    x, counter = np.ones((B, T, N, 3), np.float32), Counter()

    def loss(query):
        with forced(7, 8, at_once=at_once):
            keys = query[:, :, :K]
            return dot_product_attention(
                query, keys, keys, mask=MASKS[name], implementation="blockwise"
            ).sum()

    with counter.patch:  # the way back is traced after the way there
        jax.block_until_ready(jax.jit(jax.grad(loss))(x))
    jax.effects_barrier()
    mask = MASKS[name]
    array = np.ones((1, 1, T, T), bool) if mask is None else as_array(mask, T)
    array = np.broadcast_to(array, (B, *array.shape[1:]))
    array = array.any(axis=(0, 1), keepdims=True) if at_once else array
    seen = sum(
        bool(example[:, i : i + 7, j : j + 8].any())
        for example in array
        for i in range(0, T, 7)
        for j in range(0, T, 8)
    )
    assert counter.steps == 2 * seen * (1 if at_once else K)


def visits_of(mask, tiling):
    return jax.jit(lambda: visits(mask, tiling))()


def test_blocks_seen_whole_come_first_and_hidden_ones_not_at_all():
    plan = visits_of(causal(), tiling(12, 12, 3, 3))
    np.testing.assert_array_equal(plan.whole, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(plan.seen, [[1, 2, 3, 4]])
    np.testing.assert_array_equal(plan.columns[0, 2, :3], [0, 1, 2])
    np.testing.assert_array_equal(plan.columns[0, 1, :2], [0, 1])


def test_a_last_block_that_overlaps_is_never_taken_as_seen_whole():
    plan = visits_of(None, tiling(12, 11, 3, 3))
    np.testing.assert_array_equal(plan.whole, np.full((1, 4), 3))
    np.testing.assert_array_equal(plan.seen, np.full((1, 4), 4))


def test_examples_that_are_worked_on_together_visit_what_any_of_them_sees():
    mask = padding(np.arange(12)[None] < np.array([[3], [9], [12], [0]]))
    plan = visits_of(mask, tiling(12, 12, 12, 3, examples=2))
    np.testing.assert_array_equal(plan.seen, [[3], [4]])
    np.testing.assert_array_equal(plan.whole, [[1], [0]])


# How they are chosen
# ---------------------------------------------------------------------------------------


def chosen_for(B, T, N, K, mask):
    """The choice uses shapes alone."""
    query, key = (jax.ShapeDtypeStruct((B, T, n, 64), jnp.float32) for n in (N, K))
    return choose_tiling(AttentionInputs(query, key, mask=mask))


@pytest.mark.parametrize(
    "mask", [None, causal(), sliding_window(128, 128)], ids=["none", "causal", "window"]
)
@pytest.mark.parametrize(
    "B, T, N, K", [(1, 1024, 8, 8), (16, 100, 8, 2), (3, 4096, 6, 6), (2, 7, 6, 1)]
)
def test_a_tile_divides_examples_and_heads_and_fits_the_caches(mask, B, T, N, K):
    chosen = chosen_for(B, T, N, K, mask)
    assert B % chosen.examples == 0 and K % chosen.key_heads == 0
    assert chosen.examples == 1 or chosen.key_heads == K
    grid = chosen.grid
    assert 1 <= grid.queries <= T and 1 <= grid.keys <= T
    logits = chosen.examples * chosen.key_heads * (N // K) * grid.queries * grid.keys
    assert logits <= TILE or (chosen.examples, chosen.key_heads) == (1, 1)


def test_a_window_gets_smaller_blocks_than_no_mask():
    window, whole = (chosen_for(1, 4096, 8, 8, m).grid for m in (sliding_window(64, 64), None))
    assert window.queries < whole.queries and window.keys < whole.keys


def test_a_traced_mask_is_tiled_like_any_other():
    def grid(is_token):
        grids.append(chosen_for(2, 1000, 4, 4, padding(is_token)).grid)
        return is_token

    grids = []
    jax.eval_shape(grid, jax.ShapeDtypeStruct((2, 1000), bool))
    assert 1 < grids[0].rows < 10 and 1 < grids[0].columns < 10


def test_an_accelerator_gets_all_examples_and_heads_at_once(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    chosen = chosen_for(16, 4096, 8, 4, causal())
    assert (chosen.examples, chosen.key_heads) == (16, 4)


def test_a_batch_that_is_spread_over_devices_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    chosen = chosen_for(16, 4096, 8, 4, causal())
    assert (chosen.examples, chosen.key_heads) == (16, 4)


# Memory of the process
# -------------------------------------------------------------------------------------

CHILD = """
import sys, time
from pathlib import Path
import jax, jax.numpy as jnp
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.masks import causal

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))

heads, *lengths = map(int, sys.argv[1:])
for length in lengths:
    x = jnp.ones((1, length, heads, 64))
    loss = lambda *x: dot_product_attention(*x, mask=causal(), implementation="blockwise").sum()
    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
    if len(lengths) > 1:  # growth is measured in a second run: the first one also loads code
        jax.block_until_ready(run(x, x, x))
    time.sleep(0.2)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    result = jax.block_until_ready(run(x, x, x))
    print(length, status("VmHWM") - before, status("VmHWM"))
    del result
"""
# glibc keeps freed memory up to a limit that it raises as it goes: what is kept would hide what is
# taken.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def resident(heads, *lengths):
    """(bytes by which value and gradient raise the memory, the most that the process had), for each
    length.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(heads), *map(str, lengths)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return [tuple(map(int, line.split()[1:])) for line in done.stdout.splitlines()]


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")


@linux
@pytest.mark.slow
@pytest.mark.optimized
def test_the_memory_of_the_process_doubles_with_the_length():
    grown = [bytes for bytes, _ in resident(1, 1024, 2048, 4096, 8192, 16384)]
    print(grown)
    for before, after in pairwise(grown):
        assert after <= 2.05 * before
    assert grown[-1] < 16384**2  # a mask of bytes alone would be as large


@linux
@pytest.mark.slow
@pytest.mark.optimized
def test_sixteen_thousand_tokens_with_eight_heads_take_less_than_one_and_a_half_gigabytes():
    [(_, most)] = resident(8, 16384)
    print(most)
    assert most < 1.5e9
