"""Run a program, and write how long JAX traced, lowered and compiled in it.

    python -m bench.measure.compile_clock FILE MODULE WORDS...

runs `python -m MODULE WORDS...` and writes to FILE, as JSON, the seconds of each part, the number
of compiled programs, and the seconds of the whole process after JAX was imported.
"""

import json
import runpy
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jax.monitoring

PARTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",  # or reading the cache
}


def main(arguments: Sequence[str]) -> None:
    """Run the program. Raises what it raises, after the file is written."""
    if len(arguments) < 2:
        sys.exit("usage: python -m bench.measure.compile_clock FILE MODULE WORDS...")
    file, module, *words = arguments
    found: dict[str, float] = Counter()

    def listen(event: str, seconds: float, **labels) -> None:
        if event in PARTS:
            found[PARTS[event]] += seconds
            found["programs"] += PARTS[event] == "compile"

    jax.monitoring.register_event_duration_secs_listener(listen)
    sys.argv = [module, *words]
    start = time.perf_counter()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        found["seconds"] = time.perf_counter() - start
        Path(file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
