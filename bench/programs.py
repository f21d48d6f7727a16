"""Measure the share of a device's peak that the training programs reach.

    python -m bench.programs                    a model of the size of GPT-2, and the defaults
    python -m bench.programs --small --docs D   a tiny model, a few steps, to check that it runs

Every program is run as from its command line, on generated texts, with a mesh of one device, for
which the programs set none.
The first half of its steps compiles and fills caches, the second half is timed. Its arithmetic is
three times that of the forward pass (`costs.formulas.training_flops`), padding included; the
optimizer and the head of the masked language model do not count. The ceiling is the fastest of
several square matrix products in the dtype of the program. The numbers are written to
docs/results/programs.json, the table to docs/benchmarks/programs.md.
"""

import argparse
import importlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from bench.pages.markdown import how_measured, milliseconds, table
from bench.pages.program import Program
from bench.utilization import EDGES, LARGE, ceiling
from train.trainer import fit
from transformer_jax.cli.mesh_figures import mesh_figures
from transformer_jax.costs.devices import DEVICES
from transformer_jax.costs.formulas import training_flops
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.folder_files import CONFIG
from transformer_jax.serialization.run_folder import read_spec

MESH = "data=1,fsdp=1,tensor=1"
SMALL = (("language model, smallest", "lm", "--length 64 --layers 1 --embed-dim 16 --heads 1", 4),)
LARGE_LM = "--layers 12 --embed-dim 768 --heads 12 --length 1024 --batch-tokens 32768 --muon-rate 0"
# Name, program, its arguments and its steps, which are fewer than those of an epoch.
DEFAULTS = (
    ("classifier, default", "imdb", "--no-baseline", 200),
    ("language model, default", "lm", "", 200),
    ("masked language model, default", "mlm", "", 120),
    ("translator, default", "translate", "", 200),
)
# In this order, because the peak of memory that JAX reports is that of the process.
LARGE_RUNS = (
    ("language model, size of GPT-2, --remat", "lm", f"{LARGE_LM} --remat", 36),
    ("language model, size of GPT-2", "lm", LARGE_LM, 36),
)


class Stopwatch:
    """A wrapper of the training step that times the second half of the steps of a run."""

    def __init__(self, steps: int):
        self.half, self.steps = steps // 2, steps
        self.shapes: Counter[tuple[int, ...]] = Counter()  # of the timed batches
        self.seen: set[tuple[int, ...]] = set()
        self.count = 0
        self.began = self.ended = 0.0

    def make(self, make: Any, *arguments: Any) -> Any:
        """Return the training step of `make`, timed."""
        step = make(*arguments)

        def timed(state, batch):
            shape = tuple(np.shape(jax.tree.leaves(batch)[0]))
            result = step(state, batch)
            self.count += 1
            if self.count <= self.half or shape not in self.seen:  # it was compiled now
                jax.block_until_ready(result)
                self.began = time.perf_counter()
                self.shapes.clear()
            else:
                self.shapes[shape] += 1
            self.seen.add(shape)
            if self.count == self.steps:
                jax.block_until_ready(result)
                self.ended = time.perf_counter()
            return result

        return timed


def measure(name: str, program: str, arguments: str, steps: int, dtype: str, most: float) -> dict:
    """Run a program and return its rate of arithmetic, and the share of the ceiling `most`."""
    watch, before = Stopwatch(steps), peak_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        given = ["--data", "sample", "--out", str(folder), "--mesh", MESH, "--dtype", dtype]
        given += ["--max-steps", str(steps), *arguments.split()]
        module = importlib.import_module(f"train.{program}")
        patched = mock.patch.object(
            fit, "make_train_step", partial(watch.make, fit.make_train_step)
        )
        with patched:
            code = module.main(given)
        if code != 0 or watch.count != steps:
            raise InputError(f"train.{program} ended after {watch.count} of {steps} steps")
        spec = read_spec(folder / CONFIG)
    seconds, config = watch.ended - watch.began, spec.config
    flops = sum(n * training_flops(config, T, batch=B) for (B, T), n in watch.shapes.items())
    tokens = sum(n * B * T for (B, T), n in watch.shapes.items())
    number, peak, beside = watch.shapes.total(), peak_bytes(), {}
    if len(watch.shapes) == 1 and (device := published_device(str(jax.devices()[0].device_kind))):
        beside = predicted(spec, device, dtype, *next(iter(watch.shapes)), "--remat" in arguments)
    return {
        "name": name,
        "command": f"python -m train.{program} --mesh {MESH} --dtype {dtype} {arguments}".rstrip(),
        "steps": number,
        "step_seconds": seconds / number,
        **({"peak_bytes": peak} if peak > before else {}),
        **beside,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "flops_per_second": flops / seconds,
        "share": flops / seconds / most,
    }


def predicted(
    spec: Any, device: str, dtype: str, rows: int, length: int, remat: bool
) -> dict[str, float]:
    """Return the bytes and the seconds of a step that `cost --mesh` predicts."""
    given = {"mesh": MESH, "device": device, "dtype": dtype, "batch": rows, "length": length}
    found = mesh_figures(spec, argparse.Namespace(**given))["remat" if remat else "plain"]
    return {
        "predicted_bytes": found["bytes"],
        "predicted_seconds": found["seconds"]["overlapped"],
        "predicted_limit": found["limit"],
    }


def peak_bytes() -> int:
    """Return the most bytes of the device's memory that this process used, or 0 if unknown."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the ceiling and every program."""
    runs = SMALL if options.small else (*LARGE_RUNS, *DEFAULTS)
    edges = (256,) if options.small else EDGES.get(jax.default_backend(), LARGE)
    most = ceiling(options.dtype, edges, rounds=1 if options.small else 9)
    results: dict[str, Any] = {"dtype": options.dtype, "ceiling": most, "programs": []}
    for name, program, arguments, steps in runs:
        if options.programs and program not in options.programs:
            continue
        found = measure(name, program, arguments, steps, options.dtype, most)
        results["programs"].append(found)
        PROGRAM.keep(PROGRAM.stamp(options) | results, options.docs)
        print(line(found), flush=True)
    return PROGRAM.stamp(options) | results


def line(found: dict[str, Any]) -> str:
    return (
        f"{found['name']}: {found['tokens_per_second']:,.0f} tokens/s, "
        f"{found['flops_per_second'] / 1e12:.3g} TFLOP/s, {found['share']:.1%} of the ceiling"
    )


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page."""
    runs, devices = results["programs"], "; ".join(results["machine"]["devices"])
    best, device = max(runs, key=lambda run: run["share"]), published_device(devices)
    peak = DEVICES[device].peak(results["dtype"]) if device else None
    yield "# The training programs on an accelerator"
    yield ""
    yield (
        "This page shows the share of an accelerator's peak that the training programs reach, run "
        "from their command lines on one device. It is for readers who train on one. With a mesh "
        "of one device the programs set no mesh: nothing is split. "
        f"The highest share is {best['share']:.1%} ({best['name']}). The default models are made "
        "for a CPU: one of their steps is too little work for an accelerator."
    )
    yield ""
    yield (
        f"The ceiling is {results['ceiling'] / 1e12:,.0f} TFLOP/s, the rate of the fastest of "
        f"several square matrix products in {results['dtype']}, summed in float32."
        + (f" The published peak is {peak / 1e12:,.0f} TFLOP/s." if peak else "")
        + " The arithmetic of a step is three times that of the forward pass, padding included; "
        "what `--remat` computes again does not count."
    )
    yield ""
    yield from table(
        ["", "tokens/s", "TFLOP/s", "of the ceiling", *["of the published peak"] * bool(peak)],
        (
            [run["name"], f"{run['tokens_per_second']:,.0f}",
             f"{run['flops_per_second'] / 1e12:.3g}", f"{run['share']:.1%}",
             *([f"{run['flops_per_second'] / peak:.1%}"] if peak else [])]
            for run in runs
        ),
    )  # fmt: skip
    if both := [run for run in runs if "peak_bytes" in run and "predicted_bytes" in run]:
        yield from (
            "",
            "`python -m transformer_jax cost --mesh` predicts the memory and the shortest time of "
            "a step from the sizes of the model and published figures. XLA may keep less for the "
            "gradient than JAX's rules say, which are what the prediction counts:",
            "",
        )
        yield from table(
            ["", "ms", "predicted at the peak", "GB at most", "predicted"],
            (
                [run["name"], milliseconds(run["step_seconds"]),
                 f"{milliseconds(run['predicted_seconds'])} ({run['predicted_limit']})",
                 f"{run['peak_bytes'] / 1e9:.3g}", f"{run['predicted_bytes'] / 1e9:.3g}"]
                for run in both
            ),
        )  # fmt: skip
    ran = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in ran["versions"].items())
    yield from how_measured(
        "programs.json",
        [
            f"{results['command']}  # {results['date']}, {results['seconds']} s, which runs",
            *(f"{run['command']}" for run in runs),
        ],
        [f"- {devices}", f"- Python {ran['python']}, {versions}"],
    )


def published_device(devices: str) -> str | None:
    """Return the name in `costs.devices` of a device, or None if it is not there."""
    known = DEVICES.items()
    return next((key for key, each in known if each.name.removesuffix(" SXM") in devices), None)


PROGRAM = Program(
    "programs",
    __doc__,
    "results/programs.json",
    "benchmarks/programs.md",
    ("machine", "programs", "ceiling"),
    page,
    has_small=True,
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="default: bfloat16")
    add("--programs", nargs="+", choices=("lm", "mlm", "translate", "imdb"), help="default: all")
    options = PROGRAM.parse(parser, arguments)
    return PROGRAM.run(options, partial(measured, options))


if __name__ == "__main__":
    sys.exit(main())
