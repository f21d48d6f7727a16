"""Implementations of attention, forward and with gradients, for each kind of mask, and a reference.

Every implementation gets the mask in the form that suits it best. This library gets a mask rule,
`jax.nn` gets `is_causal` and `local_window_size`, PyTorch gets `is_causal`. All others get a
boolean array that is made beforehand.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench.measure.harness import Contestant
from bench.measure.machine import cores
from bench.peers import mask_kinds
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.kernels.dispatch import attention_plan

B, N, H = 1, 8, 64
OURS = "transformer_jax"  # implementation=None
ROWS = 1024  # queries per block of the definition


@dataclass(frozen=True)
class Cell:
    """One attention problem: mask kind, length, dtype, and whether the gradient is computed."""

    kind: str
    length: int
    dtype: str = "float32"
    gradient: bool = False
    batch: int = B
    heads: int = N
    queries: int | None = None  # as many as keys, unless the kind is the same for every query

    @property
    def plan(self) -> str:
        """The implementation that `implementation=None` chooses here."""
        x = jax.ShapeDtypeStruct((self.batch, self.length, self.heads, H), self.dtype)
        arrays = mask_kinds.our_arrays(self.kind, self.length)
        return attention_plan(x, x, x, mask=mask_kinds.our_mask(self.kind, *arrays)).implementation

    @property
    def flops(self) -> int:
        """The operations on visible keys: 4 H for each head, query and key that it sees.

        With the gradient it is three times that.
        """
        pairs = self.batch * mask_kinds.pairs(self.kind, self.length)
        if self.queries is not None:
            pairs = pairs * self.queries // self.length
        return (3 if self.gradient else 1) * 4 * self.heads * H * pairs

    def inputs(self, seed: int, sets: int = 2) -> list[tuple[np.ndarray, ...]]:
        """Draw `sets` tuples of query, key and value, all standard normal.

        With the gradient there is a fourth array, the cotangent of the output.
        """
        rng = np.random.default_rng([seed, self.length])
        shape = (3 + self.gradient, self.batch, self.length, self.heads, H)
        drawn = (
            rng.standard_normal(shape, dtype=np.float32).astype(jnp.dtype(self.dtype))
            for _ in range(sets)
        )
        of_queries = slice(self.queries)
        return [
            (q[:, of_queries], k, v, *(c[:, of_queries] for c in more)) for q, k, v, *more in drawn
        ]


def contestants(cell: Cell) -> dict[str, tuple[Contestant, tuple[np.ndarray, ...]]]:
    """Return by name each function of inputs and mask arrays, together with its mask arrays.

    PyTorch is included if it is installed.
    """
    kind, wrap = cell.kind, jax_gradient if cell.gradient else Contestant
    ours, theirs = (
        mask_kinds.our_arrays(kind, cell.length),
        mask_kinds.their_arrays(kind, cell.length),
    )
    named = {
        "causal": {"is_causal": True},
        "window": {"local_window_size": (mask_kinds.WINDOW,) * 2},
    }
    by_name = named.get(kind, {})
    found = {
        OURS: (wrap(our_attention(kind, None)), ours),
        "reference": (wrap(our_attention(kind, "reference")), ours),
        "jax.nn": (wrap(partial(jax_attention, **by_name)), () if by_name else theirs),
        "flax.nnx": (wrap(flax_attention), theirs),
    }
    if jax.default_backend() == "gpu" and cell.dtype != "float32":
        # cuDNN takes padding as lengths; it would read an array as one of T x S.
        lengths = (np.full(cell.batch, max(cell.length // mask_kinds.REAL, 1), np.int32),)
        fused = cudnn_padded if kind == "padded" else partial(jax_attention, implementation="cudnn")
        by_name = named["causal"] if kind == "causal" else {}  # cuDNN takes no window to the right
        arrays = lengths if kind == "padded" else () if by_name else theirs
        found["jax.nn, cuDNN"] = (wrap(partial(fused, **by_name)), arrays)
    if has_torch():
        wrap = torch_gradient if cell.gradient else partial(Contestant, how="torch")
        causal = kind == "causal"
        found["PyTorch"] = (wrap(torch_attention(causal)), () if causal else theirs)
        found["PyTorch, written out"] = (wrap(torch_written_out), theirs)
        if jax.default_backend() == "gpu" and cell.dtype != "float32":
            fused = torch_attention(causal, "CUDNN_ATTENTION")
            found["PyTorch, cuDNN"] = (wrap(fused), () if causal else theirs)
    return found


def our_attention(kind: str, implementation: str | None) -> Callable:
    def attend(query, key, value, *arrays):
        mask = mask_kinds.our_mask(kind, *arrays)
        return dot_product_attention(query, key, value, mask=mask, implementation=implementation)

    return attend


def jax_attention(query, key, value, mask=None, **settings):
    return jax.nn.dot_product_attention(query, key, value, mask=mask, **settings)


def cudnn_padded(query, key, value, lengths):
    full = jnp.full_like(lengths, query.shape[1])
    return jax.nn.dot_product_attention(
        query, key, value, implementation="cudnn",
        query_seq_lengths=full, key_value_seq_lengths=lengths,
    )  # fmt: skip


def flax_attention(query, key, value, mask=None):
    return nnx.dot_product_attention(query, key, value, mask=mask)


def torch_attention(causal: bool, kernel: str | None = None) -> Callable:
    """Build attention from PyTorch: its own choice of kernel, or `kernel` of `SDPBackend`."""

    def attend(query, key, value, mask=None):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        heads_first = (x.transpose(1, 2) for x in (query, key, value))
        with nullcontext() if kernel is None else sdpa_kernel(getattr(SDPBackend, kernel)):
            output = scaled_dot_product_attention(*heads_first, attn_mask=mask, is_causal=causal)
        return output.transpose(1, 2)

    return attend


def torch_written_out(query, key, value, mask=None):
    """Compute attention as tutorials write it in PyTorch: product, softmax, product."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(dim=-1) @ v).transpose(1, 2)


def jax_gradient(attend: Callable) -> Contestant:
    def value_and_gradient(query, key, value, cotangent, *arrays):
        output, pullback = jax.vjp(lambda *qkv: attend(*qkv, *arrays), query, key, value)
        return output, pullback(cotangent)

    return Contestant(value_and_gradient)


def torch_gradient(attend: Callable) -> Contestant:
    def value_and_gradient(query, key, value, cotangent, *arrays):
        import torch

        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (query, key, value)]
            output = attend(*leaves, *arrays)
            gradients = torch.autograd.grad(output, leaves, cotangent)
        return output.detach(), gradients

    return Contestant(value_and_gradient, "torch")


def has_torch() -> bool:
    """Return whether PyTorch is installed, and set its number of threads.

    Idle PyTorch threads are made to sleep; spinning threads would slow the other contestants.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when PyTorch is loaded
    try:
        import torch
    except ModuleNotFoundError:
        return False
    torch.set_num_threads(cores())
    return True


def definition(cell: Cell, inputs: tuple[np.ndarray, ...], head: int) -> tuple[np.ndarray, ...]:
    """Compute attention of one head in NumPy in float64.

    Return the output [B, T, H] and, with the gradient, those of query, key and value.
    """
    rows_of = zip(*(x[:, :, head].astype(np.float64) for x in inputs), strict=True)
    each = [tuple(_one_example(cell, *arrays)) for arrays in rows_of]
    return tuple(map(np.stack, zip(*each, strict=True)))


def _one_example(cell: Cell, query, key, value, cotangent=None) -> Iterator[np.ndarray]:
    output, d_query = np.empty_like(query), np.empty_like(query)
    d_key, d_value = np.zeros_like(key), np.zeros_like(value)
    for start in range(0, len(query), ROWS):
        rows = slice(start, start + ROWS)
        logits = query[rows] @ key.T / np.sqrt(H)
        logits[
            np.broadcast_to(~mask_kinds.visible(cell.kind, cell.length, rows), logits.shape)
        ] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        output[rows] = weights @ value
        if cotangent is not None:
            d_weights = cotangent[rows] @ value.T
            common = (weights * d_weights).sum(axis=1, keepdims=True)
            d_logits = weights * (d_weights - common) / np.sqrt(H)
            d_query[rows] = d_logits @ key
            d_key += d_logits.T @ query[rows]
            d_value += weights.T @ cotangent[rows]
    yield output
    if cotangent is not None:
        yield from (d_query, d_key, d_value)
