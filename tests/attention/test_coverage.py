"""A mask is never wrong about blocks: `some` holds where anything is seen, `every` only
where all is.
"""

from functools import cache, partial

import jax
import numpy as np
import pytest

from transformer_jax.attention.coverage import Grid, least_and_largest, split_axis
from transformer_jax.attention.mask_rule import dense
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window
from transformer_jax.costs.jaxpr import count

pytestmark = pytest.mark.usefixtures("strict")

B = 2


def positions(rng, length):
    """Default, one row, a row an example; in order, in any order, with steps or repetitions."""
    kind = rng.integers(0, 5)
    if kind == 0:
        return None
    rows = [np.arange(length), rng.permutation(length), rng.integers(-9, 40, length)]
    if kind < 4:
        return jax.device_put(rows[kind - 1])
    return jax.device_put(np.stack([rows[rng.integers(0, 3)] for _ in range(B)]))


def reach(rng):
    return None if rng.random() < 0.2 else int(rng.integers(0, 6))


RULES = {
    "causal": lambda rng, T, S: causal(
        query_positions=positions(rng, T), key_positions=positions(rng, S)
    ),
    "window": lambda rng, T, S: sliding_window(
        reach(rng), reach(rng), query_positions=positions(rng, T), key_positions=positions(rng, S)
    ),
    "prefix": lambda rng, T, S: prefix(
        rng.integers(-1, S + 2, rng.choice([1, B])), key_positions=positions(rng, S)
    ),
    "padding": lambda rng, T, S: padding(rng.random((B, S)) < rng.choice([0, 0.1, 0.6, 1])),
    "segments": lambda rng, T, S: segments(
        np.sort(rng.integers(0, 4, (B, T))), rng.permuted(rng.integers(0, 4, (B, S)), axis=1)
    ),
    "dense": lambda rng, T, S: dense(
        rng.random([rng.choice([1, n]) for n in (B, 3, T, S)]) < rng.choice([0.02, 0.5, 0.98])
    ),
}  # fmt: skip


def drawn_mask(rng, T, S, depth=2):
    if depth == 0 or rng.random() < 0.4:
        return RULES[rng.choice(list(RULES))](rng, T, S)
    one, other = (drawn_mask(rng, T, S, depth - 1) for _ in range(2))
    return (one & other, one | other, one & ~other, ~one)[rng.integers(0, 4)]


@partial(jax.jit, static_argnames="grid")
def rendered_and_said(masks, grid):
    """Each mask's array and what it says of the blocks: one program for all of them."""
    return [(mask.to_array(grid.T, grid.S), mask.coverage(grid)) for mask in masks]


def blocks_of(array, grid):
    """[B, rows, columns]: whether anything is seen, and whether all is, from the rendered array."""
    some = np.zeros((len(array), grid.rows, grid.columns), bool)
    every = np.zeros_like(some)
    for b, i, j in np.ndindex(some.shape):
        rows = slice(i * grid.queries, (i + 1) * grid.queries)
        part = array[b, :, rows, j * grid.keys : (j + 1) * grid.keys]
        some[b, i, j], every[b, i, j] = part.any(), part.all()
    return some, every


def assert_sound(array, said, grid):
    some, every = blocks_of(array, grid)
    assert all(x.shape[1:] == (grid.rows, grid.columns) and len(x) in (1, B) for x in said)
    assert not (some & ~said.some).any(), "a block with something visible is left out"
    assert not (said.every & ~every).any(), "a block with something hidden is not masked"


# Blocks that divide no length.
@pytest.mark.parametrize("grid", [Grid(7, 11, 2, 3), Grid(11, 7, 4, 5)], ids=["wide", "high"])
def test_nothing_visible_is_skipped_and_nothing_hidden_is_taken_for_seen(grid):
    rng = np.random.default_rng(0)
    masks = [rule(rng, grid.T, grid.S) for rule in RULES.values() for _ in range(2)]
    masks += [drawn_mask(rng, grid.T, grid.S) for _ in range(8)]
    for array, said in jax.device_get(rendered_and_said(masks, grid)):
        assert_sound(array, said, grid)


EXACT = {
    "causal": causal(),
    "window": sliding_window(3, 2),
    "left window": sliding_window(4, 0),
    "all but a window": ~sliding_window(3, 2),
    "no bound": sliding_window(None, None),
    "prefix": prefix(np.array([5, 9])),
    "prefix of one": prefix(4),
    "padding": padding(np.arange(13)[None] < np.array([[5], [13]])),
    "dense": dense(np.random.default_rng(0).random((B, 3, 11, 13)) < 0.9),
}


@cache
def exact(grid):
    """Return the results of `rendered_and_said`, by name."""
    found = jax.device_get(rendered_and_said(list(EXACT.values()), grid))
    return dict(zip(EXACT, found, strict=True))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("size", [(2, 3), (4, 4), (1, 1), (11, 13)])
def test_at_the_default_positions_it_is_exact(name, size):
    grid = Grid(11, 13, *size)
    array, said = exact(grid)[name]
    for ours, theirs in zip(said, blocks_of(array, grid), strict=True):
        np.testing.assert_array_equal(ours, np.broadcast_to(theirs, ours.shape))


def test_packed_texts_in_order_are_exact():
    ids = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3]])
    grid = Grid(11, 11, 3, 2)
    [(array, said)] = jax.device_get(rendered_and_said([segments(ids)], grid))
    for ours, theirs in zip(said, blocks_of(array, grid), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_nothing_of_size_T_x_S_is_made():
    grid = Grid(4096, 4096, 64, 64)
    ids = jax.ShapeDtypeStruct((1, 4096), np.int32)

    def coverage(ids):
        return (causal() & padding(ids > 0) & segments(ids) | prefix(ids[0, :1])).coverage(grid)

    assert count(coverage, ids).largest_bytes < 4096 * 64


def test_a_grid_counts_its_blocks():
    grid = Grid(7, 11, 2, 3)
    assert (grid.rows, grid.columns) == (4, 4)
    assert (Grid(8, 9, 2, 3).rows, Grid(8, 9, 2, 3).columns) == (4, 3)


def test_the_last_block_repeats_the_last_entry():
    @jax.jit
    def run(array):
        return split_axis(array, 1, 2), least_and_largest(array, 2)

    split, (least, largest) = run(np.array([[3, 1, 4, 1, 5]]))
    np.testing.assert_array_equal(split, [[[3, 1], [4, 1], [5, 5]]])
    np.testing.assert_array_equal(least, [[1, 1, 5]])
    np.testing.assert_array_equal(largest, [[3, 4, 5]])
