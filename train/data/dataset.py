"""The types of labelled data sets: texts, labels, and their source.

Readers and generators of data build these types without importing `train.data.load`, which chooses
between them."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformer_jax.runtime.errors import DataError
from transformer_jax.runtime.texts import EncodingError

__all__ = ["SENTIMENT", "DataError", "Dataset", "Split", "Tables", "readable", "tokens_sha256"]

SENTIMENT = ("negative", "positive")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert an OSError or EncodingError while reading `path` into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except EncodingError as error:
        raise DataError(str(error)) from None


@dataclass(frozen=True)
class Split:
    """Texts with their labels and groups, row by row."""

    texts: list[str]
    labels: np.ndarray  # int32 [n], each an index into Dataset.classes
    groups: list[str] | None  # the movie of each review ("" where unknown); None if none is known
    unit: str = "movie"  # the name of a group, for messages

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> "Split":
        """Return the rows with these indices, in this order."""
        groups = None if self.groups is None else [self.groups[i] for i in rows]
        return Split([self.texts[i] for i in rows], self.labels[rows], groups, self.unit)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split that share no text, and unlabelled texts.

    No unlabelled text repeats a test text."""

    name: str  # "imdb", "sample", or the file's name; written to every result file
    source: str  # where the texts came from, as a phrase with base names, never full paths
    train: Split
    test: Split
    unsupervised: list[str]
    classes: tuple[str, ...]  # the name of each label
    notes: tuple[str, ...] = ()  # remarks that a reader of the results must know
    validation: Split | None = None  # the source's own; None if it has none


@dataclass(frozen=True)
class Tables:
    """The contents of a source, before splits are made or duplicates dropped."""

    source: str
    train: Split
    test: Split | None = None  # None if the source has no test split
    unsupervised: Sequence[str] = ()
    classes: tuple[str, ...] = SENTIMENT
    notes: tuple[str, ...] = ()
    validation: Split | None = None


def tokens_sha256(
    parts: Iterable[tuple[Sequence[np.ndarray], Sequence[int] | np.ndarray]], text: str = ""
) -> str:
    """Return the SHA-256 of the tokens and labels of all parts, in order, and of `text`."""
    digest = hashlib.sha256()
    for examples, labels in parts:
        digest.update(np.array([len(ids) for ids in examples], np.int64).tobytes())
        digest.update(np.concatenate([*examples, labels]).astype(np.int64).tobytes())
    digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()
