"""Measure this library on a GPU: attention, a training step of BERT-base, and generation.

    python -m bench.gpu                                    all parts
    python -m bench.gpu --passes gradient --kinds full causal padded
    python -m bench.gpu --parts step --rounds 3            the training step only

What is not measured keeps its stored numbers. Each number says on which GPU it was measured.

Attention has 16 heads of 64 features in bfloat16, and as many texts as have --tokens tokens
together. The table of the choice has 8 heads, and every implementation that takes the arguments.
All implementations compute the same numbers and are called interleaved; a ratio is the median of
the ratios within a round. The numbers are written to docs/results/gpu.json, the tables to
docs/benchmarks/gpu.md. `python -m bench.attention` does the same on a CPU.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

# JAX must leave memory to PyTorch, so it does not preallocate. JAX reads this when it is loaded.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax

from bench import attention, generation, plan, utilization
from bench.measure.harness import Contestant
from bench.pages.attention import PASSES, SAYS, chosen_cells
from bench.pages.generation import decode_section
from bench.pages.markdown import described, how_measured, milliseconds, quotient, table
from bench.pages.plan import sizes
from bench.pages.program import Program
from bench.peers import contestants as who
from bench.peers import mask_kinds
from bench.peers.contestants import OURS, Cell
from transformer_jax.attention.kernels.dispatch import IMPLEMENTATIONS, choose_on_accelerator
from transformer_jax.runtime.errors import InputError

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
KINDS = ("full", "causal", "padded", "window", "packed")
HEADS = 16
FUSED = ("jax.nn, cuDNN", "PyTorch", "PyTorch, cuDNN")
PLANNED = (512, 1024, 2048)  # lengths of the table of the choice, of 8 texts
SUBJECT = "name kind dtype gradient batch heads length queries keys".split()
GENERATED, ROUNDS = 64, 3  # tokens, and how often they are timed
STEPS = {
    "no dropout": 0.0,
    "dropout 0.1, except for attention weights": 0.1,
    "dropout 0.1, as BERT was trained": None,
}


def attention_cells(options: argparse.Namespace, keep: Callable[[dict], None]) -> None:
    passes = [what == "gradient" for what in options.passes]
    for length, kind, gradient in itertools.product(options.lengths, options.kinds, passes):
        batch = max(1, options.tokens // length)
        cell = Cell(kind, length, "bfloat16", gradient, batch, HEADS)
        # The alternative to the chosen implementation: blocks, which skip what a mask hides.
        blocks = Contestant(who.our_attention(kind, "blockwise"))
        blocks = who.jax_gradient(blocks.fn) if gradient else blocks
        added = {"blockwise": (blocks, mask_kinds.our_arrays(kind, length))}
        some = added if kind in ("window", "packed") else {}
        found = attention.measure(
            cell, options.seed, options.seconds, only=(OURS, *FUSED, *some), added=some
        )
        keep(found)
        print(attention.line(found), flush=True)


def training_steps(options: argparse.Namespace, keep: Callable[[dict], None]) -> None:
    config, rows, length = utilization.MODELS["bert-base"]
    for name, rate in STEPS.items():
        if rate is None:
            changed = config
        else:
            encoder = replace(config.encoder, dropout_rate=rate, attention_dropout_rate=0.0)
            changed = replace(
                config, encoder=encoder, embedding_dropout_rate=rate, head_dropout_rate=rate
            )
        found = utilization.measure(changed, rows, length, "bfloat16", options.rounds)
        keep({"name": name, "rows": rows, "length": length, **found})
        print(f"{name}: {utilization.line(found)}", flush=True)


def planned(options: argparse.Namespace, keep: Callable[[dict], None]) -> None:
    cases = itertools.product(PLANNED, ("bfloat16", "float32"), options.kinds, (False, True))
    for length, dtype, kind, gradient in cases:
        if dtype == "bfloat16" or kind in plan.IN_BFLOAT16:
            cell = Cell(kind, length, dtype, gradient, batch=8)
            row = plan.measure(cell, options.seed, options.seconds)
            keep(row)
            print(plan.line(row), flush=True)


def decoded(options: argparse.Namespace, keep: Callable[[dict], None]) -> None:
    for batch in options.batches:
        # The pass over the weights is many small kernels here, and slower than a step.
        (row,) = generation.decode(generation.GPT2, [batch], GENERATED, ROUNDS, with_floor=False)
        keep(row)


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Attention and training on a GPU"
    yield ""
    yield (
        "This page compares attention on a GPU with the kernels of cuDNN and PyTorch, and shows "
        "how much of the GPU's speed a training step of BERT-base uses. It is for readers who "
        "use a GPU."
    )
    if results["steps"]:
        best = max(results["steps"], key=lambda step: step["utilization"])
        yield ""
        yield (
            f"A training step of BERT-base reaches up to {best['utilization']:.1%} of the rate of "
            f"large matrix products on an {device_of(best)} ({best['name']})."
        )
    if results["attention"]:
        yield from attention_section(results["attention"], results["tokens"])
    if results["plan"]:
        yield from plan_section(results["plan"])
    if results["steps"]:
        yield from steps_section(results["steps"])
    if results["decode"]:
        yield from decode_section(results["decode"])
    yield from how_measured(
        "gpu.json",
        [f"{run['command']}  # {run['date']}, seed {run['seed']}" for run in results["runs"]],
        described(results["runs"][-1]["machine"]),
    )


def plan_section(rows: Sequence[dict]) -> Iterator[str]:
    names = [name for name in IMPLEMENTATIONS if any(name in row["seconds"] for row in rows)]
    yield from (
        "",
        "## The choice between the implementations",
        "",
        f"{rows[0]['heads']} heads of {who.H} features, {rows[0]['batch']} texts. A dash means "
        "that the implementation does not take the arguments. *÷ fastest* is the time of the "
        "chosen implementation over that of the fastest.",
        "",
    )
    header = ["GPU", "mask", "pass", "dtype", "T", *(f"{name}, ms" for name in names)]
    yield from table(
        [*header, "chosen", "÷ fastest"],
        (
            [device_of(row), row["kind"], "gradient" if row["gradient"] else "forward",
             row["dtype"], row["keys"],
             *(milliseconds(row["seconds"].get(name)) for name in names), chosen(row),
             row["seconds"][chosen(row)] / min(row["seconds"].values())]
            for row in rows
        ),
    )  # fmt: skip


def device_of(record: dict) -> str:
    """Return the short name of the GPU on which the record was measured, such as H100."""
    name = record["device"].split()
    return name[1] if name[0] == "NVIDIA" else record["device"]


def chosen(row: dict) -> str:
    """Return the implementation that is chosen for a row of the table."""
    return choose_on_accelerator(
        sizes(row),
        has_cudnn="cudnn" in row["seconds"],
        has_triton="triton" in row["seconds"],
        is_window=row["kind"] not in ("full", "causal", "padded"),
    )


def attention_section(cells: Sequence[dict], tokens: int) -> Iterator[str]:
    yield from (
        "",
        "## Attention",
        "",
        f"{HEADS} heads of {who.H} features, bfloat16, in batches of {tokens:,} tokens together. "
        f"Ratios are the time of `{OURS}` over that of the other within a round, as median and "
        f"quartiles; below 1 `{OURS}` is faster. `jax.nn` gets padding as the number of real keys, "
        "which must come first. This library gets a mask and detects that by itself.",
    )
    for kind, gradient in itertools.product(KINDS, PASSES):
        ordered = sorted(cells, key=lambda cell: cell["length"])
        chosen, names = chosen_cells(ordered, kind=kind, gradient=gradient)
        peers = [name for name in names if name != OURS]
        if chosen:
            yield from ("", f"### {PASSES[gradient]}, {SAYS[kind]}", "")
        header = ["T", "GPU", f"{OURS}, ms", "TFLOP/s", "chosen", *(f"÷ {name}" for name in peers)]
        yield from table(
            header,
            (
                [cell["length"], device_of(cell), milliseconds(cell["seconds"][OURS]),
                 cell["flops_per_second"][OURS] / 1e12, cell["plan"],
                 *(quotient(cell["ratios"].get(name)) for name in peers)]
                for cell in chosen
            ),
        )  # fmt: skip


def steps_section(steps: Sequence[dict]) -> Iterator[str]:
    yield from (
        "",
        "## A training step of BERT-base",
        "",
        f"{steps[0]['rows']} texts of {steps[0]['length']} tokens, bfloat16, AdamW, with the step "
        "of the training program. Its arithmetic is three times that of the forward pass, counted "
        "on the jaxpr. The ceiling is the rate of the fastest of several square matrix products. "
        "Utilisation is the rate of the step over the ceiling.",
        "",
    )
    yield from table(
        ["", "GPU", "ms", "tokens/s", "TFLOP/s", "ceiling, TFLOP/s", "utilisation", "measured"],
        (
            [step["name"], device_of(step), milliseconds(step["seconds"]),
             f"{step['tokens_per_second']:,.0f}", step["flops_per_second"] / 1e12,
             step["ceiling"] / 1e12, f"{step['utilization']:.1%}",
             step["date"]]
            for step in steps
        ),
    )  # fmt: skip


PARTS = {
    "attention": (attention_cells, "attention"),
    "plan": (planned, "plan"),
    "step": (training_steps, "steps"),
    "decode": (decoded, "decode"),
}
PROGRAM = Program(
    "gpu", __doc__, "results/gpu.json", "benchmarks/gpu.md",
    ("runs", *(records for _, records in PARTS.values())), page,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    add(
        "--lengths", type=int, nargs="+", default=LENGTHS, metavar="T", help="default: 512 to 16384"
    )
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of mask (default: all)")
    add("--passes", nargs="+", choices=("forward", "gradient"), default=("forward", "gradient"))
    add("--tokens", type=int, default=16384, help="tokens in a batch of attention (default: 16384)")
    batches = "texts that are generated together (default: 1 8 32 128)"
    add("--batches", type=int, nargs="+", default=(1, 8, 32, 128), metavar="B", help=batches)
    add("--seconds", type=float, default=0.2, help="per contestant and cell (default: 0.2)")
    add("--rounds", type=int, default=9, help="timed rounds of training steps (default: 9)")
    add("--seed", type=int, default=0, help="of all random numbers (default: 0)")
    options = PROGRAM.parse(parser, arguments)
    if min(*options.lengths, *options.batches, options.tokens, options.rounds) < 1:
        parser.error("--lengths, --batches, --tokens and --rounds must be 1 or more")
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    """Measure the requested parts, write each record, and return the results."""
    if jax.default_backend() != "gpu":
        raise InputError("JAX sees no GPU here; on a CPU use python -m bench.attention")
    results = _stored(options)
    for part in (part for part in PARTS if part in options.parts):
        measure, records = PARTS[part]

        def keep(record: dict, records: str = records) -> None:
            run = PROGRAM.stamp(options) | {"device": _device(), "seed": options.seed}
            new = {**record, "date": run["date"], "device": run["device"]}
            others = [old for old in results[records] if _subject(old) != _subject(new)]
            results[records] = [*others, new]
            runs = [old for old in results["runs"] if old["command"] != run["command"]]
            results["runs"] = [old for old in runs if _has_records(old, results)] + [run]
            PROGRAM.keep(results, options.docs)

        measure(options, keep)
    return results


def _stored(options: argparse.Namespace) -> dict:
    """Return the stored results, or none if their batches have another number of tokens."""
    none = {"tokens": options.tokens, "runs": [], **{name: [] for _, name in PARTS.values()}}
    if not PROGRAM.path(options.docs).exists():
        return none
    stored = PROGRAM.read(options.docs)
    return stored if stored["tokens"] == options.tokens else none


def _has_records(run: dict, results: dict) -> bool:
    """Return whether a record of the day and the GPU of the run is kept."""
    kept = [record for _, name in PARTS.values() for record in results[name]]
    return any(all(r[name] == run[name] for name in ("date", "device")) for r in kept)


def _subject(record: dict) -> tuple:
    """Return what is measured; a new record replaces the old one of its subject."""
    return tuple(record.get(name) for name in SUBJECT)


def _device() -> str:
    return jax.devices()[0].device_kind


if __name__ == "__main__":
    sys.exit(main())
