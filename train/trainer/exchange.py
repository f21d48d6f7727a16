"""The exchange of values between the processes of a run, and the end that one tells the others.

All processes must enter the same computations on the mesh. So whatever one alone knows, a signal,
an error or the time, is exchanged first. Values go through the coordination service of
`jax.distributed`, which runs in the first process; it needs no device, and every wait has a bound.
In a program of one process, nothing here waits.
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from train.trainer.signals import deferred
from transformer_jax.parallel.processes import (
    ProcessError,
    are_several,
    index,
    is_first,
    mark_lost,
    service,
)

WAIT_SECONDS = 900  # until all must have come to an exchange; a dead one is noticed earlier
END_SECONDS = 15  # that a process which ends waits until the others know
POLL_SECONDS = 2  # between looks at whether another process ended
ENDED, LEAVING = "transformer_jax/ended", "transformer_jax/leaving"  # a key and a barrier

_rounds = itertools.count(1)
_ending: list[bool] = []  # not empty once this process ends, or knows that others do


class EndedElsewhere(BaseException):
    """Another process ends; the message is what it told the others."""


def exchange(value: str, more_seconds: float = 0) -> list[str]:
    """Return the value of every process, in their order; all must call it, in the same order.

    Raises EndedElsewhere if a process ended instead (`tell_end`), and ProcessError if one does not
    come within WAIT_SECONDS and `more_seconds`.
    """
    if not are_several():
        return [value]
    with deferred():  # or this process would be in another round than the others
        return _exchanged(value, WAIT_SECONDS + int(more_seconds))


def _exchanged(value: str, seconds: int) -> list[str]:
    number = next(_rounds)
    _say(number, f"v{value}")
    try:
        if _ends(said := _said(number)):
            _all_came(number, END_SECONDS)  # for which the one that ends waits
        else:
            _wait(number, seconds)
            said = _said(number)
    except jax.errors.JaxRuntimeError as error:
        said = _or_none(lambda: _said(number)) or {}
        if not _ends(said):
            mark_lost()
            raise ProcessError("another process did not come, or is gone") from error
    if ends := _ends(said):
        _ending.append(True)
        raise EndedElsewhere(ends[0])
    _or_none(lambda: service().key_value_delete(_key(number - 1, index())))  # all have read it
    return [said[i][1:] for i in range(len(said))]


def largest(number: int) -> int:
    """Return the largest number of all processes; see `exchange`."""
    return max(map(int, exchange(str(number))))


def from_first(value: str, more_seconds: float = 0) -> str:
    """Return the value of the first process; see `exchange`."""
    return exchange(value, more_seconds)[0]


def tell_end(text: str, *, lost: bool = False) -> str:
    """Return what is to be said about the end of this process, after telling the others.

    They learn it at their next `exchange`, for which this process waits END_SECONDS. Those that do
    not come to one leave wherever they are (`leave_with_others`). If the connection to others is
    `lost`, there is no wait, and what one of them told is returned.
    """
    if not are_several():
        return text
    _ending.append(True)
    number = next(_rounds)
    _or_none(lambda: _say(number, f"e{text}"))
    if not lost:
        _or_none(lambda: service().key_value_set(ENDED, text))  # that of the first to end
        if not _all_came(number, END_SECONDS):
            _or_none(lambda: service().wait_at_barrier(LEAVING, 3000 * END_SECONDS))
            time.sleep(1 if is_first() else 0)  # the others need its service until they left
            mark_lost()
        return text
    said = _or_none(lambda: _said(number)) or {}
    if ends := _ends({i: value for i, value in said.items() if i != index()}):
        return ends[0]
    mark_lost()
    return text


def leave_with_others(leave: Callable[[str], None]) -> None:
    """Start a thread that calls `leave` with what another process told that ended.

    It does so END_SECONDS later, unless this process came to an exchange, or ends itself. For what
    takes longer than that, or waits for the devices of the process that ended.
    """

    def watch() -> None:
        while not _ending:
            try:
                text = service().blocking_key_value_get(ENDED, 1000 * POLL_SECONDS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    return  # the first process is gone
                continue
            time.sleep(END_SECONDS)
            if not _ending:
                _or_none(lambda: service().wait_at_barrier(LEAVING, 1000 * END_SECONDS))
                leave(text)
            return

    if are_several():
        threading.Thread(target=watch, daemon=True).start()


def _key(number: int, index: int) -> str:
    return f"transformer_jax/{number}/{index}"


def _say(number: int, text: str) -> None:
    service().key_value_set(_key(number, index()), text)


def _said(number: int) -> dict[int, str]:
    """Return what was said in a round, by the number of the process."""
    found = service().key_value_dir_get(f"transformer_jax/{number}/")
    return {int(key.rpartition("/")[2]): text for key, text in found}


def _ends(said: dict[int, str]) -> list[str]:
    return [said[i][1:] for i in sorted(said) if said[i].startswith("e")]


def _wait(number: int, seconds: int) -> None:
    service().wait_at_barrier(f"transformer_jax/{number}", seconds * 1000)


def _all_came(number: int, seconds: int) -> bool:
    """Return whether all processes came to a round in time."""
    try:
        _wait(number, seconds)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except jax.errors.JaxRuntimeError:
        return None
