"""The options of `train.imdb`, and what they change of a recipe."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from train.classifier.recipe import Recipe
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
)
from train.trainer.options import ABOVE_0, CommonOptions, OptionError, chosen, flag_of, option
from transformer_jax.runtime.errors import RunFolderError
from transformer_jax.serialization.run_folder import CONFIG, read_spec

OF_PRETRAINED = ("pooling", "layer_decay", "unfreeze", "lora")


@dataclass(frozen=True)
class ImdbOptions(CommonOptions):
    """The options of `train.imdb`."""

    may_change = CommonOptions.may_change | {"no_baseline", "gpt2_files", "pretrained"}
    groups: ClassVar = {"fine-tuning": ("pretrained", *OF_PRETRAINED)}

    data: str = option(
        "auto",
        "WHAT",
        "auto (default): IMDb, or the built-in sample where the hub cannot be reached; imdb; "
        "sample; or a path: a folder of train/test.parquet, aclImdb or its .tar.gz, a CSV, TSV, "
        "JSONL or Parquet file",
    )
    text_column: str = option("text", "NAME", "of a file (default: text)")
    label_column: str = option("label", "NAME", "of a file (default: label)")
    classes: int = option(
        2,
        "N",
        "how many different labels there are (default: 2); another number in the data is a mistake",
        least=2,
    )
    recipe: str | None = option(
        choices=tuple(RECIPES),
        help="model and schedule (default: fast; with --pretrained finetune, and no other)",
    )
    tokenizer: str | None = option(
        None, "SPEC", "bpe:N, word:N, char or gpt2 (default: the recipe's)"
    )
    gpt2_files: str | None = option(None, "DIR", "encoder.json and vocab.bpe, if tiktoken has none")
    unlabelled: bool = option(
        False,
        help="learn from texts without labels too, by pseudo-labels of n-grams: twice as long",
    )
    vectors: bool = option(
        False,
        help="with --unlabelled: learn from vectors of texts too, half an hour on two cores",
    )
    max_length: int | None = option(
        None,
        "N",
        "how many tokens of a text are read; more than a pretrained encoder holds where it pools "
        "by the mean",
        least=3,
    )
    truncate: str | None = option(choices=("head", "head-tail"), help="which part of a longer text")
    learning_rate: float | None = option(
        None, "R", "the peak (default: the recipe's)", must=ABOVE_0
    )
    no_baseline: bool = option(False, help="leave out the linear model")
    pretrained: str | None = option(
        None,
        "MODEL",
        "begin with this text encoder: a run of train.mlm or of --pretrained, a folder, or a "
        "name on the hub",
    )
    pooling: str | None = option(
        choices=("cls", "mean"),
        help="what the head reads (default: as the model's files say, else cls)",
    )
    layer_decay: float | None = option(
        None,
        "X",
        "the rate times X from each layer to the one below: X for the highest of L layers, X**L "
        "for the lowest, X**(L+1) for the embeddings (default: "
        f"{FINETUNE.fit.optimizer.rates.layer_decay:g}; with --lora "
        f"{FINETUNE_LORA.fit.optimizer.rates.layer_decay:g})",
        must=(lambda decay: 0 < decay <= 1, "above 0 and at most 1"),
    )
    unfreeze: float | None = option(
        None,
        "P",
        "the head alone learns for a share P of all steps, then one more layer from the top "
        "after each further P, the embeddings last (default: all learn from the start)",
        must=(lambda share: 0 < share < 1, "above 0 and below 1"),
    )
    lora: int | None = option(
        None,
        "RANK",
        "train the head and, beside each kernel of the layers, a product of two matrices of this "
        "rank",
        least=1,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.vectors and not self.unlabelled:
            raise OptionError("--vectors needs --unlabelled")
        if self.pretrained is not None:
            self._check_pretrained()
            return
        if self.recipe == FINETUNE.name:
            raise OptionError("--recipe finetune needs --pretrained MODEL")
        for name in OF_PRETRAINED:
            if getattr(self, name) is not None:
                raise OptionError(f"{flag_of(name)} needs --pretrained MODEL")

    def _check_pretrained(self) -> None:
        if self.recipe not in (None, FINETUNE.name):
            raise OptionError(
                f"--recipe {self.recipe} makes a model anew; leave it out, or leave out "
                "--pretrained"
            )
        if self.unlabelled:
            raise OptionError(
                "--unlabelled does not go with --pretrained: it takes the n-grams of --recipe "
                "fast to label texts"
            )
        for name in ("tokenizer", "gpt2_files"):
            if getattr(self, name) is not None:
                raise OptionError(
                    f"{flag_of(name)} does not go with --pretrained: the model has a tokenizer of "
                    "its own"
                )


def recipe_of(options: ImdbOptions, data: str) -> Recipe:
    """Return the recipe for data of this name, with what the options change."""
    recipe = RECIPES[options.recipe or (FINETUNE if options.pretrained else FAST).name]
    if recipe is FAST and data == "sample":
        recipe = SAMPLE
    if recipe is FAST and options.unlabelled:
        recipe = FAST_VECTORS if options.vectors else FAST_UNLABELLED
    if recipe is FINETUNE:
        recipe = _finetune(options, data)
    rate = chosen(options.learning_rate, recipe.fit.optimizer.learning_rate)
    optimizer = replace(recipe.fit.optimizer, learning_rate=rate)
    return replace(
        recipe,
        tokenizer=options.tokenizer or recipe.tokenizer,
        truncate=options.truncate or recipe.truncate,
        model=replace(recipe.model, max_length=options.max_length or recipe.model.max_length),
        fit=options.fit_config(replace(recipe.fit, optimizer=optimizer)),
    )


def _finetune(options: ImdbOptions, data: str) -> Recipe:
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
    fit = replace(recipe.fit, optimizer=replace(optimizer, rates=rates))
    return replace(recipe, model=model, fit=fit)


def _is_of_mlm(pretrained: str) -> bool:
    """Whether it is a run of `train.mlm`; what is wrong with one is said where it is read."""
    try:
        read_spec(Path(pretrained) / CONFIG, "MaskedLanguageModel")
    except RunFolderError:
        return False
    return True
