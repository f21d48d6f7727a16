"""Language-model examples: windows over one long row of tokens, and the same windows one token
later.
"""

import numpy as np
from jaxtyping import Shaped


def sliding_windows(
    tokens: Shaped[np.ndarray, " n"], length: int, stride: int
) -> tuple[Shaped[np.ndarray, "B T"], Shaped[np.ndarray, "B T"]]:
    """inputs[b, t] = tokens[b stride + t] and targets[b, t] = tokens[b stride + t + 1].

    sliding_windows(np.arange(8), length=3, stride=2) gives
        [[0 1 2]      [[1 2 3]
         [2 3 4]  and  [3 4 5]
         [4 5 6]]      [5 6 7]]

    T = length, B = (n - length - 1) // stride + 1. With stride = length every token but the first
    is a target once; with less the windows overlap. Tokens that fill no window at the end are left
    out.

    Both are read-only views: nothing is copied, so that `tokens` may be a memory-mapped file larger
    than memory, of which `inputs[rows]` reads the rows alone.
    """
    for name, value in (("length", length), ("stride", stride)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}")
    if tokens.ndim != 1:
        raise ValueError(f"tokens must be one row, of shape [n]; got {tokens.shape}")
    if len(tokens) <= length:
        raise ValueError(
            f"tokens must hold at least length + 1 = {length + 1} (the last target stands behind the "
            f"window), got {len(tokens)}; pass more text or a smaller length"
        )
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride]
    return windows[:, :-1], windows[:, 1:]
