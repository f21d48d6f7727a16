"""The command line of `train.mlm`: its options, what they may be, and the model and schedule that
they make.
"""

import argparse
from dataclasses import asdict, dataclass, replace

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
from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.nn.config import StackConfig


@dataclass(frozen=True)
class Sizes:
    """What the options change."""

    length: int
    layers: int
    embed_dim: int
    heads: int
    epochs: int
    batch_tokens: int


SIZES = Sizes(length=256, layers=4, embed_dim=256, heads=4, epochs=1, batch_tokens=8192)
# A quarter of a million tokens of 600 words: two minutes.
SAMPLE_SIZES = Sizes(length=128, layers=2, embed_dim=128, heads=2, epochs=10, batch_tokens=2048)


@dataclass(frozen=True)
class Recipe:
    """Model and schedule; the size of the vocabulary comes with the texts."""

    model: TextEncoderConfig
    fit: FitConfig
    batch_tokens: int
    mask_rate: float
    dtype: str | None  # of the computation; None: that of train/optim/precision.py


def recipe_of(options: argparse.Namespace, data: str = "") -> Recipe:
    """A small BERT of the sizes that the options name, for data of this name.

    With what is cheap on a CPU and costs no quality there: RMS norm, no biases, relu.
    """
    usual = SAMPLE_SIZES if data == "sample" else SIZES
    given = {k: v for k in asdict(usual) if (v := getattr(options, k)) is not None}
    sizes = replace(usual, **given)
    D = sizes.embed_dim
    stack = StackConfig(
        num_layers=sizes.layers,
        embed_dim=D,
        num_heads=sizes.heads,
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
        max_length=sizes.length,
        encoder=stack,
        num_segments=0,
        positions=options.positions,
        embedding_dropout_rate=options.dropout,
    )
    fit_config = FitConfig(
        epochs=sizes.epochs,
        average_decay=0.99,
        optimizer=OptimizerConfig(
            learning_rate=chosen(options.learning_rate, 5e-3),
            muon_rate=chosen(options.muon_rate, 0.04),
            warmup_fraction=0.05,
            weight_decay=0.1,
            b2=0.99,
        ),
    )
    tokens = chosen(options.batch_tokens, max(sizes.batch_tokens, sizes.length))
    dtype = "float32" if data == "sample" else None  # its words are few, and few digits tell them
    fit_config = replace(fit_config, **fit_changes(options))
    return Recipe(model, fit_config, tokens, options.mask_rate, dtype)


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
    for name, axis, what in (
        ("length", "T", "tokens of a row "), ("layers", "L", ""), ("embed_dim", "D", ""), ("heads", "N", ""),
    ):  # fmt: skip
        usual = f"default: {getattr(SIZES, name)}, for the sample {getattr(SAMPLE_SIZES, name)}"
        option = f"--{name.replace('_', '-')}"
        add(option, type=int, metavar=axis, help=f"{what}({usual})" if what else usual)
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
    try:
        recipe = recipe_of(options, options.data)
    except ValueError as error:
        raise OptionError(str(error)) from None
    if recipe.batch_tokens < recipe.model.max_length:
        raise OptionError(
            f"--batch-tokens {recipe.batch_tokens} is less than one row of {recipe.model.max_length} tokens; "
            "pass more, or a smaller --length"
        )
