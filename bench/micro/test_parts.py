"""Benchmarks of the parts of an encoder layer: from which length attention is the larger part.

    pytest --benchmark-only bench/micro/test_parts.py

By operation count, the two products of attention (4 T^2 D) equal the four projections (8 T D^2) at
T = 2 D, and all the rest of a layer with F = 4 D (24 T D^2) at T = 6 D. Measured times may differ:
softmax takes time but no counted multiplications, and small products run slower than large ones.
"""

from functools import cache, partial

import jax
import numpy as np
import pytest

from bench import naive
from bench.measure import harness
from bench.measure.harness import Contestant
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.functional.feed_forward import feed_forward
from transformer_jax.functional.linear import linear
from transformer_jax.functional.normalization import layer_norm

B, N, H = 1, 4, 64
D, F = N * H, 4 * N * H
LENGTHS = harness.lengths(64, 128, 256, 512, 1024, 2048, full=[3072, 4096])
ATOL = 1e-4 if jax.default_backend() == "cpu" else 1e-1


def attention(p, x, attend=dot_product_attention):
    heads = x.reshape(B, -1, N, H)
    return attend(heads, heads, heads)


def projections(p, x):
    """Compute the projections to query, key, value and output; x also stands in for the heads."""
    return [linear(x, p[name]) for name in ("query", "key", "value", "out")]


def rest(p, x):
    """Apply a layer in which every token attends to itself only.

    That is everything but the two products and the softmax.
    """
    return layer(p, x, attend=lambda query, key, value: query + key + value)


def layer(p, x, attend=dot_product_attention):
    """Apply a pre-norm encoder layer."""
    y = layer_norm(x, p["scale"])
    query, key, value = (
        linear(y, p[name]).reshape(B, -1, N, H) for name in ("query", "key", "value")
    )
    x = x + linear(attend(query, key, value).reshape(B, -1, D), p["out"])
    y = layer_norm(x, p["scale"])
    return x + feed_forward(y, p["in"], None, p["back"], None, activation="relu")


def numpy_attention(p, x):
    heads = x.reshape(B, -1, N, H)
    return naive.numpy_attention(heads, heads, heads)


def numpy_projections(p, x):
    return [x @ p[name] for name in ("query", "key", "value", "out")]


def numpy_rest(p, x):
    return numpy_layer(p, x, attend=lambda query, key, value: query + key + value)


def numpy_norm(p, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5) * p["scale"]


def numpy_layer(p, x, attend=naive.numpy_attention):
    y = numpy_norm(p, x)
    query, key, value = ((y @ p[name]).reshape(B, -1, N, H) for name in ("query", "key", "value"))
    x = x + attend(query, key, value).reshape(B, -1, D) @ p["out"]
    return x + np.maximum(numpy_norm(p, x) @ p["in"], 0) @ p["back"]


PARTS = {
    "attention": (attention, numpy_attention),
    "projections": (projections, numpy_projections),
    "all but attention": (rest, numpy_rest),
    "whole layer": (layer, numpy_layer),
}


@cache
def inputs(T: int) -> list[tuple]:
    names = ("query", "key", "value", "out", "in", "back", "scale")
    shapes = [(D, D)] * 4 + [(D, F), (F, D), (D,)]
    return [
        (dict(zip(names, (a / np.float32(len(a) ** 0.5) for a in arrays), strict=True)), x)
        for x, *arrays in harness.random_inputs((B, T, D), *shapes, seed=T)
    ]


def flops(name: str, T: int) -> int:
    """Count the operations of a part, using the implementation of attention that can be counted."""
    part, attend = PARTS[name][0], jax.nn.dot_product_attention
    fn = part if name in ("projections", "all but attention") else partial(part, attend=attend)
    return harness.flops(fn, inputs(T)[0])


def float64(tree):
    return jax.tree.map(lambda a: a.astype(np.float64), tree)


@pytest.mark.parametrize(("length", "name"), harness.every(PARTS, LENGTHS, {}))
def test_forward(benchmark, length, name):
    benchmark.group = f"parts of an encoder layer, T = {length:4}"
    part, definition = PARTS[name]
    harness.run(
        benchmark,
        Contestant(part),
        inputs(length),
        flops=flops(name, length),
        expected=[definition(*float64(args)) for args in inputs(length)],
        atol=ATOL,
        subject="parts of an encoder layer",
        implementation=name,
        length=length,
        sizes={"D": D, "F": F},
    )
