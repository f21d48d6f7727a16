"""Compare the losses of training on meshes of simulated devices with those on one device.

    python -m bench.mesh
    python -m bench.mesh --page          measure nothing, write the page

Small models of each kind are trained by the step of the training programs, with AdamW and with
Muon, on eight devices that XLA makes of one CPU. Weights, batches and dropout bits are the same on
every mesh. The command fails if a loss differs by more than the page promises. No time is measured.
The numbers are written to docs/results/mesh.json, the page to docs/benchmarks/mesh.md.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import numpy as np
from tqdm import tqdm

from bench.measure.harness import Disagreement
from bench.pages.markdown import origin, table
from bench.pages.program import Program
from bench.peers.mesh_runs import DEVICES, MESHES, MODELS, ROWS, Case, Run, on_mesh, trained
from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.errors import InputError

LAYERS = 1  # of each stack; a step of more takes longer to compile
BOUNDS = {"float32": 1e-5, "bfloat16": 1e-3}
ROWS_OF_TABLE = {
    f"{model}, {optimizer}": Case(model, optimizer)
    for model in MODELS
    for optimizer in ("AdamW", "Muon")
} | {
    "one key head, 97 tokens, untied head": Case(
        "language model", kv_heads=1, vocab_size=97, tied_head=False
    ),
    "blockwise attention, T=256": Case("language model", length=256, implementation="blockwise"),
    "language model in bfloat16": Case("language model", dtype="bfloat16"),
}


def simulate_devices() -> None:
    """Make XLA divide the CPU into `DEVICES` devices, and compile faster for them.

    Raises InputError if JAX has started with another number of them.
    """
    if jax.config.jax_num_cpu_devices != DEVICES:
        try:
            jax.config.update("jax_num_cpu_devices", DEVICES)
        except RuntimeError:
            raise InputError(
                f"JAX has started with {jax.device_count()} devices; set "
                f"JAX_NUM_CPU_DEVICES={DEVICES}"
            ) from None
    jax.config.update("jax_platforms", "cpu")
    # Leaves out LLVM's optimizations, which take longer here than they save, and none of XLA's.
    jax.config.update("jax_disable_most_optimizations", True)


def distances(alone: list[float], case: Case, meshes: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the largest distance of a loss on each mesh from the one on one device, `alone`."""
    return [float(np.abs(np.subtract(trained(case, sizes), alone)).max()) for sizes in meshes]


def step_on(case: Case, sizes: tuple[int, ...]) -> dict:
    """Return the collectives of a compiled step, and the share of the state on a device."""
    with on_mesh(sizes):
        run = Run.of(case)
        whole, part = run.state_bytes()
        return {"collectives": run.collectives(), "share": part / whole}


def mesh_name(sizes: Sequence[int]) -> str:
    return "({})".format(", ".join(map(str, sizes)))


def shown_difference(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.1e}"


def page(results: dict, shown: dict[str, str]) -> list[str]:
    """Return the lines of the page."""
    meshes = [mesh_name(sizes) for sizes in results["meshes"]]
    kinds = sorted({kind for step in results["steps_of"] for kind in step["collectives"]})
    bounds, (low, high) = results["bounds"], results["losses"]
    return [
        "# The loss by mesh",
        "",
        "This page shows how far the losses of training on a mesh of devices are from those on one "
        "device. It is for readers who train on several devices.",
        "",
        f"The largest difference of a loss over {results['steps']} steps, by mesh (data, fsdp, "
        f"tensor), of models with stacks of {counted(results['layers'], 'layer')}:",
        "",
        *table(
            ["", *meshes],
            ([name, *map(shown_difference, row)] for name, row in results["differences"].items()),
        ),
        "",
        f"They must not exceed {bounds['float32']:g}, or {bounds['bfloat16']:g} in bfloat16. The "
        f"losses are from {low:.2f} to {high:.2f}; between 4 and 8, neighbours in float32 are "
        f"4.8e-7 apart. A batch has {ROWS} rows; dropout is on, activations are smooth (GELU). "
        "Weights, batches and dropout bits do not depend on the mesh, so what remains is the order "
        "of sums.",
        "",
        "The collectives in the compiled step of a language model of "
        f"{counted(results['layers'], 'layer')}, and the share of the training state (parameters, "
        "their average and the optimizer's moments) that one device holds:",
        "",
        *table(
            ["mesh", *kinds, "share of the state"],
            (
                [mesh, *(step["collectives"].get(kind, 0) for kind in kinds), step["share"]]
                for mesh, step in zip(meshes, results["steps_of"], strict=True)
            ),
        ),
        "",
        "With `fsdp` each matrix is gathered once. With `tensor` a layer has two all-reduces "
        "forward and two backward; `tests/parallel/test_mesh_training.py` explains each number. "
        "XLA makes no reduce-scatter for CPUs.",
        "",
        "[Several devices and hosts](../guides/scale-out.md) says how to choose a mesh.",
        *origin("mesh.json", [results]),
    ]


PROGRAM = Program(
    "mesh", __doc__, "results/mesh.json", "benchmarks/mesh.md",
    ("meshes", "steps", "bounds", "losses", "differences", "layers", "steps_of"), page,
    has_small=True,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    parser.add_argument("--steps", type=int, default=50, help="training steps (default: 50)")
    options = PROGRAM.parse(parser, arguments)
    if options.steps < 1:
        parser.error("--steps must be 1 or more")
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    """Train every case on every mesh and return the results.

    Raises Disagreement if a loss differs by more than `BOUNDS`.
    """
    simulate_devices()
    names = list(ROWS_OF_TABLE)[2:3] if options.small else list(ROWS_OF_TABLE)
    meshes = MESHES[2:3] if options.small else MESHES
    steps = 2 if options.small else options.steps
    cases = {name: replace(ROWS_OF_TABLE[name], layers=LAYERS, steps=steps) for name in names}
    alone = {name: trained(case) for name, case in tqdm(cases.items(), "one device")}
    differences = {
        name: distances(alone[name], case, meshes) for name, case in tqdm(cases.items(), "meshes")
    }
    plain = Case("language model", layers=LAYERS, steps=steps)
    results = PROGRAM.stamp(options) | {
        "seed": 0,
        "meshes": meshes,
        "steps": steps,
        "bounds": BOUNDS,
        "losses": [min(map(min, alone.values())), max(map(max, alone.values()))],
        "differences": differences,
        "layers": LAYERS,
        "steps_of": [step_on(plain, sizes) for sizes in meshes],
    }
    too_far = [n for n in names if not max(differences[n]) <= BOUNDS[cases[n].dtype]]
    if too_far:
        PROGRAM.write(results, options.docs)
        raise Disagreement(f"{', '.join(too_far)}: further from one device than promised")
    return results


if __name__ == "__main__":
    sys.exit(main())
