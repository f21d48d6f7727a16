"""The command line of `train.imdb`: its options, what they may be, and what they change of a recipe."""

import argparse
from dataclasses import replace

from train.program import COMMON, add_common, check_numbers, fit_changes
from train.recipes import FAST, RECIPES, SAMPLE, Recipe


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
    add("--tokenizer", metavar="SPEC", help="bpe:N, word:N, char or gpt2 (default: the recipe's)")
    add("--gpt2-files", metavar="DIR", help="encoder.json and vocab.bpe, if tiktoken has none")
    add("--max-length", type=int, metavar="N", help="how many tokens of a text are read")
    add("--truncate", choices=("head", "head-tail"), help="which part of a longer text")
    add_common(add, "imdb")
    add("--no-baseline", action="store_true", help="leave out the linear model")
    return parser


def check(options: argparse.Namespace) -> None:
    """The numbers among the options, before anything is read or made."""
    check_numbers(options, (*COMMON, ("max_length", 3), ("classes", 2)))


def recipe_of(options: argparse.Namespace, data: str) -> Recipe:
    """The recipe for this data, with what the command line changes."""
    recipe = RECIPES[options.recipe]
    if recipe is FAST and data == "sample":
        recipe = SAMPLE
    return replace(
        recipe,
        tokenizer=options.tokenizer or recipe.tokenizer,
        truncate=options.truncate or recipe.truncate,
        model=replace(recipe.model, max_length=options.max_length or recipe.model.max_length),
        fit=replace(recipe.fit, **fit_changes(options)),
    )
