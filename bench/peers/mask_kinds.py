"""What a query may see: everything, the past, a window, the real part of a padded text, its own
text of several in a row.

Each is said twice: as the rule that is handed to this library, and as positions, from which the
definition and the arrays for the others are made.
"""

import numpy as np

from transformer_jax.attention.masks import Mask, causal, padding, segments, sliding_window

KINDS = ("full", "causal", "window", "padded", "packed")
WINDOW = 128  # on each side
REAL = 4  # one key in so many is no padding
TEXTS = 8


def visible(kind: str, T: int, rows: slice = slice(None)) -> np.ndarray:
    """[rows, T] or, where all queries see the same, [1, T]: True where a query sees the key."""
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
    """Of a query and a key that it sees."""
    if kind == "full":
        return T * T
    blocks = (visible(kind, T, slice(i, i + 1024)) for i in range(0, T, 1024))
    return sum(
        int(block.sum()) * (min(1024, T - 1024 * i) if len(block) == 1 else 1)
        for i, block in enumerate(blocks)
    )


def text_ids(T: int) -> np.ndarray:
    """[T]: which text a token is of; lengths differ by up to a quarter of the mean."""
    rng = np.random.default_rng(T)
    ends = np.arange(1, TEXTS) / TEXTS + rng.uniform(-1, 1, TEXTS - 1) / (8 * TEXTS)
    return np.searchsorted(ends * T, np.arange(T), side="right").astype(np.int32)


def our_arrays(kind: str, T: int) -> tuple[np.ndarray, ...]:
    """What of the mask is data, and so an argument of the compiled function."""
    if kind == "padded":
        return (visible(kind, T),)
    return (text_ids(T)[None],) if kind == "packed" else ()


def our_mask(kind: str, *arrays) -> Mask | None:
    """The rule, of `our_arrays`."""
    match kind:
        case "causal":
            return causal()
        case "window":
            return sliding_window(WINDOW, WINDOW)
        case "padded":
            return padding(*arrays)
        case "packed":
            return segments(*arrays, *arrays)
    return None


def their_arrays(kind: str, T: int) -> tuple[np.ndarray, ...]:
    """A boolean array [1, 1, T or 1, T] for those that take nothing else."""
    return () if kind == "full" else (visible(kind, T)[None, None],)
