"""The progress of long loops: a bar on a terminal, else a plain line every ten seconds."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import time  # the clock of tqdm
from typing import Any

from tqdm import tqdm

LINE_SECONDS = 10.0  # between plain lines, so that the log of a job stays readable
SHORT = 1.0  # seconds; the delay of a bar that a short loop does not need


class _Nowhere(io.TextIOBase):
    """A file that discards what is written to it."""

    def write(self, text: str) -> int:
        return len(text)


class ProgressBar(tqdm):
    """A progress bar of tqdm on standard error; without a terminal there, a line now and then.

    The lines are `LINE_SECONDS` apart and have no control characters:

        step 120 of 2000, loss=0.312, 03:20 left

    The arguments are those of tqdm.
    """

    def __init__(self, *arguments: Any, desc: str | None = None, **options: Any):
        # Commands replace standard error after this module is imported, and tests do.
        self.is_plain = not sys.stderr.isatty()
        self.said: set[str] = set()
        if self.is_plain:
            options |= {"file": _Nowhere(), "mininterval": LINE_SECONDS, "miniters": 1}
        else:
            options = {"file": sys.stderr, "dynamic_ncols": True} | options
        self.name = desc or ""
        super().__init__(*arguments, desc=desc, **options)

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` more, and show it if the last time is long enough ago."""
        due = super().update(n)
        if due and self.is_plain:
            print(self._line(), file=sys.stderr, flush=True)
        return due

    @contextmanager
    def uncounted(self, what: str) -> Iterator[None]:
        """Show `what` is done within the context, and leave its time out of the time left.

        Without a terminal, the same line is printed once.
        """
        if self.disable:
            yield
            return
        begun = time()
        if not self.is_plain:
            self.set_description(what)
        elif what not in self.said:
            self.said.add(what)
            print(f"{what} ...", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            spent = time() - begun
            self.start_t += spent
            self.last_print_t += spent
            if not self.is_plain:
                self.set_description(self.name, refresh=False)

    def _line(self) -> str:
        """Return the state as a plain line."""
        shown = self.format_dict
        form = "{desc}{unit} {n_fmt}{postfix}, {elapsed} so far"
        if self.total is not None:
            form = "{desc}{unit} {n_fmt} of {total_fmt}{postfix}, {remaining} left"
        desc = f"{self.name}: " if self.name else ""
        return self.format_meter(**{**shown, "bar_format": form, "prefix": desc})


def print_above(line: str) -> None:
    """Print a line on standard output at once; on a terminal, above the bars."""
    if sys.stdout.isatty():
        tqdm.write(line)
    else:
        print(line, flush=True)
