"""The sizes of tiles: a tile is what one step of the blockwise loops computes.

It consists of some examples, some key heads, a block of queries and a block of keys. Small blocks
follow the edge of a mask closely, large ones keep the matrix products fast, and a whole tile should
stay in the caches.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.attention.coverage import Grid
from transformer_jax.attention.inputs import AttentionInputs
from transformer_jax.attention.mask_rule import Mask, MaskLike, as_mask
from transformer_jax.attention.rule import rendered
from transformer_jax.functional.checks import are_numbers

# Number of logits of one tile on a CPU. Measured at 8 heads of 64 features, T = 4096, causal: half
# as many take a twentieth longer, twice as many take as long.
TILE = 2**20
# Edge lengths of blocks, and the time per logit relative to the first. Measured on two cores with
# AVX-512 at 8 heads of 64 features, T = 2048.
EDGES = {512: 1.0, 456: 1.0, 128: 1.4}


# The most logits of a fused tile: of one head, and of all its heads and examples together. If one
# head has more, the kernel stores them. Where nothing is fused (another jaxlib), all are stored.
FUSED, ALL_FUSED = 2**16, 2**25


@dataclass(frozen=True)
class Tiling:
    """A grid of blocks, and how many examples and key heads are processed at once.

    With a `run`, each block of queries attends in one fused expression to `run` adjacent keys,
    which include all that it sees. Without, it visits one block of keys after another.

    If `on_cpu`, the output and the gradient are not computed in these blocks but by `cpu.py`.
    """

    grid: Grid
    examples: int
    key_heads: int
    run: int | None = None
    on_cpu: bool = False


def is_plain(inputs: AttentionInputs) -> bool:
    """Return whether the logits have a mask at most, and their products are computed in float32."""
    return (
        inputs.bias is None
        and inputs.soft_cap is None
        and not inputs.has_dropout
        and inputs.operands == jnp.float32
    )


def choose_tiling(inputs: AttentionInputs) -> Tiling:
    """Choose the cheapest grid under the mask, and how many examples and heads fit the caches.

    An accelerator gets all examples and heads at once: it has the cores for them, and a batch that
    is spread over devices stays where it is. Inputs that are plain (`is_plain`) may be fused.
    """
    (B, N, T, S), K, mask = inputs.sizes, inputs.key.shape[2], inputs.mask
    one_cpu, plain = on_one_cpu(), is_plain(inputs)
    if not are_numbers(B):  # a symbolic batch, whose examples are computed one by one on a CPU
        B = 1
    if one_cpu and plain and T * S <= FUSED:
        return Tiling(Grid(T, S, T, S), *_at_once(B, K, ALL_FUSED // (T * S * (N // K))), run=S)
    grid = _grid(mask, T, S)
    if not one_cpu:
        return Tiling(grid, inputs.sizes[0], K)
    run = run_of(mask, grid) if plain else None
    if run is not None:
        return Tiling(grid, *_at_once(B, K, TILE // (grid.queries * run * (N // K))), run)
    return Tiling(grid, *_at_once(B, K, TILE // (grid.queries * grid.keys * (N // K))))


def on_one_cpu() -> bool:
    """Return whether a CPU is the only device, so that tiles are sized for its caches."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


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


def run_of(mask: Mask | None, grid: Grid) -> int | None:
    """Return the number of keys in the run of each row of blocks, or None if runs do not pay.

    A run reaches from the first to the last key that a row of blocks sees. It pays if runs are
    short and about as long in all rows.
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
