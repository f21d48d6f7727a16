"""Handling of Ctrl-C and SIGTERM: training saves and stops between two steps."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = 0.05  # seconds until Stopped is raised again that was lost in a C callback


def end_on_ctrl_c() -> None:
    """Set Ctrl-C to end the process with one line; for a program while it imports.

    Nothing is raised, because the importing of modules turns exceptions into others. As
    `transformer_jax.runtime.ctrl_c`, the import of which already takes most of a second.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number, frame) -> None:
    try:
        os.write(2, b"\nstopped\n" if os.isatty(2) else b"stopped\n")
    finally:
        os._exit(128 + number)


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
        with suppress(RuntimeError):  # it came in the middle of another print
            print(
                "\nfinishing this step and saving; repeat Ctrl-C to stop at once", file=sys.stderr
            )

    with _handler(note):
        yield wish


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise Stopped on either signal, unless a `stop_wish` is active; for a whole program."""
    stop, show, alarm = _Stop(), sys.unraisablehook, signal.getsignal(signal.SIGALRM)

    def lost(unraisable):
        if issubclass(unraisable.exc_type, Stopped):
            signal.signal(signal.SIGALRM, stop.send_again)
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            show(unraisable)

    with _handler(stop):
        sys.unraisablehook = lost
        try:
            yield
            stop_if_asked()
        except Exception as error:
            if stop.number is None:
                raise
            # A library turned it into another error, as the importing of a module in C does.
            raise Stopped(stop.number) from error
        finally:
            sys.unraisablehook = show
            if stop.number is not None:  # else the alarm, if there is one, is the caller's
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, alarm)


# It remembers the signal, because an exception raised within a C callback, such as one of the
# garbage collector, is lost.
class _Stop:
    """A signal handler that raises Stopped and remembers the signal."""

    number: int | None = None

    def __call__(self, number, frame):
        self.number = number
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stopped(number)

    def send_again(self, number, frame):
        """Repeat the signal for the present handler, which may be that of `stop_wish`."""
        signal.raise_signal(self.number)


def stop_if_asked() -> None:
    """Raise Stopped if a signal came whose exception was lost, in a C callback or a library."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Stop) and handler.number is not None:
        handler(handler.number, None)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Raise Stopped at the end of the context if a signal arrives within it."""
    came = []
    with _handler(lambda number, frame: came.append(number)):
        yield
    if came:
        raise Stopped(came[0])


@contextmanager
def deferred() -> Iterator[None]:
    """Keep a signal that arrives within the context for its end; a second one ends the process."""
    came = []

    def note(number, frame):
        came.append(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    with _handler(note):
        yield
    if came:
        signal.raise_signal(came[0])


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
