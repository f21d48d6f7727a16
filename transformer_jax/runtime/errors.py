"""Mistakes that become one line, and what other libraries raise, made to fit into one."""


class InputError(ValueError):
    """What a command was given cannot be used; the message says why and what to give instead."""


class TokenizerError(ValueError):
    """A vocabulary that cannot be made, read or reached: one line with the way out."""


def one_line(error: BaseException) -> str:
    """The message without its line ends and not longer than a reader wants; the kind where there is
    none.
    """
    return " ".join(str(error).split())[:200] or type(error).__name__
