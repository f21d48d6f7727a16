"""Several processes that train as one: how they join, and how they agree.

Each process has some of the devices, on one machine or on several. All run the same program, and a
computation on the mesh of all devices (`parallel.mesh`) waits for every process. So all must enter
the same computations: whatever one process alone knows, a signal, an error or the time, is
exchanged first. Values go through the coordination service of `jax.distributed`, which runs in the
first process; it needs no device, and every wait has a bound. In a program of one process, nothing
here waits.

https://docs.jax.dev/en/latest/multi_process.html
"""

import itertools
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import distributed  # for its key-value store, which has no public name yet
from jax._src.clusters import ClusterEnv

from transformer_jax.runtime.errors import one_line

JOIN_SECONDS = 300  # until all processes must have joined
WAIT_SECONDS = 900  # until all must have come to an exchange; a dead one is noticed earlier
HEARTBEAT_SECONDS = 30  # without a sign of life, after which a process counts as dead
END_SECONDS = 15  # that a process which ends waits until the others know
EXIT_SECONDS = 60  # that it then waits for their end
POLL_SECONDS = 2  # between looks at whether another process ended

# In the environment, the names of what `join` is not given.
VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

ENDED, LEAVING = "transformer_jax/ended", "transformer_jax/leaving"  # a key and a barrier

_rounds = itertools.count(1)
_left: list[bool] = []  # not empty once other processes are gone, so that none can be waited for
_ending: list[bool] = []  # not empty once this process ends, or knows that others do


class ProcessError(RuntimeError):
    """Another process that did not come in time, or is gone; the message is one line."""


class EndedElsewhere(BaseException):
    """Another process ends; the message is what it told the others."""


def join(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> int:
    """Return the number of processes, after joining the others; call it before devices are used.

    What is not given is read from the environment (`VARIABLES`), or is what JAX finds out under
    SLURM, Open MPI and Kubernetes and on Cloud TPUs. Without any of it, the process is the only
    one. Raises ValueError if something is missing or impossible, and ProcessError if the others do
    not come within JOIN_SECONDS.
    """
    if is_joined():
        return count()
    found = _asked_for(coordinator, processes, process)
    asked = any(value is not None for value in found)
    address, number, index = _detected(found, asked)
    if not asked and (number or 1) == 1:
        return 1
    names = ("--coordinator", "--processes", "--process")
    if missing := [n for n, v in zip(names, (address, number, index), strict=True) if v is None]:
        raise ValueError(
            f"{' and '.join(missing)} must be given too: JAX finds no cluster here that says it"
        )
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ValueError(f"--coordinator must be HOST:PORT; got {address!r:.60}")
    if number < 1:
        raise ValueError(f"--processes must be 1 or more; got {number}")
    if not 0 <= index < number:
        raise ValueError(
            f"--process must be from 0 to {number - 1} (--processes {number}); got {index}"
        )
    _initialize(address, number, index)
    return number


def is_joined() -> bool:
    """Return whether this process has joined others."""
    return distributed.global_state.client is not None


def are_several() -> bool:
    """Return whether this process is one of several."""
    return count() > 1


def index() -> int:
    """Return the number of this process, from 0."""
    return distributed.global_state.process_id if is_joined() else 0


def count() -> int:
    """Return the number of processes that joined, 1 for the only one."""
    return distributed.global_state.num_processes if is_joined() else 1


def is_first() -> bool:
    """Return whether this process is the first, which writes the files; the only one is."""
    return index() == 0


def exchange(value: str, more_seconds: float = 0) -> list[str]:
    """Return the value of every process, in their order; all must call it, in the same order.

    Raises EndedElsewhere if a process ended instead (`tell_end`), and ProcessError if one does not
    come within WAIT_SECONDS and `more_seconds`.
    """
    if not are_several():
        return [value]
    with _signals_later():  # or this process would be in another round than the others
        return _exchanged(value, WAIT_SECONDS + int(more_seconds))


def _exchanged(value: str, seconds: int) -> list[str]:
    number = next(_rounds)
    _say(number, f"v{value}")
    try:
        if _ends(said := _said(number)):
            _or_none(lambda: _wait(number, END_SECONDS))  # for which the one that ends waits
        else:
            _wait(number, seconds)
            said = _said(number)
    except jax.errors.JaxRuntimeError as error:
        said = _or_none(lambda: _said(number)) or {}
        if not _ends(said):
            _left.append(True)
            raise ProcessError("another process did not come, or is gone") from error
    if ends := _ends(said):
        _ending.append(True)
        raise EndedElsewhere(ends[0])
    _or_none(lambda: _client().key_value_delete(_key(number - 1, index())))  # all have read it
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
        _or_none(lambda: _client().key_value_set(ENDED, text))  # that of the first to end
        if _or_none(lambda: not _wait(number, END_SECONDS)) is None:
            _or_none(lambda: _client().wait_at_barrier(LEAVING, 3000 * END_SECONDS))
            time.sleep(1 if is_first() else 0)  # the others need its service until they left
            _left.append(True)
        return text
    said = _or_none(lambda: _said(number)) or {}
    if ends := _ends({i: value for i, value in said.items() if i != index()}):
        return ends[0]
    _left.append(True)
    return text


def leave_with_others(leave: Callable[[str], None]) -> None:
    """Start a thread that calls `leave` with what another process told that ended.

    It does so END_SECONDS later, unless this process came to an exchange, or ends itself. For what
    takes longer than that, or waits for the devices of the process that ended.
    """

    def watch() -> None:
        while not _ending:
            try:
                text = _client().blocking_key_value_get(ENDED, 1000 * POLL_SECONDS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    return  # the first process is gone
                continue
            time.sleep(END_SECONDS)
            if not _ending:
                _or_none(lambda: _client().wait_at_barrier(LEAVING, 1000 * END_SECONDS))
                leave(text)
            return

    if are_several():
        threading.Thread(target=watch, daemon=True).start()


def are_others_lost() -> bool:
    """Return whether other processes are gone, so that none can be waited for."""
    return bool(_left)


def _asked_for(*given: Any) -> tuple[str | None, int | None, int | None]:
    """Return what is given, or else in the environment."""
    address, *numbers = (
        os.environ.get(n) if v is None else v for n, v in zip(VARIABLES, given, strict=True)
    )
    for name, text in zip(VARIABLES[1:], numbers, strict=True):
        if isinstance(text, str) and not text.isdecimal():
            raise ValueError(f"{name} must be a whole number; got {text!r:.40}")
    number, process = (None if n is None else int(n) for n in numbers)
    return address, number, process


def _detected(found: tuple, asked: bool) -> tuple[Any, Any, Any]:
    """Return what is known, completed by what JAX finds out about the cluster."""
    if None not in found:
        return found
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # every pod of Kubernetes lacks a package of it
            return ClusterEnv.auto_detect_unset_distributed_params(
                found[0], found[1], found[2], None, None, JOIN_SECONDS
            )[:3]
    except Exception as error:
        if asked or "JOB_COMPLETION_INDEX" in os.environ:  # of an indexed job of Kubernetes
            raise ValueError(f"JAX cannot find out about the cluster: {one_line(error)}") from error
        return found


def _initialize(address: str, number: int, index: int) -> None:
    """Join in a thread: when its own time is over, JAX aborts the process instead of raising."""
    failure: list[Exception] = []
    # Its handler of SIGTERM would take the place of the program's.
    jax.config.update("jax_enable_preemption_service", False)

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                address,
                number,
                index,
                initialization_timeout=JOIN_SECONDS + 60,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=EXIT_SECONDS,
            )
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=initialize, daemon=True)
    thread.start()
    thread.join(JOIN_SECONDS)
    if thread.is_alive():
        _left.append(True)
        what = f"the other {number - 1} did not join" if index == 0 else "nobody answers"
        raise ProcessError(
            f"{what} at --coordinator {address} within {JOIN_SECONDS} seconds; start all "
            f"{number} processes with the same address, that of process 0"
        )
    if failure:
        _left.append(True)
        raise ProcessError(f"cannot join at --coordinator {address}: {one_line(failure[0])}")


@contextmanager
def _signals_later() -> Iterator[None]:
    """Handle a signal that arrives within the context at its end; a second one ends the process."""
    came = []
    kinds = (signal.SIGINT, signal.SIGTERM)

    def note(number, frame):
        came.append(number)
        for each in kinds:
            signal.signal(each, signal.SIG_DFL)

    try:
        before = [signal.signal(each, note) for each in kinds]
    except ValueError:  # only the main thread can set handlers
        yield
        return
    try:
        yield
    finally:
        for each, handler in zip(kinds, before, strict=True):
            signal.signal(each, handler)
        if came:
            signal.raise_signal(came[0])


def _client() -> Any:
    return distributed.global_state.client


def _key(number: int, index: int) -> str:
    return f"transformer_jax/{number}/{index}"


def _say(number: int, text: str) -> None:
    _client().key_value_set(_key(number, index()), text)


def _said(number: int) -> dict[int, str]:
    """Return what was said in a round, by the number of the process."""
    found = _client().key_value_dir_get(f"transformer_jax/{number}/")
    return {int(key.rpartition("/")[2]): text for key, text in found}


def _ends(said: dict[int, str]) -> list[str]:
    return [said[i][1:] for i in sorted(said) if said[i].startswith("e")]


def _wait(number: int, seconds: int) -> None:
    _client().wait_at_barrier(f"transformer_jax/{number}", seconds * 1000)


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except jax.errors.JaxRuntimeError:
        return None
