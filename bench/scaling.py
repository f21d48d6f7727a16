"""Train language models of several sizes on the same tokens, and fit a power law to their loss.

    python -m bench.scaling --data FILE
    python -m bench.scaling --data sample --widths 16 32 64
    python -m bench.scaling --page                  measure nothing, write the page

Each model is trained by `train.lm` as any user runs it, for the same number of steps. N is the
number of parameters without the embedding, and C = 6 N D is the number of operations of training on
D tokens (Kaplan et al., 2020, https://arxiv.org/abs/2001.08361, section 2.1), whose law is L = (N_c
/ N)^alpha. The numbers are written to docs/results/scaling.json, page and figure to
docs/benchmarks/scaling.md.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from bench.measure.harness import Disagreement
from bench.pages.markdown import digits, origin, table
from bench.pages.plots import subplots
from bench.pages.program import Program
from train.lm import main as train
from transformer_jax.costs.formulas import six_nd
from transformer_jax.costs.power_laws import PowerLaw, fit_power_law

HEAD = 16  # features per head


def one(options: argparse.Namespace, width: int, folder: Path) -> dict:
    """Train a model of this width; raise Disagreement if training fails."""
    run = folder / str(width)
    # AdamW's rate, for the embedding and the norms. Narrow models need a larger one: Kaplan et al.,
    # 2020, appendix D.6. Muon's rate, for the matrices, is the same for all widths.
    rate = options.learning_rate * (64 / width) ** 0.5
    arguments = [
        "--data", options.data, "--out", str(run), "--embed-dim", str(width),
        "--heads", str(width // HEAD), "--layers", str(options.layers),
        "--length", str(options.length), "--batch-tokens", str(options.batch_tokens),
        "--max-steps", str(options.steps), "--epochs", "1000", "--dropout", "0",
        "--learning-rate", f"{rate:.4g}", "--seed", str(options.seed), "--dtype", "float32",
    ]  # fmt: skip
    if code := train(arguments):
        raise Disagreement(f"train.lm ended with code {code} at width {width}")
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


def figures(results: dict) -> dict[str, Figure]:
    """Draw the loss against parameters and against operations, with the fitted laws."""
    names = {"parameters": "parameters without the embedding", "flops": "operations of training"}
    with subplots(1, 2, (9, 3.6), sharey=True) as (figure, both):
        for axes, (key, says) in zip(both, names.items(), strict=True):
            law, x = results["laws"][key], [row[key] for row in results["rows"]]
            y = PowerLaw(law["exponent"], law["factor"], tuple(law["interval"]), 0.95)(x)
            axes.loglog(x, [row["loss"] for row in results["rows"]], "o", color="#0072b2")
            axes.loglog(x, y, "-", color="#d55e00", linewidth=1)
            axes.set_xlabel(says)
            axes.set_title(f"L ~ x^{law['exponent']:.3f}", loc="right", fontsize="medium")
        both[0].set_ylabel("held-out loss, nats a token")
    return {"scaling": figure}


def page(results: dict, shown: dict[str, str]) -> list[str]:
    """Return the lines of the page."""
    law, rows = results["laws"]["parameters"], results["rows"]
    return [
        "# The loss by the size of the model",
        "",
        "This page shows how the held-out loss of small language models falls with their size. It "
        "is for readers who choose the size of a model.",
        "",
        f"Character-level models of {results['layers']} layers were trained on "
        f"{rows[0]['tokens']:,} tokens of {results['data']} each. With N parameters besides the "
        f"embedding, the loss is L ~ N^{digits(law['exponent'])}, with a 95% confidence interval "
        f"of the exponent of [{', '.join(map(digits, law['interval']))}].",
        "",
        "![held-out loss against parameters and against operations, both axes logarithmic]"
        f"({shown['scaling']})",
        "",
        *table(
            ["width", "parameters", "operations", "nats per token", "bits per byte", "seconds"],
            (
                [row["width"], f"{row['parameters']:,}", f"{row['flops']:.2g}", row["loss"],
                 row["bits_per_byte"], row["seconds"]]
                for row in rows
            ),
        ),
        *origin("scaling.json", [results]),
    ]  # fmt: skip


PROGRAM = Program(
    "scaling", __doc__, "results/scaling.json", "benchmarks/scaling.md",
    ("data", "layers", "rows", "laws"), page, figures,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--data", default="sample", metavar="WHAT", help="as for train.lm (default: sample)")
    add(
        "--widths", type=int, nargs="+", default=(16, 32, 64, 128), metavar="D", help="16 32 64 128"
    )
    add("--layers", type=int, default=3, metavar="L", help="layers (default: 3)")
    add("--length", type=int, default=128, metavar="T", help="tokens per text (default: 128)")
    add("--steps", type=int, default=600, metavar="N", help="training steps (default: 600)")
    add("--batch-tokens", type=int, default=4096, metavar="N", help="per batch (default: 4096)")
    add(
        "--learning-rate", type=float, default=5e-3, metavar="R", help="at width 64 (default: 5e-3)"
    )
    add("--seed", type=int, default=0, metavar="S", help="default: 0")
    options = PROGRAM.parse(parser, arguments)
    widths = sorted(set(options.widths))
    if len(widths) < 3 or any(width < HEAD or width % HEAD for width in widths):
        parser.error(f"--widths must be three or more multiples of {HEAD}")
    return PROGRAM.run(options, partial(measured, options, widths))


def measured(options: argparse.Namespace, widths: Sequence[int]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        rows = [one(options, width, Path(folder)) for width in widths]
    losses = [row["loss"] for row in rows]
    laws = {
        key: described(fit_power_law([row[key] for row in rows], losses))
        for key in ("parameters", "flops")
    }
    return PROGRAM.stamp(options) | {
        "seed": options.seed,
        "data": Path(options.data).name,
        "layers": options.layers,
        "rows": rows,
        "laws": laws,
    }


if __name__ == "__main__":
    sys.exit(main())
