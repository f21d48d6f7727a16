"""Measure the implementations of attention on many sizes, and compare the chosen one with the rest.

    python -m bench.plan                  half an hour: masks, batches, lengths, dtypes and passes
    python -m bench.plan --kinds causal   a part; the other stored rows of this processor are kept
    python -m bench.plan --page           measure nothing, write the page

Calls of the implementations are interleaved. The limits of
transformer_jax/attention/kernels/thresholds.py are fitted to the stored table, which has a part for
each processor, and a test compares the two. The numbers are written to docs/results/plan.json as
they are measured.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax

from bench.attention import TOLERANCE, error
from bench.measure import harness
from bench.measure.turns import summary, take_turns
from bench.pages.plan import page
from bench.pages.program import Program
from bench.peers import contestants as who
from bench.peers.contestants import Cell
from bench.peers.mask_kinds import KINDS, our_arrays
from transformer_jax.attention.kernels.dispatch import IMPLEMENTATIONS
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.processor import processor_name, widest_instructions

LENGTHS, BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048), (1, 8, 64)
MOST_TOKENS = 2**14  # of a batch
IN_BFLOAT16 = ("full", "causal")  # kinds; the others are alike
# A few queries of many keys, as in generation with a cache.
MANY_KEYS, FEW_KINDS = {1: (32, 128, 512, 2048, 8192), 16: (512, 2048, 8192)}, ("full", "padded")


def problems(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the problems to measure, small ones first."""
    sizes = itertools.product(options.lengths, options.batches)
    for (length, batch), dtype, kind, gradient in itertools.product(
        sizes, options.dtypes, options.kinds, (False, True)
    ):
        if batch * length <= MOST_TOKENS and (dtype == "float32" or kind in IN_BFLOAT16):
            yield Cell(kind, length, dtype, gradient, batch)
    lengths = [(queries, keys) for queries, several in MANY_KEYS.items() for keys in several]
    few = itertools.product(lengths, options.batches, FEW_KINDS)
    for (queries, keys), batch, kind in few:
        if options.few and kind in options.kinds and batch * keys <= MOST_TOKENS:
            yield Cell(kind, keys, "float32", False, batch, queries=queries)


def measure(cell: Cell, seed: int, seconds: float) -> dict[str, Any]:
    """Time every implementation that can compute the problem, and return a row of the table.

    Raises Disagreement if one has wrong values.
    """
    inputs = cell.inputs(seed)
    expected = {0: who.definition(cell, inputs[0], 0)}
    calls = {}
    for name in IMPLEMENTATIONS:
        attend = who.our_attention(cell.kind, name)
        contestant = who.jax_gradient(attend) if cell.gradient else harness.Contestant(attend)
        try:
            call, placed = harness.ready(contestant, inputs, our_arrays(cell.kind, cell.length))
        except ValueError as problem:
            if "cannot be had" not in str(problem):
                raise
            continue
        worst = error(cell, call(*placed[0]), expected)
        if worst > TOLERANCE[cell.dtype]:
            raise harness.Disagreement(f"{name}, {cell}: wrong by {worst:.2g} of the largest value")
        turns = itertools.cycle(placed)
        calls[name] = lambda call=call, turns=turns: call(*next(turns))
    times = take_turns(calls, seconds)
    return {
        "kind": cell.kind, "dtype": cell.dtype, "gradient": cell.gradient, "batch": cell.batch,
        "heads": cell.heads, "queries": cell.queries or cell.length, "keys": cell.length,
        **{name: found for name, found in summary(times, "reference").items() if name != "ratios"},
    }  # fmt: skip


def line(row: dict) -> str:
    what = "gradient" if row["gradient"] else "forward"
    sizes = f"B={row['batch']} T={row['queries']} S={row['keys']}"
    times = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in row["seconds"].items())
    return f"{row['kind']} {row['dtype']} {what} {sizes}: {times}"


def problem_of(row: dict) -> tuple:
    """Return what identifies a row; a new row replaces the old one of its problem."""
    names = ("kind", "dtype", "gradient", "batch", "heads", "queries", "keys")
    return tuple(row[name] for name in names)


PROGRAM = Program(
    "plan", __doc__, "results/plan.json", "benchmarks/plan.md", ("machines",), page
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", metavar="T", default=LENGTHS, help="lengths of texts")
    add("--batches", type=int, nargs="+", metavar="B", default=BATCHES, help="numbers of texts")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of mask (default: all)")
    add("--dtypes", nargs="+", choices=TOLERANCE, default=tuple(TOLERANCE), help="default: both")
    add("--few", action=argparse.BooleanOptionalAction, default=True, help="few queries, many keys")
    add("--seconds", type=float, default=0.15, help="per implementation and row (default: 0.15)")
    add("--seed", type=int, default=0, help="of all random numbers (default: 0)")
    options = PROGRAM.parse(parser, arguments)
    if min(*options.lengths, *options.batches) < 1:
        parser.error("--lengths and --batches must be 1 or more")
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    """Measure the problems, write each row, and return the results."""
    if jax.default_backend() != "cpu":
        raise InputError("the table is of CPUs; set JAX_PLATFORMS=cpu")
    # A damaged file is an error: it may have the tables of other processors.
    is_stored = PROGRAM.path(options.docs).exists()
    machines = PROGRAM.read(options.docs)["machines"] if is_stored else []
    machine = {"processor": processor_name(), "instructions": widest_instructions()}
    this = next((m for m in machines if machine.items() <= m.items()), None)
    if this is None:
        this = machine | {"runs": [], "rows": []}
        machines.append(this)
    runs = this["runs"]
    for cell in problems(options):
        row = measure(cell, options.seed, options.seconds)
        print(line(row), flush=True)
        kept = [other for other in this["rows"] if problem_of(other) != problem_of(row)]
        this |= {
            "rows": [*kept, row],
            "runs": [*runs, PROGRAM.stamp(options) | {"seed": options.seed}],
        }
        PROGRAM.keep({"machines": machines}, options.docs)
    return {"machines": machines}


if __name__ == "__main__":
    sys.exit(main())
