"""How attention is cut into tiles: what one step of the blockwise loops computes.

A tile is some examples, some key heads, a block of queries and a block of keys. Small blocks hug what a mask lets
through, large ones keep the matrix products fast, and all of a tile should stay in the caches.
"""

from dataclasses import dataclass
from math import ceil

import jax
from jaxtyping import Array, Float

from transformer_jax.grid import Grid
from transformer_jax.masks import Mask, MaskLike, as_mask
from transformer_jax.rules import rendered

# Logits of one tile on a CPU. At 8 heads of 64, T = 4096, causal, half as many take a twentieth longer, twice as many as long.
TILE = 2**20
# Edges of blocks and the time that a logit takes in them, relative to the first. Measured on two cores with AVX-512
# at 8 heads of 64, T = 2048.
EDGES = {512: 1.0, 456: 1.0, 128: 1.4}


@dataclass(frozen=True)
class Tiling:
    """A grid of blocks, and how many examples and key heads are worked on at once."""

    grid: Grid
    examples: int
    key_heads: int


def choose_tiling(
    query: Float[Array, "B T N H"], key: Float[Array, "B S K H"], mask: Mask | None
) -> Tiling:
    """The grid that costs least under the mask, and as many examples and heads at once as the caches hold.

    An accelerator gets all examples and heads at once: it has the cores for them, and a batch that is spread over
    devices stays where it is.
    """
    (B, T, N), (S, K) = query.shape[:3], key.shape[1:3]
    grid = _grid(mask, T, S)
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return Tiling(grid, B, K)
    room = TILE // (grid.queries * grid.keys * (N // K))
    key_heads = _divisor(K, room)
    return Tiling(grid, _divisor(B, room // K) if key_heads == K else 1, key_heads)


def visited_blocks(mask: MaskLike, T: int, S: int | None = None) -> float:
    """The part of the T x S matrix, counted in blocks, that blockwise attention computes: 1 without a mask.

    Raises ValueError for less than one query or key, and where the mask does not fit them.

    >>> round(visited_blocks(causal(), 4096), 2)
    0.56
    """
    S = T if S is None else S
    if T < 1 or S < 1:
        raise ValueError(f"T and S must be 1 or more; got {T} and {S}")
    mask = as_mask(mask)
    if mask is None:
        return 1.0
    jax.eval_shape(lambda: rendered(mask, T, S))  # whether it fits
    with jax.ensure_compile_time_eval():
        return float(mask.coverage(_grid(mask, T, S)).some.mean())


def _grid(mask, T, S):
    if mask is None:  # every row of blocks is the same: longer ones are faster
        return Grid(T, S, _even(T, 1024), _even(S, 512))
    grids = {edge: Grid(T, S, _even(T, edge), _even(S, edge)) for edge in EDGES}
    costs = {edge: _area(mask, grid) for edge, grid in grids.items()}
    if None in costs.values():
        return grids[next(iter(EDGES))]
    return grids[min(EDGES, key=lambda edge: EDGES[edge] * costs[edge])]


def _area(mask, grid):
    """How many logits the visited blocks have, None where it depends on arrays: most often they are traced."""
    if jax.tree.leaves(mask):
        return None
    with jax.ensure_compile_time_eval():
        some = mask.coverage(grid).some
        return float(some.mean()) * grid.rows * grid.columns * grid.queries * grid.keys


def _even(length, most):
    """The edge of as few blocks as `most` allows, all of nearly one size, a multiple of 8."""
    edge = ceil(length / ceil(length / most))
    return min(length, 8 * ceil(edge / 8))


def _divisor(number, most):
    """The greatest divisor of `number` up to `most`, 1 at least."""
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(most, 1))
