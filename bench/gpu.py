"""Measure this library on a GPU: attention beside cuDNN and PyTorch, and a BERT-base training step.

    python -m bench.gpu                                    both parts
    python -m bench.gpu --passes gradient --kinds full causal padded
    python -m bench.gpu --parts step --rounds 3            the training step only

Attention has 16 heads of 64 features in bfloat16, and as many texts as have --tokens tokens
together. All implementations compute the same numbers and are called interleaved; a ratio is the
median of the ratios within a round. The numbers are written to docs/results/gpu.json, the tables to
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

from bench import attention, utilization
from bench.measure.harness import Contestant
from bench.pages.attention import PASSES, SAYS, chosen_cells
from bench.pages.markdown import how_measured, milliseconds, quotient, table
from bench.pages.program import Program
from bench.peers import contestants as who
from bench.peers import mask_kinds
from bench.peers.contestants import OURS, Cell
from transformer_jax.runtime.errors import InputError

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
KINDS = ("full", "causal", "padded", "window", "packed")
HEADS = 16
FUSED = ("jax.nn, cuDNN", "PyTorch", "PyTorch, cuDNN")
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


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page."""
    ran = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in ran["versions"].items())
    yield "# Attention and training on a GPU"
    yield ""
    yield (
        "This page compares attention on a GPU with the kernels of cuDNN and PyTorch, and shows "
        "how much of the GPU's speed a training step of BERT-base uses. It is for readers who "
        "train on a GPU."
    )
    if results["steps"]:
        best = max(results["steps"], key=lambda step: step["utilization"])
        yield ""
        yield (
            f"A training step of BERT-base reaches up to {best['utilization']:.1%} of the rate of "
            f"large matrix products on this GPU ({best['name']})."
        )
    if results["attention"]:
        yield from attention_section(results["attention"], results["tokens"])
    if results["steps"]:
        yield from steps_section(results["steps"])
    yield from how_measured(
        "gpu.json",
        [f"{results['command']}  # {results['date']}, seed {results['seed']}"],
        [
            f"- {'; '.join(ran['devices'])}",
            f"- Python {ran['python']}, {versions}",
        ],
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
        chosen, names = chosen_cells(cells, kind=kind, gradient=gradient)
        peers = [name for name in names if name != OURS]
        if chosen:
            yield from ("", f"### {PASSES[gradient]}, {SAYS[kind]}", "")
        header = ["T", f"{OURS}, ms", "TFLOP/s", "chosen", *(f"÷ {name}" for name in peers)]
        yield from table(
            header,
            (
                [cell["length"], milliseconds(cell["seconds"][OURS]),
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
        ["", "ms", "tokens/s", "TFLOP/s", "ceiling, TFLOP/s", "utilisation"],
        (
            [step["name"], milliseconds(step["seconds"]), f"{step['tokens_per_second']:,.0f}",
             step["flops_per_second"] / 1e12, step["ceiling"] / 1e12, f"{step['utilization']:.1%}"]
            for step in steps
        ),
    )  # fmt: skip


PROGRAM = Program(
    "gpu", __doc__, "results/gpu.json", "benchmarks/gpu.md", ("machine", "attention", "steps"), page
)
PARTS = {"step": (training_steps, "steps"), "attention": (attention_cells, "attention")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: both")
    add(
        "--lengths", type=int, nargs="+", default=LENGTHS, metavar="T", help="default: 512 to 16384"
    )
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of mask (default: all)")
    add("--passes", nargs="+", choices=("forward", "gradient"), default=("forward", "gradient"))
    add("--tokens", type=int, default=16384, help="tokens in a batch of attention (default: 16384)")
    add("--seconds", type=float, default=0.2, help="per contestant and cell (default: 0.2)")
    add("--rounds", type=int, default=9, help="timed rounds of training steps (default: 9)")
    add("--seed", type=int, default=0, help="of all random numbers (default: 0)")
    options = PROGRAM.parse(parser, arguments)
    if min(*options.lengths, options.tokens, options.rounds) < 1:
        parser.error("--lengths, --tokens and --rounds must be 1 or more")
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    """Measure the requested parts, write each record, and return the results."""
    if jax.default_backend() != "gpu":
        raise InputError("JAX sees no GPU here; on a CPU use python -m bench.attention")
    results = {"seed": options.seed, "tokens": options.tokens, "attention": [], "steps": []}
    for part in (part for part in PARTS if part in options.parts):
        measure, records = PARTS[part]

        def keep(record: dict, records: str = records) -> None:
            results[records].append(record)
            PROGRAM.keep(PROGRAM.stamp(options) | results, options.docs)

        measure(options, keep)
    return PROGRAM.stamp(options) | results


if __name__ == "__main__":
    sys.exit(main())
