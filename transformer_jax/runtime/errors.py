"""Mistakes that become one line, and what other libraries raise, made to fit into one."""


class InputError(ValueError):
    """What a command was given cannot be used; the message says why and what to give instead."""


class TokenizerError(ValueError):
    """A vocabulary that cannot be made, read or reached: one line with the way out."""


class RunFolderError(ValueError):
    """A folder that is not a run, or whose parts do not fit together."""


class PretrainedError(ValueError):
    """A folder or a name of the hub that holds no model that can be read."""


def one_line(error: BaseException) -> str:
    """The message without its line ends and not longer than a reader wants; the kind where there is
    none.
    """
    return " ".join(str(error).split())[:200] or type(error).__name__


def shown(value: object) -> str:
    """Return the value as text short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
