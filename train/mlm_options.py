"""The command line of `train.mlm`: its options, what they may be, and the model and schedule that they make."""

import argparse
from dataclasses import dataclass, replace

from train.optimizers import OptimizerConfig
from train.program import (
    COMMON,
    OptionError,
    add_common,
    add_rates,
    check_numbers,
    check_rates,
    chosen,
    fit_changes,
)
from train.step import FitConfig
from transformer_jax.config import StackConfig, TextEncoderConfig

EPOCHS, BATCH_TOKENS = 5, 8192
SAMPLE_EPOCHS, SAMPLE_BATCH_TOKENS = 20, 2048  # a tenth of a million words: more, smaller steps


@dataclass(frozen=True)
class Recipe:
    """Model and schedule; the size of the vocabulary comes with the texts."""

    model: TextEncoderConfig
    fit: FitConfig
    batch_tokens: int
    mask_rate: float


def recipe_of(options: argparse.Namespace, data: str = "") -> Recipe:
    """A small BERT of the sizes that the options name, for data of this name.

    With what is cheap on a CPU and costs no quality there: RMS norm, no biases, relu.
    """
    D = options.embed_dim
    stack = StackConfig(
        num_layers=options.layers,
        embed_dim=D,
        num_heads=options.heads,
        hidden_dim=4 * D,
        norm="pre",
        first_norm=False,
        final_norm=True,
        norm_kind="rms",
        biases=False,
        activation="relu",
        dropout_rate=options.dropout,
        attention_dropout_rate=0.0,
    )
    model = TextEncoderConfig(
        vocab_size=1,
        max_length=options.length,
        encoder=stack,
        num_segments=0,
        positions=options.positions,
        embedding_dropout_rate=options.dropout,
    )
    fit_config = FitConfig(
        epochs=SAMPLE_EPOCHS if data == "sample" else EPOCHS,
        average_decay=0.99,
        optimizer=OptimizerConfig(
            learning_rate=chosen(options.learning_rate, 5e-3),
            muon_rate=chosen(options.muon_rate, 0.04),
            warmup_fraction=0.05,
            weight_decay=0.1,
            b2=0.99,
        ),
    )
    usual = SAMPLE_BATCH_TOKENS if data == "sample" else BATCH_TOKENS
    tokens = options.batch_tokens or max(usual, options.length)
    return Recipe(model, replace(fit_config, **fit_changes(options)), tokens, options.mask_rate)


def make_parser(description: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.mlm",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--data",
        default="auto",
        metavar="WHAT",
        help="as of train.imdb: auto (default), imdb, sample, or a path",
    )
    add("--text-column", default="text", metavar="NAME", help="of a file (default: text)")
    add("--label-column", default="label", metavar="NAME", help="of a file (default: label)")
    add("--classes", type=int, default=2, metavar="N", help="how many labels (default: 2)")
    add(
        "--tokenizer", default="word:30000", metavar="SPEC", help="word:N (default: 30000) or bpe:N"
    )
    add("--length", type=int, default=256, metavar="T", help="tokens of a row (default: 256)")
    add("--layers", type=int, default=4, metavar="L", help="default: 4")
    add("--embed-dim", type=int, default=256, metavar="D", help="default: 256")
    add("--heads", type=int, default=4, metavar="N", help="default: 4")
    add("--positions", default="rotary", choices=("learned", "rotary"))
    add(
        "--mask-rate",
        type=float,
        default=0.15,
        metavar="P",
        help="the share of the words that are hidden (default: 0.15; more may be better)",
    )
    add("--dropout", type=float, default=0.0, metavar="P", help="default: 0")
    add_rates(add, "0.005", "0.04")
    add_common(add, "mlm")
    return parser


def check(options: argparse.Namespace) -> None:
    """The numbers among the options, before anything is read or made."""
    numbers = (("length", 3), ("layers", 1), ("embed_dim", 1), ("heads", 1), ("classes", 2))
    check_numbers(options, (*COMMON, *numbers))
    check_rates(options)
    if not 0 < options.mask_rate < 1:
        raise OptionError(f"--mask-rate must be above 0 and below 1; got {options.mask_rate}")
    if options.tokenizer == "gpt2":
        raise OptionError("--tokenizer gpt2 has no token for a mask; pass word:N or bpe:N")
    if options.batch_tokens is not None and options.batch_tokens < options.length:
        raise OptionError(
            f"--batch-tokens {options.batch_tokens} is less than one row of {options.length} tokens; "
            "pass more, or a smaller --length"
        )
    try:
        recipe_of(options)
    except ValueError as error:
        raise OptionError(str(error)) from None
