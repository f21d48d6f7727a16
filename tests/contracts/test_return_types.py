# pyright: basic, reportUnnecessaryTypeIgnoreComment=true
"""A type checker knows what the `return_*` flags add: `make types` reads this file too."""

from typing import assert_type

import jax
import numpy as np
import pytest
from jax import Array

import transformer_jax as tj

T, N, H, D = 5, 6, 4, 11


def dot_product(x: Array, flag: bool) -> list[tuple[Array, ...]]:
    attend = tj.dot_product_attention
    assert_type(attend(x, x, x), Array)
    assert_type(attend(x, x, x, mask=None, return_weights=False), Array)
    weights = attend(x, x, x, scale=1.0, return_weights=True)
    assert_type(weights, tuple[Array, Array])
    logsumexp = attend(x, x, x, return_logsumexp=True, implementation="reference")
    assert_type(logsumexp, tuple[Array, Array])
    both = attend(x, x, x, return_weights=True, return_logsumexp=True)
    assert_type(both, tuple[Array, Array, Array])
    assert_type(attend(x, x, x, return_weights=flag), Array | tuple[Array, ...])
    return [weights, logsumexp, both]


def multi_head(x: Array, kernel: Array, flag: bool) -> list[tuple[Array, ...]]:
    def attend(flag: bool):
        return tj.multi_head_attention(x, x, kernel, kernel, kernel, out, return_weights=flag)

    out = kernel.transpose(1, 2, 0)
    assert_type(tj.multi_head_attention(x, x, kernel, kernel, kernel, out, scale=1.0), Array)
    both = tj.multi_head_attention(
        x, x, kernel, kernel, kernel, out, norm_epsilon=1e-6, return_weights=True
    )
    assert_type(both, tuple[Array, Array])
    assert_type(attend(flag), Array | tuple[Array, Array])
    return [both]


def additive(x: Array, kernel: Array, flag: bool) -> list[tuple[Array, ...]]:
    score = kernel[0]
    assert_type(tj.additive_attention(x, x, x, kernel, kernel, score), Array)
    both = tj.additive_attention(x, x, x, kernel, kernel, score, return_weights=True)
    assert_type(both, tuple[Array, Array])
    either = tj.additive_attention(x, x, x, kernel, kernel, score, return_weights=flag)
    assert_type(either, Array | tuple[Array, Array])
    return [both]


@pytest.mark.parametrize(
    ("function", "shapes", "numbers"),
    [
        (dot_product, [(T, N, H)], [2, 2, 3]),
        (multi_head, [(T, D), (D, N, H)], [2]),
        (additive, [(T, D), (D, H)], [2]),
    ],
)
def test_as_many_arrays_are_returned_as_the_type_says(function, shapes, numbers):
    arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    returned = jax.eval_shape(lambda *arrays: function(*arrays, True), *arrays)
    assert [len(each) for each in returned] == numbers


@pytest.mark.usefixtures("as_users_run_it")
def test_mistakes_are_refused_by_the_type_checker_too():
    with pytest.raises(TypeError, match="a rule has no length"):
        tj.causal(5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="missing a required argument"):
        tj.sliding_window(4)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="a rule, such as"):
        _ = tj.causal() & None  # pyright: ignore[reportOperatorIssue]
