"""Every implementation of attention, made to do all that it does on the smallest arrays and without
a GPU.

Under `forced` "blockwise" cuts any text into blocks that divide neither T nor S, and "cudnn" does
everything of ours around the kernel of `jax.nn` for XLA, which stands in for NVIDIA's. It must be
entered where JAX traces.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import jax

from transformer_jax.attention.coverage import Grid
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.kernels import blockwise, compute, dispatch
from transformer_jax.attention.kernels.cudnn import cudnn_attention
from transformer_jax.attention.kernels.tile_sizes import Tiling

IMPLEMENTATIONS = ("reference", "blockwise", "cudnn")


def tiling(T, S, queries, keys, examples=1, key_heads=1) -> Tiling:
    """Blocks of these sizes, where the text is as long."""
    return Tiling(Grid(T, S, min(queries, T), min(keys, S)), examples, key_heads)


@contextmanager
def forced(queries: int = 2, keys: int = 3, *, at_once: bool = False) -> Iterator[None]:
    """Blocks of so many queries and keys, of one example and key head at a time or of all."""

    def choose(inputs):
        (B, _, T, S), K = inputs.sizes, inputs.key.shape[2]
        return tiling(T, S, queries, keys, *((B, K) if at_once else (1, 1)))

    with (
        patch.object(blockwise, "choose_tiling", choose),
        patch.object(dispatch, "why_not_cudnn", lambda *arguments: None),
        patch.object(compute, "cudnn_attention", without_a_gpu),
    ):
        yield


def without_a_gpu(inputs):
    """`cudnn_attention` with XLA's kernel in the place of NVIDIA's."""
    with jax.numpy_dtype_promotion("standard"):
        return cudnn_attention(inputs, implementation="xla")


def attend(*arrays, implementation, blocks=(2, 3), at_once=False, **options):
    """`dot_product_attention` by one of the IMPLEMENTATIONS."""
    with forced(*blocks, at_once=at_once):
        return dot_product_attention(*arrays, **options, implementation=implementation)
