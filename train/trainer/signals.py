"""Ctrl-C and SIGTERM as a wish that is granted between two steps."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The run was asked to stop; what it has is saved."""

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopWish:
    """Which signal came, if one did."""

    number: int | None = None


@contextmanager
def stop_wish() -> Iterator[StopWish]:
    """The first signal is noted, the next one ends the process as the system does: at once.

    Nothing has to be tidied up then: files are written beside their place, so the older ones stand.
    """
    wish = StopWish()
    stop_if_asked()

    def note(number, frame):
        wish.number = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        print("\nfinishing this step and saving; once more to stop at once", file=sys.stderr)

    with _handler(note):
        yield wish


@contextmanager
def stoppable() -> Iterator[None]:
    """Around a whole program: either signal raises Stopped, where no `stop_wish` takes it."""
    with _handler(_Stop()):
        yield
        stop_if_asked()


class _Stop:
    """Raises Stopped, and remembers it: what is raised within a callback of C, as the garbage
    collector's, is lost.
    """

    number: int | None = None

    def __call__(self, number, frame):
        self.number = number
        raise Stopped(number)


def stop_if_asked() -> None:
    """Raises the Stopped that was lost on its way, if one was."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Stop) and handler.number is not None:
        raise Stopped(handler.number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A signal that comes within is raised behind it."""
    came = []
    with _handler(lambda number, frame: came.append(number)):
        yield
    if came:
        raise Stopped(came[0])


@contextmanager
def _handler(handler) -> Iterator[None]:
    try:
        before = [signal.signal(each, handler) for each in SIGNALS]
    except ValueError:  # not the main thread, which alone may ask
        yield
        return
    try:
        yield
    finally:
        for each, old in zip(SIGNALS, before, strict=True):
            signal.signal(each, old)
