"""Error types with messages of one line, and other libraries' errors shortened to one line."""


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


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line of at most 200 characters; its type if empty."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def shown(value: object) -> str:
    """Return the value as text short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
