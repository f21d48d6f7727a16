"""Several processes that train as one: how they join, and which one this is.

Each process has some of the devices, on one machine or on several. All run the same program, and a
computation on the mesh of all devices (`parallel.mesh`) waits for every process.

https://docs.jax.dev/en/latest/multi_process.html
"""

import os
import threading
import warnings
from typing import Any

import jax
from jax._src import distributed  # for its key-value store, which has no public name yet
from jax._src.clusters import ClusterEnv

from transformer_jax.runtime.errors import one_line

JOIN_SECONDS = 300  # until all processes must have joined
HEARTBEAT_SECONDS = 30  # without a sign of life, after which a process counts as dead
EXIT_SECONDS = 60  # that a process which exits waits for the exit of the others

# In the environment, the names of what `join` is not given.
VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

_lost: list[bool] = []  # not empty once other processes are gone, so that none can be waited for


class ProcessError(RuntimeError):
    """Another process that did not come in time, or is gone; the message is one line."""


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


def mark_lost() -> None:
    """Record that other processes are gone; JAX would wait for them when this one exits."""
    _lost.append(True)


def are_others_lost() -> bool:
    """Return whether other processes are gone, so that none can be waited for."""
    return bool(_lost)


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
        mark_lost()
        what = f"the other {number - 1} did not join" if index == 0 else "nobody answers"
        raise ProcessError(
            f"{what} at --coordinator {address} within {JOIN_SECONDS} seconds; start all "
            f"{number} processes with the same address, that of process 0"
        )
    if failure:
        mark_lost()
        raise ProcessError(f"cannot join at --coordinator {address}: {one_line(failure[0])}")


def service() -> Any:
    """Return the client of the coordination service, which has keys with values, and barriers."""
    return distributed.global_state.client
