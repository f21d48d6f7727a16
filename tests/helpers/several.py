"""Several processes of this machine that train as one, with a device or more each."""

import atexit
import importlib
import os
import runpy
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.forked import forked
from tests.helpers.kills import ROOT

PATIENCE = 120  # seconds until the processes must have ended


class Several:
    """A training program in several processes, started at once; a context that kills what is left.

    `settings` replace names of modules, {"MODULE:NAME": value}, in all processes; those of `first`
    in the first one only.
    """

    def __init__(self, module: str, arguments, log: Path, number=2, *, devices=1, **settings):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        log.mkdir(exist_ok=True)
        self.logs = [(log / f"{i}.out", log / f"{i}.err") for i in range(number)]
        only = settings.pop("only", range(number))
        each = settings.pop("each", [[]] * number)
        first = settings.pop("first", {})
        cluster = ["--coordinator", address, "--processes", str(number), "--process"]
        self.processes = {
            i: forked(
                _train,
                module,
                [*map(str, arguments), *each[i], *cluster, str(i)],
                self.logs[i],
                devices,
                settings.get("settings", {}) | (first if i == 0 else {}),
            )
            for i in only
        }

    def __enter__(self) -> "Several":
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes.values():
            process.kill()  # what is left
            process.join()

    def send(self, index: int, number: int) -> None:
        """Send a signal to one of the processes."""
        os.kill(self.processes[index].pid, number)

    def wait_for(self, condition) -> None:
        """Wait until the condition holds."""
        limit = time.monotonic() + PATIENCE
        while not condition():
            ended = [p.exitcode for p in self.processes.values() if p.exitcode is not None]
            assert not ended and time.monotonic() < limit, self.said()
            time.sleep(0.01)

    def codes(self) -> list[int | None]:
        """Wait for the end of all processes, and return their exit codes."""
        limit = time.monotonic() + PATIENCE
        for process in self.processes.values():
            process.join(max(0.0, limit - time.monotonic()))
        return [process.exitcode for process in self.processes.values()]

    def said(self) -> list[tuple[str, str]]:
        """Return what each process wrote to standard output and to standard error."""
        return [(out.read_text(), error.read_text()) for out, error in self.logs if error.exists()]


def errors(several: Several) -> list[str]:
    """Return what the processes wrote to standard error, without lines that C++ wrote."""
    return ["\n".join(_without_cpp(error)) for _, error in several.said()]


def _without_cpp(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(("W0", "E0", "I0", "W1"))]


def _train(module: str, arguments: list[str], logs, devices: int, settings: Mapping) -> None:
    """Run the program in this process."""
    sys.path.insert(0, str(ROOT))
    for number, path in ((1, logs[0]), (2, logs[1])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_disable_most_optimizations", True)
    for name, value in settings.items():
        owner, _, attribute = name.partition(":")
        setattr(importlib.import_module(owner), attribute, value)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:
        atexit._run_exitfuncs()  # a process of multiprocessing leaves them out
        raise
