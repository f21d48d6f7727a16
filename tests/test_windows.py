"""Windows for a language model: the definition as loops, and that nothing is copied."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.windows import sliding_windows


def loops(tokens, length, stride):
    """Every window that fits with its last target, token by token."""
    inputs, targets = [], []
    start = 0
    while start + length < len(tokens):
        inputs.append([tokens[start + t] for t in range(length)])
        targets.append([tokens[start + t + 1] for t in range(length)])
        start += stride
    return inputs, targets


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 40), st.integers(0, 100))
def test_windows_are_the_loops(length, stride, extra, seed):
    tokens = np.random.default_rng(seed).integers(0, 999, length + extra)
    inputs, targets = sliding_windows(tokens, length, stride)
    expected_inputs, expected_targets = loops(tokens.tolist(), length, stride)
    assert inputs.tolist() == expected_inputs
    assert targets.tolist() == expected_targets
    assert len(inputs) == (len(tokens) - length - 1) // stride + 1


def test_the_matrices_of_the_docstring():
    inputs, targets = sliding_windows(np.arange(8), length=3, stride=2)
    np.testing.assert_array_equal(inputs, [[0, 1, 2], [2, 3, 4], [4, 5, 6]])
    np.testing.assert_array_equal(targets, [[1, 2, 3], [3, 4, 5], [5, 6, 7]])


def test_with_stride_equal_to_length_every_token_but_the_first_is_a_target_once():
    _, targets = sliding_windows(np.arange(1 + 4 * 5), length=5, stride=5)
    assert targets.ravel().tolist() == list(range(1, 21))


def test_nothing_is_copied_and_nothing_can_be_overwritten():
    tokens = np.arange(100, dtype=np.uint16)
    for windows in sliding_windows(tokens, 10, 3):
        assert windows.dtype == np.uint16
        assert np.shares_memory(windows, tokens)
        with pytest.raises(ValueError, match="read-only"):
            windows[0, 0] = 1


def test_a_memory_mapped_file_is_not_read_into_memory(tmp_path):
    tokens = np.arange(1000, dtype=np.uint16)
    tokens.tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", np.uint16, mode="r")
    inputs, targets = sliding_windows(mapped, 8, 4)
    assert np.shares_memory(inputs, mapped) and np.shares_memory(targets, mapped)
    rows = np.array([200, 3])
    np.testing.assert_array_equal(inputs[rows], [range(800, 808), range(12, 20)])
    np.testing.assert_array_equal(targets[rows], [range(801, 809), range(13, 21)])


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("shape", "length", "stride", "message"),
    [
        (9, 0, 1, "length must be 1 or more, got 0"),
        (9, 2, 0, "stride must be 1 or more, got 0"),
        (9, 2, -1, "stride must be 1 or more, got -1"),
        (5, 5, 1, r"at least length \+ 1 = 6 .*got 5"),
        (0, 1, 1, r"at least length \+ 1 = 2 .*got 0"),
        ((3, 4), 2, 1, r"must be one row.* got \(3, 4\)"),
    ],
)
def test_what_has_no_windows_says_why(shape, length, stride, message):
    with pytest.raises(ValueError, match=message):
        sliding_windows(np.zeros(shape, int), length, stride)
