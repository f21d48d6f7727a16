"""How attention is cut into tiles: what one step of the blockwise loops computes.

A tile is some examples, some key heads, a block of queries and a block of keys. Small blocks hug
what a mask lets through, large ones keep the matrix products fast, and all of a tile should stay in
the caches.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.attention.coverage import Grid
from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.masks import Mask, MaskLike, as_mask
from transformer_jax.attention.rule import rendered
from transformer_jax.functional.precision import operands_dtype

# Logits of one tile on a CPU. At 8 heads of 64, T = 4096, causal, half as many take a twentieth
# longer, twice as many as long.
TILE = 2**20
# Edges of blocks and the time that a logit takes in them, relative to the first. Measured on two
# cores with AVX-512 at 8 heads of 64, T = 2048.
EDGES = {512: 1.0, 456: 1.0, 128: 1.4}


# Logits of one head that a fused tile may have, and of all its heads and examples: of more the
# kernel stores them, and where nothing is fused (another jaxlib) all are stored.
FUSED, ALL_FUSED = 2**16, 2**25


@dataclass(frozen=True)
class Tiling:
    """A grid of blocks, and how many examples and key heads are worked on at once.

    With a `run`, a block of queries meets so many keys side by side, all that it sees, in a fused
    expression. Else it meets a block of keys after the other.
    """

    grid: Grid
    examples: int
    key_heads: int
    run: int | None = None


def is_plain(inputs: AttentionInputs) -> bool:
    """Whether only a mask is applied to the logits, and their products are computed in float32."""
    return (
        inputs.bias is None
        and inputs.soft_cap is None
        and not inputs.has_dropout
        and operands_dtype(inputs.query.dtype) == jnp.float32
    )


def choose_tiling(inputs: AttentionInputs) -> Tiling:
    """Return the grid that costs least under the mask, and how many examples and heads fit caches.

    An accelerator gets all examples and heads at once: it has the cores for them, and a batch that
    is spread over devices stays where it is. What is plain (`is_plain`) may be fused.
    """
    (B, N, T, S), K, mask = inputs.sizes, inputs.key.shape[2], inputs.mask
    one_cpu, plain = on_one_cpu(), is_plain(inputs)
    if one_cpu and plain and T * S <= FUSED:
        return Tiling(Grid(T, S, T, S), *_at_once(B, K, ALL_FUSED // (T * S * (N // K))), run=S)
    grid = _grid(mask, T, S)
    if not one_cpu:
        return Tiling(grid, B, K)
    run = run_of(mask, grid) if plain else None
    if run is not None:
        return Tiling(grid, *_at_once(B, K, TILE // (grid.queries * run * (N // K))), run)
    return Tiling(grid, *_at_once(B, K, TILE // (grid.queries * grid.keys * (N // K))))


def on_one_cpu() -> bool:
    """Where tiles are cut for caches."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def _at_once(B: int, K: int, room: int) -> tuple[int, int]:
    """Examples and key heads: all heads of some examples, or some heads of one."""
    key_heads = _divisor(K, room)
    return (_divisor(B, room // K) if key_heads == K else 1), key_heads


def visited_blocks(mask: MaskLike, T: int, S: int | None = None) -> float:
    """The part of the T x S matrix, counted in blocks, that blockwise attention computes: 1 without
    a mask.

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
    return float(_seen_blocks(mask, _grid(mask, T, S)).mean())


def _grid(mask, T, S):
    if mask is None:  # every row of blocks is the same: longer ones are faster
        return Grid(T, S, _even(T, 1024), _even(S, 512))
    grids = {edge: Grid(T, S, _even(T, edge), _even(S, edge)) for edge in EDGES}
    if jax.tree.leaves(mask):  # arrays, which are traced most often
        return grids[next(iter(EDGES))]
    return grids[min(EDGES, key=lambda edge: EDGES[edge] * _area(mask, grids[edge]))]


def run_of(mask: Mask | None, grid: Grid) -> int | None:
    """The keys from the first to the last that a row of blocks sees, where that is about the same
    in all, and few.
    """
    if mask is None or jax.tree.leaves(mask):
        return None
    some = _seen_blocks_without_arrays(jax.tree.structure(mask), grid)[0]
    first, last = some.argmax(axis=1), grid.columns - some[:, ::-1].argmax(axis=1)
    columns = int((last - first).max())
    run = min(columns * grid.keys, grid.S)
    few = columns * grid.rows <= 1.1 * some.sum() and run * grid.queries <= FUSED
    return run if few else None


def _area(mask, grid):
    """How many logits the visited blocks of a mask without arrays have."""
    some = _seen_blocks_without_arrays(jax.tree.structure(mask), grid)
    return some.sum() / len(some) * grid.queries * grid.keys


@lru_cache
def _seen_blocks_without_arrays(structure, grid):
    return _seen_blocks(jax.tree.unflatten(structure, ()), grid)


def _seen_blocks(mask, grid):
    """[#B, rows, columns]: where anything is seen, as numbers also while JAX traces.

    One program of its own: `jax.ensure_compile_time_eval` compiles each operation by itself, which
    takes a second for the grids of one mask.
    """
    arrays, structure = jax.tree.flatten(mask)
    run = jax.jit(lambda *arrays: jax.tree.unflatten(structure, arrays).coverage(grid).some)
    return np.asarray(run.lower(*arrays).compile()(*arrays))


def _even(length, most):
    """The edge of as few blocks as `most` allows, all of nearly one size, a multiple of 8."""
    edge = ceil(length / ceil(length / most))
    return min(length, 8 * ceil(edge / 8))


def _divisor(number, most):
    """The greatest divisor of `number` up to `most`, 1 at least."""
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(most, 1))
