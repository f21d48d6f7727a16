"""The command line that is printed next to a result, without paths of the machine it ran on."""

import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

NAMES = ("auto", "imdb", "sample")  # data sets that are not paths


def without_paths(words: Sequence[str]) -> str:
    """Return the command line with PATH for the data and bare names for other files and folders.

    >>> without_paths(["bench.x", "--data=some/where/imdb", "--log", "where/log", "--seeds", "2"])
    'bench.x --data PATH --log log --seeds 2'
    """
    words = [
        part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])
    ]
    shown = [
        "PATH" if before == "--data" and word not in NAMES
        else Path(word).name if "/" in word else word
        for before, word in pairwise(["", *words])
    ]  # fmt: skip
    return shlex.join(shown)
