"""What a training program needs to know of its data: texts, labels, and where they came from.

Only the types live here, so that whatever reads or makes data can build them without importing the
code that chooses between sources (`train.data.load`)."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SENTIMENT = ("negative", "positive")


class DataError(ValueError):
    """Data that cannot be used: one line with what was expected, what came, and the way out.

    Programs print it and exit with code 2, so it never holds a stack of causes."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what the system says of reading a path into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class Split:
    """Texts with their labels, row by row."""

    texts: list[str]
    labels: np.ndarray  # int32 [n], each an index into Dataset.classes
    groups: list[str] | None  # the movie of each review ("" where unknown); None if none is known
    unit: str = "movie"  # what a group is

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> "Split":
        """The rows with these indices, in this order."""
        groups = None if self.groups is None else [self.groups[i] for i in rows]
        return Split([self.texts[i] for i in rows], self.labels[rows], groups, self.unit)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split that share no text, and texts without labels that neither has."""

    name: str  # "imdb", "sample", or the file's name: it goes into every result file
    source: str  # a sentence: where the texts came from (base names only, never a machine's path)
    train: Split
    test: Split
    unsupervised: list[str]
    classes: tuple[str, ...]  # the name of each label
    notes: tuple[str, ...] = ()  # what a reader of the results must be told


@dataclass(frozen=True)
class Tables:
    """What a source holds, before splits are made or cleaned: `test` is None where it has no test
    split.
    """

    source: str
    train: Split
    test: Split | None = None
    unsupervised: Sequence[str] = ()
    classes: tuple[str, ...] = SENTIMENT
    notes: tuple[str, ...] = ()


def tokens_sha256(
    parts: Iterable[tuple[Sequence[np.ndarray], Sequence[int] | np.ndarray]], text: str = ""
) -> str:
    """Return the SHA-256 of all tokens and labels of these parts in their order, and of a text."""
    digest = hashlib.sha256()
    for examples, labels in parts:
        digest.update(np.array([len(ids) for ids in examples], np.int64).tobytes())
        digest.update(np.concatenate([*examples, labels]).astype(np.int64).tobytes())
    digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()
