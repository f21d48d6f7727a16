"""The sizes of tiles: a tile is what one step of the blockwise loops computes.

It consists of some examples, some key heads, a block of queries and a block of keys. Small blocks
follow the edge of a mask closely, large ones keep the matrix products fast, and a whole tile should
stay in the caches.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import jax
import numpy as np

from transformer_jax.attention.coverage import Grid
from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.mask_rule import MaskLike, as_mask
from transformer_jax.attention.rule import rendered
from transformer_jax.cpu.library import is_one_cpu
from transformer_jax.functional.checks import are_numbers

# Number of logits of one tile on a CPU. Measured at 8 heads of 64 features, T = 4096, causal: half
# as many take a twentieth longer, twice as many take as long.
TILE = 2**20
# Edge lengths of blocks, and the time per logit relative to the first. Measured on two cores with
# AVX-512 at 8 heads of 64 features, T = 2048.
EDGES = {512: 1.0, 456: 1.0, 128: 1.4}


@dataclass(frozen=True)
class Tiling:
    """A grid of blocks, and how many examples and key heads are processed at once."""

    grid: Grid
    examples: int
    key_heads: int


def choose_tiling(inputs: AttentionInputs) -> Tiling:
    """Choose the cheapest grid under the mask, and how many examples and heads fit the caches.

    An accelerator gets all examples and heads at once: it has the cores for them, and a batch that
    is spread over devices stays where it is.
    """
    (B, N, T, S), K, mask = inputs.sizes, inputs.key.shape[2], inputs.mask
    grid = _grid(mask, T, S)
    if not is_one_cpu():  # tiles are sized for the caches of a CPU
        return Tiling(grid, B, K)
    if not are_numbers(B):  # a symbolic batch, whose examples are computed one by one
        B = 1
    return Tiling(grid, *_at_once(B, K, TILE // (grid.queries * grid.keys * (N // K))))


def _at_once(B: int, K: int, room: int) -> tuple[int, int]:
    """Return how many examples and key heads: all heads of some examples, or some heads of one."""
    key_heads = _divisor(K, room)
    return (_divisor(B, room // K) if key_heads == K else 1), key_heads


def visited_blocks(mask: MaskLike, T: int, S: int | None = None) -> float:
    """Return the part of the T x S matrix, counted in blocks, that blockwise attention computes.

    It is 1 without a mask. Raises ValueError for less than one query or key, and if the mask does
    not fit them.

    >>> round(visited_blocks(causal(), 4096), 2)
    0.56
    """
    S = T if S is None else S
    if T < 1 or S < 1:
        raise ValueError(f"T and S must be 1 or more; got {T} and {S}")
    mask = as_mask(mask)
    if mask is None:
        return 1.0
    jax.eval_shape(lambda: rendered(mask, T, S))  # raises if it does not fit
    return float(_seen_blocks(mask, _grid(mask, T, S)).mean())


def _grid(mask, T, S):
    if mask is None:  # all rows of blocks cost the same, and long blocks are faster
        return Grid(T, S, _even(T, 1024), _even(S, 512))
    grids = {edge: Grid(T, S, _even(T, edge), _even(S, edge)) for edge in EDGES}
    if jax.tree.leaves(mask):  # its arrays are usually traced: their values are unknown
        return grids[next(iter(EDGES))]
    return grids[min(EDGES, key=lambda edge: EDGES[edge] * _area(mask, grids[edge]))]


def _area(mask, grid):
    """Return how many logits the visited blocks have, for a mask without arrays."""
    some = _seen_blocks_without_arrays(jax.tree.structure(mask), grid)
    return some.sum() / len(some) * grid.queries * grid.keys


@lru_cache
def _seen_blocks_without_arrays(structure, grid):
    return _seen_blocks(jax.tree.unflatten(structure, ()), grid)


def _seen_blocks(mask, grid):
    """Return, as [#B, rows, columns] of NumPy, which blocks have a visible key; also under jit."""
    # One compiled program: jax.ensure_compile_time_eval compiles each operation by itself, which
    # takes a second for the grids of one mask.
    arrays, structure = jax.tree.flatten(mask)
    run = jax.jit(lambda *arrays: jax.tree.unflatten(structure, arrays).coverage(grid).some)
    return np.asarray(run.lower(*arrays).compile()(*arrays))


def _even(length, most):
    """Return the edge of the fewest blocks up to `most`, nearly equal and a multiple of 8."""
    edge = ceil(length / ceil(length / most))
    return min(length, 8 * ceil(edge / 8))


def _divisor(number, most):
    """Return the largest divisor of `number` that is at most `most`, and at least 1."""
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(most, 1))
