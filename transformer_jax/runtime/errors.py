"""Error types with messages of one line, and other libraries' errors shortened to one line."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """An input of a command that cannot be used; the message says why and what to give instead."""


class DataError(InputError):
    """Data that cannot be used; the message is one line with the problem and a way to fix it.

    Programs print it and exit with code 2."""


class TokenizerError(ValueError):
    """A vocabulary that cannot be made, read or reached; the message says how to fix that."""


class RunFolderError(ValueError):
    """A folder that is not a run folder, or whose parts do not fit together."""


class PretrainedError(ValueError):
    """A folder or a name on the hub that holds no model that can be read."""


class UnfinishedWarning(UserWarning):
    """A warning that the training of a model was stopped before its end."""


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print an UnfinishedWarning as one line on standard error, as programs do."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UnfinishedWarning)
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *place: object) -> None:
            if issubclass(category, UnfinishedWarning):
                print(f"note: {message}", file=sys.stderr)
            else:
                show(message, category, *place)  # pyright: ignore[reportArgumentType]

        warnings.showwarning = note
        yield


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line of at most 200 characters; its type if empty."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def shown(value: object) -> str:
    """Return the value as text short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
