"""Splits that share nothing: no text, and no movie where movies are known.

Two reviews of one movie resemble each other, and about one in a hundred IMDb reviews is a copy of
another. A validation split that has the copy measures memory, so rows that share a movie or a text
(whatever its spacing and case) are joined first, and only whole joins move."""

from collections.abc import Iterable

import numpy as np

from train.data.dataset import DataError, Split


def split_validation(train: Split, fraction: float, seed: int) -> tuple[Split, Split, str]:
    """The rest of `train`, its validation part of about `fraction` of the rows, and the rule as a
    sentence.

    What is drawn depends on the seed and the texts, not on the order of the rows."""
    held, rule = draw(train, fraction, seed, "validation")
    kept = np.setdiff1d(np.arange(len(train)), held)
    return train.take(kept), train.take(held), rule


def draw(split: Split, fraction: float, seed: int, part: str) -> tuple[np.ndarray, str]:
    """The rows of a part of about `fraction` of `split`, in order, and the rule as a sentence."""
    if not 0 < fraction < 1:
        raise DataError(f"the fraction of the {part} part must be between 0 and 1, got {fraction}")
    joined = _joined(split)
    if len(joined) < 2:
        raise DataError(
            f"no {part} part can be split off: all {len(split)} texts are equal or of one movie; "
            "two different ones are the least, many more make sense"
        )
    target = min(max(1, round(fraction * len(split))), len(split) - 1)
    taken: list[int] = []
    for i in np.random.default_rng(seed).permutation(len(joined)):
        if len(taken) + len(joined[i]) <= target:
            taken += joined[i]
    if not taken:  # every join is larger than the part asked for
        taken = list(min(joined, key=len))
    rows = np.sort(np.array(taken))
    return rows, _rule(split, rows, fraction, seed)


def drop_overlap(texts: Iterable[str], others: Iterable[str]) -> np.ndarray:
    """The rows of `texts` that repeat none of `others`."""
    seen = {same_text(text) for text in others}
    return np.array([i for i, text in enumerate(texts) if same_text(text) not in seen], np.int64)


def same_text(text: str) -> str:
    """Equal for texts that differ in white space and case alone."""
    return " ".join(text.split()).casefold()


def _joined(split: Split) -> list[list[int]]:
    """Rows joined by an equal movie or an equal text, in an order that the rows' order does not
    change.

    Union-find over rows; the first row with a key stands for all that have it."""
    parent = list(range(len(split)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    keys = [same_text(text) for text in split.texts]
    for values in (keys, split.groups or []):
        first: dict[str, int] = {}
        for i, value in enumerate(values):
            if value or values is keys:  # an empty text equals another; an unknown movie does not
                parent[root(i)] = root(first.setdefault(value, i))
    members: dict[int, list[int]] = {}
    for i in range(len(split)):
        members.setdefault(root(i), []).append(i)
    return sorted(members.values(), key=lambda rows: min(keys[i] for i in rows))


def _rule(split: Split, rows: np.ndarray, fraction: float, seed: int) -> str:
    by_group = split.groups is not None and any(split.groups)
    if by_group:
        unit, values, together = split.unit, split.groups, "; equal texts stay together"
    else:
        unit, values, together = "distinct text", [same_text(text) for text in split.texts], ""
    unknown = {""} if by_group else set()
    held, every = {values[i] for i in rows} - unknown, set(values) - unknown
    return (
        f"by {unit} ({fraction:g} asked for, seed {seed}: {len(held):,} of {len(every):,}, "
        f"which are {len(rows):,} of {len(split):,} reviews{together})"
    )
