"""The command line of `train.lm`: its options, what they may be, and the model and schedule that
they make.
"""

import argparse
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
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.nn.config import StackConfig


@dataclass(frozen=True)
class Recipe:
    """Model and schedule; the size of the vocabulary comes with the texts."""

    model: LanguageModelConfig
    fit: FitConfig
    batch_tokens: int


def recipe_of(options: argparse.Namespace) -> Recipe:
    """A small GPT of the sizes that the options name, with what is cheap on a CPU and costs no
    quality there: RMS norm, no biases, relu."""
    D, heads = options.embed_dim, options.heads
    stack = StackConfig(
        num_layers=options.layers,
        embed_dim=D,
        num_heads=heads,
        hidden_dim=4 * D,
        norm="pre",
        final_norm=True,
        norm_kind="rms",
        biases=False,
        activation="relu",
        dropout_rate=options.dropout,
        attention_dropout_rate=0.0,
    )
    model = LanguageModelConfig(
        vocab_size=1,
        max_length=options.length,
        decoder=stack,
        positions=options.positions,
        window=options.window,
        embedding_dropout_rate=options.dropout,
    )
    fit_config = FitConfig(
        epochs=10,
        average_decay=0.99,
        optimizer=OptimizerConfig(
            learning_rate=chosen(options.learning_rate, 5e-3),
            muon_rate=chosen(options.muon_rate, 0.04),
            warmup_fraction=0.05,
            weight_decay=0.1,
            b2=0.99,
        ),
    )
    tokens = options.batch_tokens or 8 * options.length
    return Recipe(model, replace(fit_config, **fit_changes(options)), tokens)


def make_parser(description: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.lm",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--data",
        default="sample",
        metavar="WHAT",
        help="a text file, a folder of .txt files, hub:NAME, or sample (default)",
    )
    add("--tokenizer", default="char", metavar="SPEC", help="char (default), bpe:N or gpt2")
    add("--gpt2-files", metavar="DIR", help="encoder.json and vocab.bpe, if tiktoken has none")
    add("--length", type=int, default=256, metavar="T", help="tokens of a window (default: 256)")
    add("--layers", type=int, default=4, metavar="L", help="default: 4")
    add("--embed-dim", type=int, default=128, metavar="D", help="default: 128")
    add("--heads", type=int, default=2, metavar="N", help="default: 2")
    add("--positions", default="rotary", choices=("learned", "sinusoidal", "rotary", "alibi"))
    add(
        "--window", type=int, metavar="W", help="a token sees so many before its own (default: all)"
    )
    add(
        "--dropout",
        type=float,
        default=0.0,
        metavar="P",
        help="default: 0; for more than some five passes 0.1",
    )
    add_rates(add, "0.005", "0.04")
    add_common(add, "lm")
    return parser


def check(options: argparse.Namespace) -> None:
    """The numbers among the options, before anything is read or made."""
    check_numbers(
        options,
        (*COMMON, ("length", 2), ("layers", 1), ("embed_dim", 1), ("heads", 1), ("window", 0)),
    )
    check_rates(options)
    if options.batch_tokens is not None and options.batch_tokens < options.length:
        raise OptionError(
            f"--batch-tokens {options.batch_tokens} is less than one window of {options.length} tokens; "
            "pass more, or a smaller --length"
        )
    try:
        recipe_of(options)
    except ValueError as error:
        raise OptionError(str(error)) from None
