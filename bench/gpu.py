"""What a GPU makes of this library: attention beside cuDNN's and PyTorch's kernels, and a training
step of BERT's size.

    python -m bench.gpu                                    all of it
    python -m bench.gpu --passes gradient --kinds full causal padded
    python -m bench.gpu --parts step --rounds 3            the training step alone

As many texts as come to --tokens together, 16 heads of 64 features, bfloat16. Everybody is called
in turns and computes the definition; a ratio is the median of those within a round. The numbers go
to docs/results/gpu.json, the tables to docs/benchmarks/gpu.md. `python -m bench.attention` is the
same for a processor.
"""

import argparse
import itertools
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# PyTorch needs memory beside JAX: it is not taken all at once. Read when JAX is loaded.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax

from bench import attention, utilization
from bench.measure import machine
from bench.measure.harness import Contestant
from bench.pages.attention import PASSES, SAYS, milliseconds, quotient
from bench.pages.benchmarks import rounded
from bench.pages.results import add_output, rewrite, write_page, write_results
from bench.pages.tables import digits, table
from bench.peers import contestants as who
from bench.peers.contestants import OURS, Cell
from transformer_jax.runtime.errors import InputError

PROGRAM = "python -m bench.gpu"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
KINDS = ("full", "causal", "padded", "window", "packed")
HEADS = 16
FUSED = ("jax.nn, cuDNN", "PyTorch", "PyTorch, cuDNN")
STEPS = {
    "no dropout": 0.0,
    "dropout 0.1, but of no attention weights": 0.1,
    "dropout 0.1, as BERT was trained": None,
}


def attention_cells(options: argparse.Namespace, keep: Callable[[dict], None]) -> None:
    passes = [what == "gradient" for what in options.passes]
    for length, kind, gradient in itertools.product(options.lengths, options.kinds, passes):
        batch = max(1, options.tokens // length)
        cell = Cell(kind, length, "bfloat16", gradient, batch, HEADS)
        # What the plan leaves: blocks, which skip what a mask hides.
        blocks = Contestant(who.our_attention(kind, "blockwise"))
        blocks = who.jax_gradient(blocks.fn) if gradient else blocks
        added = {"blockwise": (blocks, who.kinds.our_arrays(kind, length))}
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


def page(results: dict[str, Any]) -> list[str]:
    ran = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in ran["versions"].items())
    lines = [
        "# On a GPU",
        "",
        f"Written by `{results['command']}`, {results['date']}, seed {results['seed']}.",
        f"{'; '.join(ran['devices'])}; Python {ran['python']}, {versions}.",
    ]
    if results["attention"]:
        lines += [
            "",
            "## Attention",
            "",
            f"{HEADS} heads of {who.H} features, bfloat16, as many texts as come to {results['tokens']:,} tokens. Ratios are the time",
            f"of `{OURS}` over that of the other within a round, median and quartiles: below 1 it is the faster one.",
            "`jax.nn` is told of padding as a number of keys, which it must know to stand in front; this library finds out.",
        ]
    for kind, gradient in itertools.product(KINDS, PASSES):
        chosen = [
            cell
            for cell in results["attention"]
            if (cell["kind"], cell["gradient"]) == (kind, gradient) and "seconds" in cell
        ]
        if not chosen:
            continue
        names = list(dict.fromkeys(name for cell in chosen for name in cell["seconds"]))
        peers = [name for name in names if name != OURS]
        rows = (
            [
                f"{cell['length']}",
                milliseconds(cell["seconds"][OURS]),
                digits(cell["flops_per_second"][OURS] / 1e12),
                cell["plan"],
                *(quotient(cell["ratios"].get(name)) for name in peers),
            ]
            for cell in chosen
        )
        header = ["T", f"{OURS}, ms", "TFLOP/s", "chosen", *(f"÷ {name}" for name in peers)]
        lines += ["", f"### {PASSES[gradient]}, a query sees {SAYS[kind]}", ""]
        lines += table(header, rows)
    if results["steps"]:
        first = results["steps"][0]
        lines += [
            "",
            "## A training step of BERT-base",
            "",
            f"{first['rows']} texts of {first['length']} tokens, bfloat16, AdamW, by the step of the training program. Its arithmetic is",
            "three times that of the forward pass, counted on the jaxpr; the ceiling is the fastest of some square products.",
            "",
        ]
        rows = (
            [
                step["name"],
                milliseconds(step["seconds"]),
                f"{step['tokens_per_second']:,.0f}",
                digits(step["flops_per_second"] / 1e12),
                digits(step["ceiling"] / 1e12),
                f"{step['utilization']:.1%}",
            ]
            for step in results["steps"]
        )
        lines += table(["", "ms", "tokens/s", "TFLOP/s", "ceiling, TFLOP/s", "utilisation"], rows)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    parts = {"attention": attention_cells, "step": training_steps}
    add("--parts", nargs="+", choices=parts, default=list(parts), help="default: both")
    add(
        "--lengths", type=int, nargs="+", default=LENGTHS, metavar="T", help="default: 512 to 16384"
    )
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of mask; default: all")
    add("--passes", nargs="+", choices=("forward", "gradient"), default=("forward", "gradient"))
    add("--tokens", type=int, default=16384, help="of a batch of attention (default: 16384)")
    add("--seconds", type=float, default=0.2, help="for a contestant in a cell (default: 0.2)")
    add("--rounds", type=int, default=9, help="of training steps that are timed (default: 9)")
    add("--seed", type=int, default=0, help="of every random number (default: 0)")
    add_output(parser)
    options = parser.parse_args(arguments)
    if min(*options.lengths, options.tokens, options.rounds) < 1:
        parser.error("--lengths, --tokens and --rounds must be 1 or more")
    path = options.docs / "results" / "gpu.json"

    def write(results: dict) -> Path:
        return write_page(options.docs / "benchmarks/gpu.md", page(results))

    if options.page:
        return rewrite(path, PROGRAM, ("machine", "attention", "steps"), write)
    if jax.default_backend() != "gpu":
        print(
            "error: JAX sees no GPU here; python -m bench.attention is for a processor",
            file=sys.stderr,
        )
        return 2
    try:
        results = measured(options, shlex.join([*PROGRAM.split(), *arguments]), parts, path)
    except (InputError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; what was measured stands in {path}", file=sys.stderr)
        return 130
    print(write(results))
    return 0


def measured(
    options: argparse.Namespace, command: str, parts: dict[str, Callable], path: Path
) -> dict[str, Any]:
    """What is asked for, written to the file record by record."""
    results: dict[str, Any] = {
        "command": command,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seed": options.seed,
        "tokens": options.tokens,
        "machine": machine.describe(),
        "attention": [],
        "steps": [],
    }
    for part, records in (("step", "steps"), ("attention", "attention")):
        if part not in options.parts:
            continue

        def keep(record: dict, records: str = records) -> None:
            results[records].append(rounded(record))
            results["machine"] = machine.describe()  # PyTorch is there once it was called
            write_results(path, results)

        parts[part](options, keep)
    return results


if __name__ == "__main__":
    sys.exit(main())
