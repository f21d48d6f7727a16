"""Compare attention with other implementations by length, mask, dtype and pass, interleaved.

    python -m bench.attention                   half an hour: T = 128 to 4096, and memory
    python -m bench.attention --dtypes float32  half of that
    python -m bench.attention --full            8192 and 16384 too
    python -m bench.attention --parts cells --kinds full --lengths 2048 --add    repeat a part
    python -m bench.attention --page            measure nothing, write the page

All implementations compute the same numbers and are called A B C A B C ...; a ratio is the median
of the ratios within a round. An implementation is timed only if its values agree with the
definition (float64, by hand). An implementation that would exceed the memory or time of LIMITS is
left out, and the page says so. The numbers are written to docs/results/attention.json as they are
measured.
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bench.measure import harness, machine
from bench.measure.harness import Contestant
from bench.measure.turns import summary, take_turns
from bench.pages.attention import figures, page
from bench.pages.program import Program
from bench.peers import contestants as who
from bench.peers import resident_memory
from bench.peers.contestants import OURS, Cell
from bench.peers.mask_kinds import KINDS
from transformer_jax.runtime.errors import InputError

LENGTHS, LONG = (128, 256, 512, 1024, 2048, 4096), (8192, 16384)
MEMORY_LENGTHS, MEMORY_OF_PEERS = (1024, 2048, 4096, 8192, 16384), 4096
PARTS = ("cells", "memory")
SLOW = 1.0  # seconds of a call above which a cell has fewer rounds
LIMITS = {"bytes": 6e9, "seconds": 40.0}
# Largest error over the largest value. Sums are taken in another order; in bfloat16 other
# implementations also round intermediate values.
TOLERANCE = {
    "float32": 2e-5 if jax.default_backend() == "cpu" else 1e-2,
    "bfloat16": 5e-2,
}
# Logits and weights; the backward pass stores the gradients of both as well.
STORED = {False: 2, True: 4}
STORE_ALL = ("reference", "jax.nn", "flax.nnx", "PyTorch, written out")
ALL_HEADS_UP_TO = 2**26  # logits; above, one head is checked, since the definition is slow


def error(cell: Cell, value: Any, expected: dict[int, tuple[np.ndarray, ...]]) -> float:
    """Return the largest error over the largest value, of the output and of each gradient."""
    worst = 0.0
    found = [harness.to_numpy(x) for x in jax.tree.leaves(value)]
    for head, right in expected.items():
        for one, other in zip(found, right, strict=True):
            if not np.isfinite(one[:, :, head]).all():
                return np.inf
            worst = max(worst, np.abs(one[:, :, head] - other).max() / np.abs(other).max())
    return float(worst)


def too_large(name: str, cell: Cell, seconds_before: dict[str, tuple[int, float]]) -> str | None:
    """Return why a contestant is not tried, or None if it is."""
    itemsize = 2 if name == "PyTorch, written out" and cell.dtype != "float32" else 4
    taken = STORED[cell.gradient] * itemsize * cell.batch * cell.heads * cell.length**2
    if name in STORE_ALL and taken > LIMITS["bytes"]:
        return f"about {taken / 1e9:.0f} GB"
    length, seconds = seconds_before.get(name, (cell.length, 0.0))
    seconds *= (cell.length / length) ** 2
    return f"about {seconds:.0f} s a call" if seconds > LIMITS["seconds"] else None


def measure(
    cell: Cell,
    seed: int,
    seconds: float,
    *,
    only: Iterable[str] | None = None,
    added: dict[str, tuple[Contestant, tuple]] | None = None,
    seconds_before: dict[str, tuple[int, float]] | None = None,
) -> dict[str, Any]:
    """Prepare, check and time all contestants of one cell, interleaved.

    `added` are further contestants, `only` restricts them to some names, and `seconds_before` holds
    earlier times from which too slow calls are predicted.
    """
    inputs = cell.inputs(seed)
    heads = (
        range(cell.heads)
        if cell.batch * cell.heads * cell.length**2 <= ALL_HEADS_UP_TO
        else [cell.length // 128 % cell.heads]
    )
    expected = [{head: who.definition(cell, args, head) for head in heads} for args in inputs]
    calls, left_out, errors, slow = {}, {}, {}, False
    for name, (contestant, arrays) in (who.contestants(cell) | (added or {})).items():
        if only is not None and name not in only:
            continue
        reason = too_large(name, cell, seconds_before or {})
        if reason is None:
            call, placed = harness.ready(contestant, inputs, arrays)
            took, worst = 0.0, 0.0  # the second call has no one-time costs
            for args, right in zip(placed, expected, strict=True):
                if took > LIMITS["seconds"] / 4:
                    break  # one set of numbers is enough
                one, value = harness.clock(call, *args)
                took, worst = one, max(worst, error(cell, value, right))
                del value
            errors[name] = worst
            slow = slow or took > SLOW
            if worst > TOLERANCE[cell.dtype]:
                reason = f"wrong by {worst:.2g} of the largest value"
            elif took > LIMITS["seconds"]:
                reason = f"{took:.0f} s a call"
        if reason is not None:
            left_out[name] = reason
            continue
        turns = itertools.cycle(placed)
        calls[name] = lambda call=call, turns=turns: call(*next(turns))
    record = {
        "kind": cell.kind,
        "length": cell.length,
        "dtype": cell.dtype,
        "gradient": cell.gradient,
        "batch": cell.batch,
        "plan": cell.plan,
        "flops": cell.flops,
        "seed": seed,
        "errors": errors,
        "left_out": left_out,
        "load_average": machine.load_average(),
    }
    if OURS not in calls:
        return record
    times = take_turns(calls, seconds, least=3 if slow else 5)
    record |= summary(times, OURS)
    record |= {
        f"ratios of {name}": summary(times, name)["ratios"] for name in added or () if name in calls
    }
    rates = {name: cell.flops / median for name, median in record["seconds"].items()}
    return record | {"flops_per_second": rates}


def cells(options: argparse.Namespace) -> Iterable[dict]:
    """Measure the whole matrix of cells, short lengths first.

    Their times tell which contestants to skip at longer lengths.
    """
    before = {}
    for length in options.lengths:
        for dtype, what, kind in itertools.product(options.dtypes, options.passes, options.kinds):
            cell = Cell(kind, length, dtype, what == "gradient")
            known = before.setdefault((dtype, what, kind), {})
            found = measure(cell, options.seed, options.seconds, seconds_before=known)
            known |= {name: (length, s) for name, s in found.get("seconds", {}).items()}
            yield found


def memory(options: argparse.Namespace) -> Iterable[dict]:
    """Measure memory in child processes: ours at every length, the others at one."""
    if not resident_memory.can_be_read():
        return
    for what in options.passes:
        cell = Cell("full", MEMORY_OF_PEERS, "float32", what == "gradient")
        for name in who.contestants(cell):
            lengths = MEMORY_LENGTHS if name == OURS else [MEMORY_OF_PEERS]
            lengths = [length for length in lengths if length <= options.longest]
            taken = resident_memory.in_child(
                "bench.peers.resident_memory", name, cell.kind, cell.dtype, what, *lengths
            ) if lengths else {}  # fmt: skip
            for length, grown in taken.items():
                yield {
                    "name": name, "kind": cell.kind, "dtype": cell.dtype, "length": length,
                    "gradient": cell.gradient, "bytes": grown,
                }  # fmt: skip


def key(record: dict) -> tuple:
    """Return what identifies a record; a new record replaces the old one of its key."""
    names = ("name", "kind", "dtype", "gradient", "batch", "length")
    return tuple(record.get(name) for name in names)


def line(record: dict) -> str:
    what = "with gradient" if record["gradient"] else "forward"
    head = (
        f"{record['kind']} {record['dtype']} {what} B={record.get('batch', 1)} T={record['length']}"
    )
    if "bytes" in record:
        return f"{head}: {record['name']} {record['bytes'] / 2**20:.0f} MiB"
    times = [f"{name} {1e3 * s:.3g} ms" for name, s in record.get("seconds", {}).items()]
    left_out = map(" ".join, record["left_out"].items())
    return ", ".join([f"{head} ({record['plan']})", *times, *left_out])


PROGRAM = Program(
    "attention", __doc__, "results/attention.json", "benchmarks/attention.md", ("runs", *PARTS),
    page, figures,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    default = " ".join(map(str, LENGTHS))
    add("--lengths", type=int, nargs="+", metavar="T", help=f"lengths (default: {default})")
    add("--full", action="store_true", help=f"lengths {' and '.join(map(str, LONG))} too")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of mask (default: all)")
    add("--dtypes", nargs="+", choices=TOLERANCE, default=tuple(TOLERANCE), help="default: both")
    add("--passes", nargs="+", choices=("forward", "gradient"), default=("forward", "gradient"))
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to measure (default: all)")
    add("--seconds", type=float, default=0.4, help="per contestant and cell (default: 0.4)")
    add("--longest", type=int, default=MEMORY_LENGTHS[-1], help="longest length of the memory part")
    add("--seed", type=int, default=0, help="of all random numbers (default: 0)")
    add("--json", type=Path, metavar="FILE", help=f"file of results (DOCS/{PROGRAM.file})")
    add("--add", action="store_true", help="keep the stored records that are not measured again")
    options = PROGRAM.parse(parser, arguments)
    options.lengths = sorted({*(options.lengths or LENGTHS), *(LONG if options.full else ())})
    if options.lengths[0] < 1:
        parser.error("--lengths must be 1 or more")
    if options.full:
        options.longest = max(options.longest, LONG[-1])
    program = replace(PROGRAM, file=str(options.json.resolve())) if options.json else PROGRAM
    wrong = []
    code = program.run(options, partial(measured, options, program, wrong))
    for text in wrong:
        print(f"wrong: {text}", file=sys.stderr)
    return code or int(bool(wrong))


def measured(options: argparse.Namespace, program: Program, wrong: list[str]) -> dict:
    """Measure the requested parts, write each record, and return the results.

    Contestants with wrong values are appended to `wrong`.
    """
    empty = {"runs": [], **{part: [] for part in PARTS}}
    results = program.read(options.docs) if options.add else empty
    results |= {"tolerance": TOLERANCE, "limits": LIMITS}
    before, this = results["runs"], None
    for part in options.parts:
        for record in {"cells": cells, "memory": memory}[part](options):
            print(line(record), flush=True)
            reasons = record.get("left_out", {}).items()
            wrong += [f"{name}: {line(record)}" for name, reason in reasons if "wrong" in reason]
            kept = [other for other in results[part] if key(other) != key(record)]
            this = program.stamp(options) | {"seed": options.seed}
            results |= {part: [*kept, record], "runs": [*before, this]}
            program.keep(results, options.docs)
    if this is None:
        reason = (
            f"--longest must be {MEMORY_LENGTHS[0]} or more to measure memory; got "
            f"{options.longest}"
            if resident_memory.can_be_read()
            else "memory is read from Linux's /proc, only for arrays on a CPU"
        )
        raise InputError(f"{reason}; nothing was written")
    return results


if __name__ == "__main__":
    sys.exit(main())
