"""What other libraries raise, as one line that can stand inside ours."""


def one_line(error: BaseException) -> str:
    """The message without its line ends and not longer than a reader wants; the kind where there is none."""
    return " ".join(str(error).split())[:200] or type(error).__name__
