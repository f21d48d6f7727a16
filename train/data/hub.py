"""Data sets from Hugging Face, such as IMDb: from the local cache, else from the hub.

Without a network, `datasets.load_dataset` retries for half a minute, and longer if a name server
does not answer. So a short request is sent to the hub first, in a thread that is abandoned after
five seconds. A download, once begun, has no time limit."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from train.data.dataset import DataError, Split, Tables
from transformer_jax.runtime.errors import one_line

REPOSITORY = "stanfordnlp/imdb"
PATIENCE = 5.0  # seconds
# The hub has the reviews of a class in blocks, each in reverse: ids 127 to 0, then 255 to 128. This
# is seen in the first rows (127, 126, ..., 111) and in the last ones (..., 12417, 12416).
BLOCK = 128


class Unreachable(Exception):
    """A data set that is neither cached nor available from the hub; the text says why."""


def load_imdb() -> Tables:
    """Load IMDb from the local cache or the hub."""
    parts, origin = load_parts(REPOSITORY)
    try:
        train, test = (_split(parts[name]) for name in ("train", "test"))
    except KeyError as error:
        raise DataError(f"{REPOSITORY} from {origin} has no {error} in its splits") from None
    unsupervised = list(parts["unsupervised"]["text"]) if "unsupervised" in parts else []
    return Tables(
        f"{REPOSITORY} from {origin}: the Large Movie Review Dataset (Maas et al., 2011)",
        as_numbered(train),
        test,
        unsupervised,
    )


def as_numbered(split: Split) -> Split:
    """Return the reviews of each class in the order of their ids, in which movies stay together."""
    of_class = [np.flatnonzero(split.labels == label) for label in (0, 1)]
    blocks = [rows[i : i + BLOCK][::-1] for rows in of_class for i in range(0, len(rows), BLOCK)]
    return split.take(np.concatenate(blocks))


def load_parts(repository: str) -> tuple[Any, str]:
    """Load a data set from the cache or the hub; return its splits by name, and the origin.

    No remote code is run: `datasets` 4 has no support for it. Raises Unreachable if the data set is
    in neither.
    """
    import datasets

    try:
        with _offline():
            return datasets.load_dataset(repository), "the local Hugging Face cache"
    except (OSError, ValueError):  # not cached: a ConnectionError, or a cache without this data set
        if reason := probe(repository):
            raise Unreachable(reason) from None
        try:
            return datasets.load_dataset(repository), "the Hugging Face Hub"
        except Exception as error:  # a broken download may raise anything
            raise Unreachable(f"the download failed: {one_line(error)}") from None


def load_named(name: str, accepted: str) -> tuple[Any, str]:
    """Load a data set like `load_parts`; raise a DataError that names the `accepted` sources."""
    if not name.strip("/ "):
        raise DataError(f"hub:{name} names no data set; pass {accepted}")
    try:
        return load_parts(name)
    except Unreachable as error:
        raise DataError(
            f"hub:{name} is not cached and cannot be loaded from the Hugging Face Hub ({error}); "
            f"pass {accepted}"
        ) from None


def text_of(row: Mapping[str, Any], column: str, name: str, number: int) -> str:
    """Return the text of a column of a row; raise DataError if it holds something else, or null."""
    if not isinstance(text := row[column], str):
        raise DataError(
            f"hub:{name}, row {number}: {column!r} must be a string, got {type(text).__name__}"
        )
    return text


def probe(repository: str = REPOSITORY, patience: float = PATIENCE) -> str | None:
    """Check that the hub answers for a repository within `patience` seconds.

    Returns None if it does, else the reason. The timeout of the HTTP client does not cover the name
    lookup, so the request is made in a daemon thread. If it hangs, it is abandoned and does not
    keep the program from ending."""
    import datasets
    from huggingface_hub import HfApi, constants

    if datasets.config.HF_HUB_OFFLINE:
        return "offline mode is on: HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set"
    answers: list[str | None] = []

    def ask() -> None:
        try:
            HfApi().dataset_info(repository, timeout=patience)
            answers.append(None)
        except Exception as error:  # whatever the failure, the hub cannot be used
            answers.append(f"{constants.ENDPOINT}: {one_line(error)}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else f"{constants.ENDPOINT}: no answer within {patience:g} seconds"


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Make `datasets` use its cache only, without a warning."""
    import datasets

    # The environment is read at import, so the module's own value must be changed.
    before = datasets.config.HF_HUB_OFFLINE
    verbosity = datasets.logging.get_verbosity()
    datasets.config.HF_HUB_OFFLINE = True
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
        datasets.logging.set_verbosity(verbosity)


def _split(rows) -> Split:
    labels = np.array(rows["label"], np.int32)
    if not np.isin(labels, (0, 1)).all():
        raise DataError(f"{REPOSITORY}: labels other than 0 and 1 in a labelled split")
    return Split(list(rows["text"]), labels, None)
