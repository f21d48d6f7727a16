"""Standard output whose reader ends before the training does, as `head` does."""

import io
import os
import sys


class _Pipe(io.FileIO):
    """A file descriptor that discards what is written once its reader has gone."""

    def write(self, data, /) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def outlast_readers() -> None:
    """Replace the standard streams by ones that raise nothing once their reader has gone.

    What is printed is then discarded. Every line is written when it ends, also to a file. For
    programs in a process of their own.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before the program began
            continue
        stream.flush()
        buffer = io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False))
        options = {"encoding": stream.encoding, "errors": stream.errors, "line_buffering": True}
        setattr(sys, name, io.TextIOWrapper(buffer, **options))
