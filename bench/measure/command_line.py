"""The command that made a number, as it could be typed elsewhere: it stands beside the number,
without a machine's paths.
"""

import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

NAMES = ("auto", "imdb", "sample")  # of data, which are no paths


def without_paths(words: Sequence[str]) -> str:
    """PATH for the data; of other files and folders their names.

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
