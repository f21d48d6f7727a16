"""The command line of `train.translate`: its options, what they may be, and the model and schedule
that they make.
"""

import argparse
import math
from dataclasses import dataclass, replace

from train.optim.optimizers import OptimizerConfig
from train.trainer.launcher import (
    COMMON,
    OptionError,
    add_common,
    add_rates,
    check_numbers,
    check_rates,
    chosen,
    fit_changes,
)
from train.trainer.step import FitConfig
from transformer_jax.models.config import SequenceToSequenceConfig
from transformer_jax.nn.config import StackConfig


@dataclass(frozen=True)
class Recipe:
    """Model and schedule; the size of the vocabulary comes with the texts."""

    tokenizer: str
    model: SequenceToSequenceConfig
    fit: FitConfig
    batch_tokens: int
    label_smoothing: float
    buckets: int  # how many lengths batches come in


def recipe_of(options: argparse.Namespace) -> Recipe:
    """A small model of 2017, of the sizes that the options name."""
    sample = options.data == "sample"
    D = options.embed_dim or 128
    dropout = chosen(options.dropout, 0.0 if sample else 0.15)
    stack = StackConfig(
        num_layers=options.layers or (2 if sample else 3),
        embed_dim=D,
        num_heads=options.heads,
        hidden_dim=(2 if sample else 4) * D,
        norm=options.norm,
        final_norm=options.norm == "pre",
        dropout_rate=dropout,
        attention_dropout_rate=0.0,
    )
    model = SequenceToSequenceConfig(
        vocab_size=1,
        max_length=options.max_length,
        encoder=stack,
        decoder=stack,
        embedding_dropout_rate=dropout,
    )
    config = FitConfig(
        epochs=3 if sample else 12,
        average_decay=0.99,
        optimizer=OptimizerConfig(
            learning_rate=chosen(options.learning_rate, 2e-3 if sample else 4e-3),
            muon_rate=chosen(options.muon_rate, 0.0 if sample else 0.02),
            warmup_fraction=0.1,
            weight_decay=0.01,
            b2=0.98,
        ),
    )
    return Recipe(
        options.tokenizer or ("bpe:400" if sample else "bpe:6000"),
        model,
        replace(config, **fit_changes(options)),
        options.batch_tokens or (1024 if sample else 4096),
        chosen(options.label_smoothing, 0.0 if sample else 0.1),
        1 if sample else 3,
    )


def make_parser(description: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.translate",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--data",
        default="sample",
        metavar="WHAT",
        help="a folder of train/val/test*.LANGUAGE(.gz), a .tsv, hub:NAME, or sample (default)",
    )
    add("--source", default="en", metavar="LANGUAGE", help="default: en")
    add("--target", default="de", metavar="LANGUAGE", help="default: de")
    add("--tokenizer", metavar="SPEC", help="char or bpe:N, of both languages (default: bpe:6000)")
    add("--max-length", type=int, default=128, metavar="N", help="of a text (default: 128)")
    add("--layers", type=int, metavar="L", help="of each stack (default: 3)")
    add("--embed-dim", type=int, metavar="D", help="default: 128")
    add("--heads", type=int, default=4, metavar="N", help="default: 4")
    add("--norm", choices=("pre", "post"), default="pre", help="default: pre; 2017's is post")
    add("--dropout", type=float, metavar="P", help="default: 0.15")
    add("--label-smoothing", type=float, metavar="E", help="default: 0.1; 0 of the sample")
    add("--beams", type=int, default=4, metavar="W", help="of the search at the end (default: 4)")
    add("--alpha", type=float, default=0.6, metavar="A", help="length penalty (default: 0.6)")
    add_rates(add, "0.004; of the sample 0.002", "0.02; of the sample 0")
    add_common(add, "translate")
    return parser


def check(options: argparse.Namespace) -> None:
    """The numbers among the options, before anything is read or made."""
    check_numbers(
        options,
        (*COMMON, ("max_length", 3), ("layers", 1), ("embed_dim", 1), ("heads", 1), ("beams", 1)),
    )
    check_rates(options)
    if not 0.0 <= options.alpha < math.inf:
        raise OptionError(f"--alpha must be 0 or more; got {options.alpha}")
    if not 0.0 <= (options.label_smoothing or 0.0) < 1.0:
        raise OptionError(f"--label-smoothing must be in [0, 1); got {options.label_smoothing}")
    if options.batch_tokens is not None and options.batch_tokens < options.max_length:
        raise OptionError(
            f"--batch-tokens {options.batch_tokens} is less than one text of {options.max_length} tokens; "
            "pass more, or a smaller --max-length"
        )
    try:
        recipe_of(options)
    except ValueError as error:
        raise OptionError(str(error)) from None
