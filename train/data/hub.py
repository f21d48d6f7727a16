"""Data sets from Hugging Face, IMDb among them: the local cache first, then the hub, and never a
long wait for neither.

`datasets.load_dataset` takes half a minute of retries to find out that there is no network, and a
name server that never answers holds it longer. So the hub is asked one question first, in a thread
that is left behind after five seconds; a download, once begun, takes the time it takes."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from train.data.dataset import DataError, Split, Tables
from transformer_jax.runtime.errors import one_line

REPOSITORY = "stanfordnlp/imdb"
PATIENCE = 5.0  # seconds


class Unreachable(Exception):
    """A data set is in no cache and the hub gave no answer; the text says what was tried."""


def load_imdb() -> Tables:
    """IMDb as `datasets` has it cached or the hub gives it."""
    parts, origin = load_parts(REPOSITORY)
    try:
        train, test = (_split(parts[name]) for name in ("train", "test"))
    except KeyError as error:
        raise DataError(f"{REPOSITORY} from {origin} has no {error} in its splits") from None
    unsupervised = list(parts["unsupervised"]["text"]) if "unsupervised" in parts else []
    return Tables(
        f"{REPOSITORY} from {origin}: the Large Movie Review Dataset (Maas et al., 2011)",
        train,
        test,
        unsupervised,
    )


def load_parts(repository: str) -> tuple[Any, str]:
    """The splits of a data set by name, from the cache or the hub, and which of them it was.

    No remote code is run: `datasets` 4 has none. Raises Unreachable where neither has it.
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
        except Exception as error:  # whatever a broken download raises
            raise Unreachable(f"the download failed: {one_line(error)}") from None


def load_named(name: str, accepted: str) -> tuple[Any, str]:
    """Do as `load_parts`, with a DataError that says what else may be passed."""
    try:
        return load_parts(name)
    except Unreachable as error:
        raise DataError(
            f"hub:{name} is not cached and the Hugging Face Hub gave none ({error}); pass "
            f"{accepted}"
        ) from None


def probe(repository: str = REPOSITORY, patience: float = PATIENCE) -> str | None:
    """Why the hub cannot be used, or None if it answered for a repository within `patience`
    seconds.

    A time limit of the HTTP client does not cover the name look-up, so a daemon thread asks: if it
    hangs, it is left to hang, and does not keep the program from ending."""
    import datasets
    from huggingface_hub import HfApi, constants

    if datasets.config.HF_HUB_OFFLINE:
        return "offline mode is on: HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set"
    answers: list[str | None] = []

    def ask() -> None:
        try:
            HfApi().dataset_info(repository, timeout=patience)
            answers.append(None)
        except Exception as error:  # any failure means the same: no data from there
            answers.append(f"{constants.ENDPOINT}: {one_line(error)}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else f"{constants.ENDPOINT}: no answer within {patience:g} seconds"


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """`datasets` looks into its cache alone, and does not warn that it did.

    Its setting is read from the environment at import, so the module's own value is changed."""
    import datasets

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
