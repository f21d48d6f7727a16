"""Ctrl-C in a command: one line and exit code 130 at any moment, also during imports."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

CODE = 130  # of a program that Ctrl-C ended, in a shell
PATIENCE = 1.0  # seconds from Ctrl-C to the end of a command that an exception does not reach


def end_on_ctrl_c() -> None:
    """Set Ctrl-C to end the process with one line; for a command while it imports.

    Nothing is raised, because the importing of modules turns exceptions into others. A process
    that ignores Ctrl-C, as one in the background may, still does.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interruptible(command: Callable[[], int]) -> int:
    """Call `command` and return its exit code; Ctrl-C ends it with one line, and the process.

    Files are closed and temporary ones removed first, by a KeyboardInterrupt. An exception that is
    raised within a C callback, such as one of the garbage collector, is lost; then the process
    ends after `PATIENCE` seconds. A second Ctrl-C ends it at once.

    Call `end_on_ctrl_c` before; without it Ctrl-C does what it did.
    """
    if signal.getsignal(signal.SIGINT) is not _end:
        return command()
    came = []

    def interrupt(number, frame):
        came.append(number)
        signal.signal(signal.SIGINT, _end)
        signal.signal(signal.SIGALRM, _end)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        raise KeyboardInterrupt

    sys.unraisablehook = _show_unless_interrupt
    signal.signal(signal.SIGINT, interrupt)
    code = 0
    try:
        code = command()
    except BaseException:  # a library may have turned the KeyboardInterrupt into another error
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, _end)
    if came:
        _flush_and_end()
    return code


def _flush_and_end() -> None:
    """Write what was printed, then end the process."""
    with suppress(OSError, ValueError, AttributeError):  # the reader has gone, or there is none
        sys.stdout.flush()
    _end()


def _show_unless_interrupt(lost) -> None:
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


def _end(*_: object) -> None:
    """End the process without raising; safe in a signal handler."""
    with suppress(OSError):
        # On a terminal the line of a progress bar ends first.
        os.write(2, b"\nstopped\n" if os.isatty(2) else b"stopped\n")
    os._exit(CODE)
