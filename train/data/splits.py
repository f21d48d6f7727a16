"""Splits that share no text, and no movie where movies are known.

Reviews of the same movie resemble each other, and about one in a hundred IMDb reviews is a copy of
another. A validation split with such copies would measure memorization. So rows that share a movie
or a text (ignoring spacing and case) are grouped first, and only whole groups are held out. Where
no movie is known and the rows are ordered by subject, stretches of rows are held out."""

from collections.abc import Iterable

import numpy as np

from train.data.dataset import DataError, Dataset, Split
from train.data.row_order import subject_order
from transformer_jax.runtime.counted import counted


def split_validation(train: Split, fraction: float, seed: int) -> tuple[Split, Split, str]:
    """Split `train` into a training part and a validation part of about `fraction` of the rows.

    Returns both, and a phrase that says how the validation part was drawn. The split depends on the
    seed, the texts and, if no group is known, on the labels and the order of the rows."""
    held, rule = draw(train, fraction, seed, "validation")
    kept = np.setdiff1d(np.arange(len(train)), held)
    return train.take(kept), train.take(held), rule


def validation_part(data: Dataset, fraction: float, seed: int) -> tuple[Split, Split, str]:
    """Return the training part and the validation part: the source's own, or one held out.

    The phrase returned as well says how the validation part was drawn."""
    if data.validation is not None:
        return data.train, data.validation, "the validation part is the source's own"
    return split_validation(data.train, fraction, seed)


def draw(split: Split, fraction: float, seed: int, part: str) -> tuple[np.ndarray, str]:
    """Draw the rows of a part of about `fraction` of `split`; return them, sorted, and the rule.

    The rule is a phrase that says how they were drawn. Raises DataError if the fraction is not
    between 0 and 1, or if all texts belong together."""
    if not 0 < fraction < 1:
        raise DataError(f"the fraction of the {part} part must be between 0 and 1, got {fraction}")
    joined = _joined(split)
    if len(joined) < 2:
        raise DataError(
            f"no {part} part can be held out: {_alike(split)}; "
            "at least two different ones are needed, preferably many more"
        )
    by_order = None if _has_groups(split) else _stretches(split, joined, fraction, seed)
    taken = by_order or _whole_groups(joined, fraction, seed)
    rows = np.sort(np.array(taken))
    return rows, _rule(split, rows, fraction, seed, is_by_order=bool(by_order))


def drop_overlap(texts: Iterable[str], others: Iterable[str]) -> np.ndarray:
    """Return the rows of `texts` that repeat none of `others`, ignoring white space and case."""
    seen = {same_text(text) for text in others}
    return np.array([i for i, text in enumerate(texts) if same_text(text) not in seen], np.int64)


def same_text(text: str) -> str:
    """Return a key that is equal for texts that differ only in white space and case."""
    return " ".join(text.split()).casefold()


def _joined(split: Split) -> list[list[int]]:
    """Group rows that share a movie or a text, in an order independent of the rows' order."""
    # Union-find over rows; the first row with a key represents all rows that have it.
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


def _has_groups(split: Split) -> bool:
    return split.groups is not None and any(split.groups)


def _stretches(
    split: Split, joined: list[list[int]], fraction: float, seed: int
) -> list[int] | None:
    """Draw stretches of rows, and the copies of their texts; None if the order says nothing."""
    groups = sorted(joined, key=min)  # by the first row that has the text
    firsts = np.array([min(rows) for rows in groups])
    order = subject_order([split.texts[i] for i in firsts], split.labels[firsts])
    if order is None:
        return None
    most = fraction * len(split)  # a text with more copies stays in training
    taken = [i for k in order.draw(fraction, seed) if len(groups[k]) <= most for i in groups[k]]
    # Where the rows are ordered by class too, a stretch may have all texts of one.
    keeps_every_class = set(np.delete(split.labels, taken)) == set(split.labels)
    return taken if keeps_every_class else None


def _whole_groups(joined: list[list[int]], fraction: float, seed: int) -> list[int]:
    """Draw whole groups while they fit the fraction."""
    texts = sum(map(len, joined))
    target = min(max(1, round(fraction * texts)), texts - 1)
    taken: list[int] = []
    for i in np.random.default_rng(seed).permutation(len(joined)):
        if len(taken) + len(joined[i]) <= target:
            taken += joined[i]
    # Every group may be larger than the part asked for.
    return taken or list(min(joined, key=len))


def _alike(split: Split) -> str:
    """Return the reason why all texts belong together."""
    if len(split) == 1:
        return "there is only one text"
    return f"all {len(split):,} texts are equal{f' or of one {split.unit}' * bool(split.groups)}"


def _rule(split: Split, rows: np.ndarray, fraction: float, seed: int, *, is_by_order: bool) -> str:
    asked, found = f"{fraction:g} asked for, seed {seed}", counted(len(split), "text")
    if is_by_order:
        return (
            "in stretches of rows, since the rows are ordered by subject "
            f"({asked}: {len(rows):,} of {found}; equal texts stay together)"
        )
    by_group = _has_groups(split)
    if by_group:
        unit, values, together = split.unit, split.groups, "; equal texts stay together"
    else:
        unit, values, together = "distinct text", [same_text(text) for text in split.texts], ""
    unknown = {""} if by_group else set()
    held, every = {values[i] for i in rows} - unknown, set(values) - unknown
    return (
        f"by {unit} ({asked}: {len(held):,} of {len(every):,}, "
        f"that is {len(rows):,} of {found}{together})"
    )
