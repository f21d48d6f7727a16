"""How the loss of a language model falls with its size: several sizes trained on the same tokens,
and the power law.

    python -m bench.scaling --data FILE
    python -m bench.scaling --data sample --widths 16 32 64
    python -m bench.scaling --page                  nothing is trained: page and figure from the numbers

Each is `train.lm` as anybody runs it, in the same number of steps; N are its parameters without the
embedding, C = 6 N D the operations of training on D tokens (Kaplan et al., 2020,
https://arxiv.org/abs/2001.08361, section 2.1), whose law is L = (N_c / N)^alpha. The numbers go to
docs/results/scaling.json, page and figure to docs/benchmarks/scaling.md.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import matplotlib

from bench.measure import machine
from bench.pages import figures
from bench.pages.attention import origin
from bench.pages.benchmarks import rounded
from bench.pages.results import add_output, rewrite, write_page, write_results
from bench.pages.tables import digits, table
from train.lm import main as train
from transformer_jax.costs.formulas import six_nd
from transformer_jax.costs.power_laws import PowerLaw, fit_power_law

matplotlib.use("agg")
import matplotlib.pyplot as plt

PROGRAM = "python -m bench.scaling"
HEAD = 16  # features of a head


def one(options: argparse.Namespace, width: int, folder: Path) -> dict:
    """Trains a model of this width; raises RuntimeError where it cannot be."""
    run = folder / str(width)
    # Of the table and the norms; narrow models learn faster: Kaplan et al., 2020, appendix D.6.
    # Muon's rate, of the matrices, is the same for all widths.
    rate = options.learning_rate * (64 / width) ** 0.5
    arguments = [
        "--data", options.data, "--out", str(run), "--embed-dim", str(width),
        "--heads", str(width // HEAD), "--layers", str(options.layers), "--length", str(options.length),
        "--batch-tokens", str(options.batch_tokens), "--max-steps", str(options.steps), "--epochs", "1000",
        "--dropout", "0", "--learning-rate", f"{rate:.4g}", "--seed", str(options.seed), "--dtype", "float32",
    ]  # fmt: skip
    if code := train(arguments):
        raise RuntimeError(f"train.lm ended with code {code} at width {width}")
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))["config"]
    size = report["parameters"] - config["vocab_size"] * width
    tokens = report["steps"] * report["batch_tokens"]
    return {
        "width": width,
        "parameters": size,
        "tokens": tokens,
        "flops": six_nd(size, tokens),
        "loss": report["held_out_loss"],
        "bits_per_byte": report["bits_per_byte"],
        "seconds": report["train_seconds"],
        "learning_rate": rate,
    }


def described(law: PowerLaw) -> dict:
    return {"exponent": law.exponent, "factor": law.factor, "interval": list(law.interval)}


def draw(results: dict):
    rows = results["rows"]
    laws = {
        key: PowerLaw(law["exponent"], law["factor"], tuple(law["interval"]), 0.95)
        for key, law in results["laws"].items()
    }
    figure, all_axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    names = {"parameters": "parameters without the embedding", "flops": "operations of training"}
    for axes, (key, says) in zip(all_axes, names.items(), strict=True):
        x = [row[key] for row in rows]
        axes.loglog(x, [row["loss"] for row in rows], "o", color="#0072b2")
        axes.loglog(x, laws[key](x), "-", color="#d55e00", linewidth=1)
        axes.set_xlabel(says)
        axes.set_title(f"L ~ x^{laws[key].exponent:.3f}", loc="right", fontsize="medium")
    all_axes[0].set_ylabel("held-out loss, nats a token")
    return figure


def page(results: dict) -> list[str]:
    law = results["laws"]["parameters"]
    low, high = law["interval"]
    return [
        "# The loss by the size of the model",
        "",
        *origin([results]),
        "",
        f"Character-level models of {results['layers']} layers on {results['data']}, {results['rows'][0]['tokens']:,} tokens each. "
        f"L ~ N^{digits(law['exponent'])} [{digits(low)}, {digits(high)}] (95%).",
        "",
        "![held-out loss against parameters and against operations, both axes logarithmic](../figures/scaling.svg)",
        "",
        *table(
            ["width", "parameters", "operations", "nats a token", "bits a byte", "seconds"],
            (
                [
                    str(row["width"]),
                    f"{row['parameters']:,}",
                    f"{row['flops']:.2g}",
                    digits(row["loss"]),
                    digits(row["bits_per_byte"]),
                    digits(row["seconds"]),
                ]
                for row in results["rows"]
            ),
        ),
        "",
        "All numbers: `../results/scaling.json`.",
    ]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", default="sample", metavar="WHAT", help="as of train.lm (default: sample)")
    add(
        "--widths", type=int, nargs="+", default=(16, 32, 64, 128), metavar="D", help="16 32 64 128"
    )
    add("--layers", type=int, default=3, metavar="L", help="default: 3")
    add("--length", type=int, default=128, metavar="T", help="default: 128")
    add("--steps", type=int, default=600, metavar="N", help="default: 600")
    add("--batch-tokens", type=int, default=4096, metavar="N", help="default: 4096")
    add(
        "--learning-rate", type=float, default=5e-3, metavar="R", help="at width 64 (default: 5e-3)"
    )
    add("--seed", type=int, default=0, metavar="S", help="default: 0")
    add_output(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser()
    options = parser.parse_args(arguments)
    widths = sorted(set(options.widths))
    if len(widths) < 3 or any(width < HEAD or width % HEAD for width in widths):
        parser.error(f"--widths must be three or more multiples of {HEAD}")
    path = options.docs / "results/scaling.json"

    def write(results: dict) -> list[Path]:
        (options.docs / "figures").mkdir(parents=True, exist_ok=True)
        figure = figures.save(draw(results), options.docs / "figures/scaling.svg")
        return [write_page(options.docs / "benchmarks/scaling.md", page(results)), figure]

    if options.page:
        return rewrite(path, PROGRAM, ("data", "layers", "rows", "laws"), write)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            rows = [one(options, width, Path(folder)) for width in widths]
        except RuntimeError as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 1
    losses = [row["loss"] for row in rows]
    laws = {
        key: fit_power_law([row[key] for row in rows], losses) for key in ("parameters", "flops")
    }
    results = {
        "command": shlex.join([*PROGRAM.split(), *arguments]),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seed": options.seed,
        "seconds": round(time.perf_counter() - start),
        "machine": machine.describe(),
        "data": Path(options.data).name,
        "layers": options.layers,
        "rows": rounded(rows),
        "laws": rounded({key: described(law) for key, law in laws.items()}),
    }
    write_results(path, results)
    print(write(results)[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
