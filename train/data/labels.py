"""Labels as they come from files, and the classes made of them.

A label is a word, an integer, a boolean, or a float that is an integer, as tables with gaps write
integers. Words of a file that all look like integers are integers."""

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from train.data.dataset import SENTIMENT, DataError
from transformer_jax.runtime.errors import shown

INTEGER = re.compile(r"[+-]?\d{1,18}(\.0*)?")
FEW = 20  # more distinct labels than this, each of about one text, are no classes


def read_label(value: object, where: str) -> int | str | None:
    """Return a label as an integer or a word without outer spaces; None if it is blank.

    >>> read_label(" good ", "a.csv, line 2"), read_label(1.0, "row 3"), read_label("", "line 4")
    ('good', 1, None)
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    # No lone surrogates, which JSON can contain, such as "\ud800".
    if isinstance(value, str) and not re.search(r"[\ud800-\udfff]", value):
        return " ".join(value.split()) or None
    if isinstance(value, int):
        return value
    raise DataError(f"{where}: the label must be an integer or a word, got {shown(value)}")


def as_integers(labels: Sequence[int | str]) -> Sequence[int | str]:
    """Return words as integers if all of them are.

    >>> as_integers(["0.0", "1.0", "1"]), as_integers(["0.5", "1"])
    ([0, 1, 1], ['0.5', '1'])
    """
    if all(isinstance(label, str) and INTEGER.fullmatch(label) for label in labels):
        return [int(str(label).partition(".")[0]) for label in labels]
    return labels


def classes_of(
    labels: Sequence[int | str], where: str, expected: int | None = None, *, reviews: bool = False
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels as class indices, and the names of the classes in their order.

    Raises DataError if there are not `expected` classes, or without a number, if there are fewer
    than two or about as many as texts. With `reviews` labels 0 and 1, or neg and pos, are negative
    and positive.

    >>> classes_of(["sad", "glad", "sad"], "a.csv")
    (array([1, 0, 1], dtype=int32), ('glad', 'sad'))
    """
    if len({type(label) for label in labels}) > 1:
        raise DataError(f"{where}: some labels are integers, some words; use one kind")
    distinct = sorted(set(labels))
    asked = "two or more" if expected is None else str(expected)
    if not distinct:
        raise DataError(f"{where}: it has no rows; expected texts with {asked} different labels")
    got = ", ".join(map(shown, distinct[:4])) + (", ..." if len(distinct) > 4 else "")
    found = f"{where}: expected {asked} different labels, got {len(distinct):,}: {got}"
    if len(distinct) < 2:
        raise DataError(found)
    if expected not in (None, len(distinct)):
        fix = f"for as many classes pass --classes {len(distinct)}"
        raise DataError("; ".join([found, *spelling_notes(distinct), fix]))
    if expected is None and len(distinct) > max(FEW, len(labels) // 2):
        raise DataError(
            f"{where}: {len(distinct):,} different labels of {len(labels):,} texts are too many to "
            f"learn, such as {got}; name the column with --label-column, or pass "
            f"--classes {len(distinct)}"
        )
    index = {label: i for i, label in enumerate(distinct)}
    opinions = distinct in ([0, 1], ["neg", "pos"])  # the second from IMDb's Parquet files
    classes = SENTIMENT if reviews and opinions else tuple(map(str, distinct))
    return np.array([index[label] for label in labels], np.int32), classes


def spelling_notes(raw: Iterable[object]) -> list[str]:
    """Return notes on labels that differ only in spaces, which are one class, or only in case.

    >>> spelling_notes(["good", "Good", "bad ", "bad"])[0]
    "labels that differ only in spaces are read as one: 'bad', 'bad '"
    """
    by_word: dict[str, set[str]] = {}
    for label in {label for label in raw if isinstance(label, str) and label.strip()}:
        by_word.setdefault(" ".join(label.split()), set()).add(label)
    by_case: dict[str, list[str]] = {}
    for word in sorted(by_word):
        by_case.setdefault(word.casefold(), []).append(word)
    notes = [
        f"labels that differ only in spaces are read as one: {_listed(sorted(forms))}"
        for _, forms in sorted(by_word.items())
        if len(forms) > 1
    ]
    if several := [_listed(words) for words in by_case.values() if len(words) > 1]:
        shown_first = "; ".join(several[:5]) + "; ..." * (len(several) > 5)
        notes.append(
            f"labels that differ only in case are different classes: {shown_first}; write them "
            "alike if they are one"
        )
    return notes


def _listed(words: Sequence[str]) -> str:
    return ", ".join(map(shown, words[:5])) + ", ..." * (len(words) > 5)
