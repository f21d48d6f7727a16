"""The command line of `train.imdb`: its options, what they may be, and what they change of a
recipe.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

from train.recipes.imdb import (
    FAST,
    FAST_UNLABELLED,
    FAST_VECTORS,
    FINETUNE,
    FINETUNE_LORA,
    FINETUNE_RUN,
    FINETUNE_RUN_SAMPLE,
    RECIPES,
    SAMPLE,
    Recipe,
)
from train.trainer.launcher import (
    COMMON,
    OptionError,
    add_common,
    check_numbers,
    chosen,
    fit_changes,
)
from transformer_jax.serialization.run_folder import CONFIG, RunFolderError, read_spec

OF_PRETRAINED = ("pooling", "layer_decay", "unfreeze", "lora")


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
    add(
        "--recipe",
        choices=RECIPES,
        help="model and schedule (default: fast; finetune with --pretrained, which no other goes with)",
    )
    add("--tokenizer", metavar="SPEC", help="bpe:N, word:N, char or gpt2 (default: the recipe's)")
    add("--gpt2-files", metavar="DIR", help="encoder.json and vocab.bpe, if tiktoken has none")
    add(
        "--unlabelled",
        action="store_true",
        help="learn from texts without labels too, as the n-grams label them: twice as long",
    )
    add(
        "--vectors",
        action="store_true",
        help="with --unlabelled: learn from vectors of all texts too, which take half an hour on two cores",
    )
    add(
        "--max-length",
        type=int,
        metavar="N",
        help="how many tokens of a text are read; more than a pretrained encoder holds where it pools by the mean",
    )
    add("--truncate", choices=("head", "head-tail"), help="which part of a longer text")
    add("--learning-rate", type=float, metavar="R", help="the highest (default: the recipe's)")
    _add_pretrained(parser.add_argument_group("fine-tuning").add_argument)
    add_common(add, "imdb")
    add("--no-baseline", action="store_true", help="leave out the linear model")
    return parser


def _add_pretrained(add) -> None:
    add(
        "--pretrained",
        metavar="MODEL",
        help="begin with this text encoder: a run of train.mlm or of --pretrained, a folder, or a name on the hub",
    )
    add(
        "--pooling",
        choices=("cls", "mean"),
        help="what the head reads (default: as the model's files say, else cls)",
    )
    optimizer, lora = FINETUNE.fit.optimizer, FINETUNE_LORA.fit.optimizer
    add(
        "--layer-decay",
        type=float,
        metavar="X",
        help="the rate times X from each layer to the one below: X for the highest of L layers, X**L for the "
        f"lowest, X**(L+1) for the embeddings (default: {optimizer.rates.layer_decay:g}; "
        f"with --lora {lora.rates.layer_decay:g})",
    )
    add(
        "--unfreeze",
        type=float,
        metavar="P",
        help="the head alone learns for a share P of all steps, then one more layer from the top after each further "
        "P, the embeddings last (default: all learn from the start)",
    )
    add(
        "--lora",
        type=int,
        metavar="RANK",
        help="train the head and, beside each kernel of the layers, a product of two matrices of this rank",
    )


def check(options: argparse.Namespace) -> None:
    """The numbers among the options, and what goes together, before anything is read or made."""
    check_numbers(options, (*COMMON, ("max_length", 3), ("classes", 2), ("lora", 1)))
    for name, is_right, wanted in (
        ("learning_rate", lambda rate: 0 < rate < math.inf, "above 0"),
        ("layer_decay", lambda decay: 0 < decay <= 1, "above 0 and at most 1"),
        ("unfreeze", lambda share: 0 < share < 1, "above 0 and below 1"),
    ):
        value = getattr(options, name)
        if value is not None and not is_right(value):
            raise OptionError(f"--{name.replace('_', '-')} must be {wanted}; got {value}")
    if options.vectors and not options.unlabelled and not options.resume:
        raise OptionError("--vectors needs --unlabelled")
    if options.pretrained is not None:
        _check_pretrained(options)
    elif not options.resume:  # which may say it of the options that the run began with
        if options.recipe == FINETUNE.name:
            raise OptionError("--recipe finetune needs --pretrained MODEL")
        for name in OF_PRETRAINED:
            if getattr(options, name) is not None:
                raise OptionError(f"--{name.replace('_', '-')} needs --pretrained MODEL")


def _check_pretrained(options: argparse.Namespace) -> None:
    if options.recipe not in (None, FINETUNE.name):
        raise OptionError(
            f"--recipe {options.recipe} makes a model anew; leave it out, or leave out --pretrained"
        )
    if options.unlabelled:
        raise OptionError(
            "--unlabelled does not go with --pretrained: it takes the n-grams of --recipe fast to label texts"
        )
    for name in ("tokenizer", "gpt2_files"):
        if getattr(options, name) is not None:
            raise OptionError(
                f"--{name.replace('_', '-')} does not go with --pretrained: the model has a tokenizer of its own"
            )


def recipe_of(options: argparse.Namespace, data: str) -> Recipe:
    """The recipe for this data, with what the command line changes."""
    recipe = RECIPES[options.recipe or (FINETUNE if options.pretrained else FAST).name]
    if recipe is FAST and data == "sample":
        recipe = SAMPLE
    if recipe is FAST and options.unlabelled:
        recipe = FAST_VECTORS if options.vectors else FAST_UNLABELLED
    if recipe is FINETUNE:
        recipe = _finetune(options, data)
    rate = recipe.fit.optimizer.learning_rate
    optimizer = replace(recipe.fit.optimizer, learning_rate=chosen(options.learning_rate, rate))
    return replace(
        recipe,
        tokenizer=options.tokenizer or recipe.tokenizer,
        truncate=options.truncate or recipe.truncate,
        model=replace(recipe.model, max_length=options.max_length or recipe.model.max_length),
        fit=replace(recipe.fit, optimizer=optimizer, **fit_changes(options)),
    )


def _finetune(options: argparse.Namespace, data: str) -> Recipe:
    recipe = FINETUNE_LORA if options.lora else FINETUNE
    if recipe is FINETUNE and _is_of_mlm(options.pretrained):
        recipe = FINETUNE_RUN_SAMPLE if data == "sample" else FINETUNE_RUN
    optimizer = recipe.fit.optimizer
    rates = replace(
        optimizer.rates,
        layer_decay=chosen(options.layer_decay, optimizer.rates.layer_decay),
        unfreeze=chosen(options.unfreeze, optimizer.rates.unfreeze),
    )
    model = replace(recipe.model, pooling=options.pooling, lora_rank=options.lora or 0)
    return replace(
        recipe, model=model, fit=replace(recipe.fit, optimizer=replace(optimizer, rates=rates))
    )


def _is_of_mlm(pretrained: str | None) -> bool:
    """Whether it is a run of `train.mlm`; what is wrong with one is said where it is read."""
    try:
        read_spec(Path(pretrained or "") / CONFIG, "MaskedLanguageModel")
    except RunFolderError:
        return False
    return True
