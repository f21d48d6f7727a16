"""Held-out texts that a model has right, for the command that the program suggests at its end."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

LONGEST = 200  # characters; a longer text is none to copy from a terminal


def examples(
    texts: Sequence[str], labels: Int[np.ndarray, " n"], probabilities: Float[np.ndarray, "n C"]
) -> tuple[int, ...]:
    """Return the indices of short texts whose label is predicted correctly.

    They are two texts of different labels with the same words in another order, the shortest such
    pair, or else the shortest text alone; none if there is no short one. Texts with line breaks,
    and those that a command line takes for an option or a file, do not count.

    >>> texts, labels = ["good, not bad", "fine", "bad, not good"], np.array([1, 1, 0])
    >>> examples(texts, labels, probabilities=np.eye(2)[labels])
    (2, 0)
    """
    right = np.flatnonzero(probabilities.argmax(axis=1) == labels).tolist()
    usable = [i for i in right if _is_usable(texts[i])]
    usable.sort(key=lambda i: (len(texts[i]), texts[i]))
    seen: dict[tuple[str, ...], int] = {}
    for i in usable:
        words = tuple(sorted(re.findall(r"\w+", texts[i].lower())))
        if labels[first := seen.setdefault(words, i)] != labels[i]:
            return first, i
    return tuple(usable[:1])


def _is_usable(text: str) -> bool:
    looks_like_a_path = " " not in text and re.search(r"[./~]", text)
    return (
        text.strip() != ""
        and len(text) <= LONGEST
        and text.isprintable()
        and not text.startswith("-")
        and not looks_like_a_path
    )
