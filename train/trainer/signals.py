"""Handling of Ctrl-C and SIGTERM: training saves and stops between two steps."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """An interruption by a signal, raised once the state is saved, or before training begins."""

    def __init__(self, number: int = signal.SIGINT):
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopWish:
    """The signal that was received, or None."""

    number: int | None = None


@contextmanager
def stop_wish() -> Iterator[StopWish]:
    """Record the first signal in the yielded StopWish; let the next one end the process at once.

    Ending at once is safe: files are written under another name and then renamed, so the older
    ones stay intact.
    """
    wish = StopWish()
    stop_if_asked()

    def note(number, frame):
        wish.number = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        print("\nfinishing this step and saving; repeat Ctrl-C to stop at once", file=sys.stderr)

    with _handler(note):
        yield wish


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise Stopped on either signal, unless a `stop_wish` is active; for a whole program."""
    with _handler(_Stop()):
        yield
        stop_if_asked()


# It remembers the signal, because an exception raised within a C callback, such as one of the
# garbage collector, is lost.
class _Stop:
    """A signal handler that raises Stopped and remembers the signal."""

    number: int | None = None

    def __call__(self, number, frame):
        self.number = number
        raise Stopped(number)


def stop_if_asked() -> None:
    """Raise Stopped if a signal came whose exception was lost in a C callback."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Stop) and handler.number is not None:
        raise Stopped(handler.number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Raise Stopped at the end of the context if a signal arrives within it."""
    came = []
    with _handler(lambda number, frame: came.append(number)):
        yield
    if came:
        raise Stopped(came[0])


@contextmanager
def _handler(handler) -> Iterator[None]:
    try:
        before = [signal.signal(each, handler) for each in SIGNALS]
    except ValueError:  # only the main thread can set handlers
        yield
        return
    try:
        yield
    finally:
        for each, old in zip(SIGNALS, before, strict=True):
            signal.signal(each, old)
