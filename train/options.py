"""The command line of `train.imdb`: its options, what they may be, and what they change of a recipe."""

import argparse
from dataclasses import replace

from train.recipes import FAST, RECIPES, SAMPLE, Recipe


class OptionError(ValueError):
    """An option that does not fit the data or the other options."""


def make_parser(description: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.imdb",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--data",
        default="auto",
        metavar="WHAT",
        help="auto (default): IMDb, or the built-in sample where the hub cannot be reached; imdb; sample; "
        "or a path: a folder of train/test.parquet, aclImdb or its .tar.gz, a CSV, TSV, JSONL or Parquet file",
    )
    add("--text-column", default="text", metavar="NAME", help="of a file (default: text)")
    add("--label-column", default="label", metavar="NAME", help="of a file (default: label)")
    add(
        "--classes",
        type=int,
        default=2,
        metavar="N",
        help="how many different labels there are (default: 2); another number in the data is a mistake",
    )
    add("--recipe", choices=RECIPES, default="fast", help="model and schedule (default: fast)")
    add("--tokenizer", metavar="SPEC", help="bpe:N, word:N or gpt2 (default: the recipe's)")
    add("--gpt2-files", metavar="DIR", help="encoder.json and vocab.bpe, if tiktoken has none")
    add("--max-length", type=int, metavar="N", help="how many tokens of a text are read")
    add("--truncate", choices=("head", "head-tail"), help="which part of a longer text")
    add("--epochs", type=int, metavar="E", help="passes over the training texts")
    add("--max-steps", type=int, metavar="N", help="stop after N updates")
    add("--batch-tokens", type=int, metavar="N", help="tokens in a batch, padding included")
    add("--dtype", choices=("float32", "bfloat16"), help="default: the faster here, measured")
    add("--seed", type=int, default=0, metavar="S", help="of everything random (default: 0)")
    add("--out", metavar="DIR", help="the run folder (default: runs/imdb-DATE-TIME)")
    add(
        "--resume",
        metavar="RUN",
        help="go on with a run that was stopped, bit for bit; with a larger --epochs also one that is finished",
    )
    add(
        "--checkpoint-minutes",
        type=float,
        metavar="M",
        help="between checkpoints (default: 5); also made at every best validation score",
    )
    add("--no-baseline", action="store_true", help="leave out the linear model")
    add("--tensorboard", action="store_true", help="also write TensorBoard events")
    return parser


def check(options: argparse.Namespace) -> None:
    """The numbers among the options, before anything is read or made."""
    for name, least in (
        ("max_length", 3),
        ("epochs", 0),
        ("max_steps", 0),
        ("batch_tokens", 3),
        ("seed", 0),
        ("classes", 2),
        ("checkpoint_minutes", 0),
    ):
        value = getattr(options, name)
        # Beyond 32 bits two seeds are one, and no array has an axis of 31.
        if value is not None and not least <= value < 2**31:
            bound = f"less than {2**31}" if value >= 2**31 else f"at least {least}"
            raise OptionError(f"--{name.replace('_', '-')} must be {bound}; got {value}")


def recipe_of(options: argparse.Namespace, data: str) -> Recipe:
    """The recipe for this data, with what the command line changes."""
    recipe = RECIPES[options.recipe]
    if recipe is FAST and data == "sample":
        recipe = SAMPLE
    changes = {
        name: getattr(options, name)
        for name in ("epochs", "max_steps", "seed", "checkpoint_minutes")
        if getattr(options, name) is not None
    }
    return replace(
        recipe,
        tokenizer=options.tokenizer or recipe.tokenizer,
        truncate=options.truncate or recipe.truncate,
        model=replace(recipe.model, max_length=options.max_length or recipe.model.max_length),
        fit=replace(recipe.fit, **changes),
    )
