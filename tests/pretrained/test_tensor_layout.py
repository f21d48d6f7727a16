"""A part of a parameter is read without the rest of its tensor."""

import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from transformer_jax.pretrained.files import tensors_of
from transformer_jax.pretrained.tensor_layout import Tensor

D, N, K, H, F, V = 6, 4, 2, 3, 10, 8
SHAPES = {
    "query_kernel": (D, N, H), "key_kernel": (D, K, H), "value_kernel": (D, K, H),
    "query_bias": (N, H), "key_bias": (K, H), "out_kernel": (N, H, D), "in_kernel": (D, F),
    "embedding": (V, D), "scale": (D,),
}  # fmt: skip
QKV = ("query_kernel", "key_kernel", "value_kernel")
TENSORS = [
    Tensor("x", QKV, "linear"),
    Tensor("x", QKV, "conv1d"),
    Tensor("x", ("query_bias", "key_bias"), "vector"),
    Tensor("x", ("out_kernel",), "linear", inputs=2),
    Tensor("x", ("out_kernel",), "conv1d", inputs=2),
    Tensor("x", ("in_kernel",), "linear"),
    Tensor("x", ("embedding",), "table", skip=2),
    Tensor("x", ("scale",), "vector"),
]


def halves(shape):
    """The second half of every axis alone, and of the first and the last ones together."""
    whole = [slice(0, n) for n in shape]
    half = [slice(n // 2, n) for n in shape]
    for axis in range(len(shape)):
        yield (*whole[:axis], half[axis], *whole[axis + 1 :])
    if len(shape) > 1:
        yield (half[0], *whole[1:-1], half[-1])


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.layout}-{t.parameters[0]}")
def test_a_part_of_a_parameter_is_that_of_the_whole_and_reads_no_more(tensor, tmp_path):
    stored = np.random.default_rng(0).normal(size=tensor.shape(SHAPES)).astype(np.float32)
    save_file({"before": np.ones(3, np.float32), "x": stored}, tmp_path / "model.safetensors")
    entry, asked = tensors_of(tmp_path)["x"], []

    def read(index):
        part = entry.read_part(index)
        asked.append(part.size)
        return part

    for name, right in tensor.read(stored, SHAPES).items():
        features = {i for i in range(1, right.ndim) if right.shape[i] == H}
        for index in halves(right.shape):
            np.testing.assert_array_equal(tensor.read_part(name, index, SHAPES, read), right[index])
            cut = features & {i for i, one in enumerate(index) if one.start}
            # All features of a head are read: no mesh splits them.
            assert cut or asked.pop() == math.prod(right[index].shape), name
