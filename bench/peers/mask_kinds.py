"""The kinds of masks that are compared: full, causal, window, padded and packed.

A query sees every key, the past, a window, the tokens of a padded text, or its own one of several
packed texts. Each kind is defined twice: as the mask rule that this library takes, and as
positions, from which the reference and the arrays of the other implementations are made.
"""

import numpy as np

from transformer_jax.attention.mask_rule import Mask
from transformer_jax.attention.masks import causal, padding, segments, sliding_window

KINDS = ("full", "causal", "window", "padded", "packed")
WINDOW = 128  # keys on each side
REAL = 4  # one key in REAL is a token, the others are padding
TEXTS = 8  # texts in a packed row


def visible(kind: str, T: int, rows: slice = slice(None)) -> np.ndarray:
    """Return True where a query sees a key: [rows, T], or [1, T] if all queries see the same.

    Raises ValueError for an unknown kind.
    """
    t, s = np.arange(T)[rows, None], np.arange(T)[None]
    match kind:
        case "full":
            return np.ones((1, T), bool)
        case "causal":
            return s <= t
        case "window":
            return abs(t - s) <= WINDOW
        case "padded":
            return s < max(T // REAL, 1)
        case "packed":
            ids = text_ids(T)
            return ids[t] == ids[s]
    raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")


def pairs(kind: str, T: int) -> int:
    """Count the pairs of a query and a key that it sees."""
    if kind == "full":
        return T * T
    blocks = (visible(kind, T, slice(i, i + 1024)) for i in range(0, T, 1024))
    return sum(
        int(block.sum()) * (min(1024, T - 1024 * i) if len(block) == 1 else 1)
        for i, block in enumerate(blocks)
    )


def text_ids(T: int) -> np.ndarray:
    """Return the text that each token belongs to [T].

    Lengths differ by up to a quarter of the mean.
    """
    rng = np.random.default_rng(T)
    ends = np.arange(1, TEXTS) / TEXTS + rng.uniform(-1, 1, TEXTS - 1) / (8 * TEXTS)
    return np.searchsorted(ends * T, np.arange(T), side="right").astype(np.int32)


def our_arrays(kind: str, T: int) -> tuple[np.ndarray, ...]:
    """Return the arrays of the mask, which are arguments of the compiled function."""
    if kind == "padded":
        return (visible(kind, T),)
    return (text_ids(T)[None],) if kind == "packed" else ()


def our_mask(kind: str, *arrays) -> Mask | None:
    """Build the mask rule of this library from the arrays of `our_arrays`."""
    match kind:
        case "causal":
            return causal()
        case "window":
            return sliding_window(WINDOW, WINDOW)
        case "padded":
            return padding(*arrays)
        case "packed":
            return segments(*arrays)
    return None


def their_arrays(kind: str, T: int) -> tuple[np.ndarray, ...]:
    """Return a boolean array [1, 1, T or 1, T] for implementations that take no rules."""
    return () if kind == "full" else (visible(kind, T)[None, None],)
