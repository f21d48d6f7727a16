"""The options of `train.classify` and `train.imdb`, and the recipe that they select and change."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from train.classifier.recipe import Recipe
from train.data.load import check_source
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
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.runtime.errors import PretrainedError
from transformer_jax.runtime.texts import read_text
from transformer_jax.serialization.folder_files import CONFIG

OF_PRETRAINED = ("pooling", "layer_decay", "unfreeze", "lora")


@dataclass(frozen=True)
class ClassifyOptions(CommonOptions):
    """The options of `train.classify`."""

    may_change = CommonOptions.may_change | {"no_baseline", "gpt2_files", "pretrained"}
    later = CommonOptions.later | frozenset({"class_weights", "encoding", "skip_bad"})
    groups: ClassVar = {"fine-tuning": ("pretrained", *OF_PRETRAINED)}
    reviews: ClassVar[bool] = False  # whether labels 0 and 1 are opinions, and IMDb has a name

    data: str | None = option(
        None,
        "PATH",
        "required: a CSV, TSV, JSON, JSONL or Parquet file; a folder with files named train, "
        "validation, test and unlabelled; a folder saved by datasets; or sample: generated texts",
    )
    text_column: str = option("text", "NAME", "column of the texts (default: text)")
    label_column: str = option("label", "NAME", "column of the labels (default: label)")
    classes: int | None = option(
        None,
        "N",
        "number of classes (default: that of different labels); another number is an error",
        least=2,
    )
    encoding: str | None = option(
        None,
        "NAME",
        "encoding of text files, such as cp1252 (default: UTF-8, or UTF-16 with its mark)",
    )
    skip_bad: bool = option(
        False, help="drop and count rows with a blank text or label, which else are an error"
    )
    recipe: str | None = option(
        choices=tuple(RECIPES),
        help="model and training schedule (default: fast; always finetune with --pretrained)",
    )
    tokenizer: str | None = option(
        None,
        "SPEC",
        "bpe:N (byte-pair encoding) or word:N, trained to N tokens; char; or gpt2 (default: the "
        "recipe's)",
    )
    gpt2_files: str | None = option(
        None,
        "DIR",
        "folder with encoder.json and vocab.bpe, for a gpt2 tokenizer that tiktoken cannot load",
    )
    unlabelled: bool = option(
        False,
        help="also train on texts without a label, with pseudo-labels from n-grams; takes twice "
        "as long",
    )
    vectors: bool = option(
        False,
        help="with --unlabelled: also learn text vectors, which improve the pseudo-labels; takes "
        "half an hour on two cores",
    )
    class_weights: str | None = option(
        choices=("balanced",),
        help="balanced: give each class the same weight in training, however few its texts are",
    )
    max_length: int | None = option(
        None,
        "N",
        "tokens read of each text (default: the recipe's); with mean pooling it may exceed the "
        "limit of a pretrained encoder",
        least=3,
    )
    truncate: str | None = option(
        choices=("head", "head-tail"),
        help="part kept of a longer text: its start, or start and end (default: the recipe's)",
    )
    learning_rate: float | None = option(
        None, "R", "peak learning rate (default: the recipe's)", must=ABOVE_0
    )
    no_baseline: bool = option(False, help="skip the linear baseline")
    pretrained: str | None = option(
        None,
        "MODEL",
        "text encoder to fine-tune: a run folder of train.mlm or of --pretrained, the folder of "
        "a published model, or its name on the Hugging Face hub",
    )
    pooling: str | None = option(
        choices=("cls", "mean"),
        help="vector that the head reads: of [CLS], or the mean over all tokens (default: from "
        "the model's files, else cls)",
    )
    layer_decay: float | None = option(
        None,
        "X",
        "learning-rate factor per layer from the top down: X for the top of L layers, X**L for "
        "the bottom one, X**(L+1) for the embeddings (default: "
        f"{FINETUNE.fit.optimizer.rates.layer_decay:g}; with --lora or a run of train.mlm "
        f"{FINETUNE_LORA.fit.optimizer.rates.layer_decay:g})",
        must=(lambda decay: 0 < decay <= 1, "above 0 and at most 1"),
    )
    unfreeze: float | None = option(
        None,
        "P",
        "gradual unfreezing: train only the head for a fraction P of all steps, then one more "
        "layer from the top after each further P, the embeddings last (default: train everything "
        "from the start)",
        must=(lambda share: 0 < share < 1, "above 0 and below 1"),
    )
    lora: int | None = option(
        None,
        "RANK",
        "low-rank adaptation: freeze the encoder, and train the head and an update of this rank "
        "for each layer kernel",
        least=1,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.data is None:
            raise OptionError("--data is required: the file or folder of your texts, or sample")
        if self.vectors and not self.unlabelled:
            raise OptionError("--vectors needs --unlabelled")
        if self.vectors and self.class_weights:
            raise OptionError(
                "--class-weights cannot be combined with --vectors, whose classifier learns "
                "without weights; leave one of them out"
            )
        if self.pretrained is not None:
            self._check_pretrained()
            return
        if self.recipe == FINETUNE.name:
            raise OptionError("--recipe finetune needs --pretrained MODEL")
        for name in OF_PRETRAINED:
            if getattr(self, name) is not None:
                raise OptionError(f"{flag_of(name)} needs --pretrained MODEL")

    def check_paths(self) -> None:
        """Raise DataError if `data` names no data set, OptionError if `pretrained` is no model."""
        check_source(self.data, self.text_column, self.label_column, reviews=self.reviews)
        if self.pretrained is not None:
            try:
                folder_of(self.pretrained)  # downloaded now if it is on the hub
            except PretrainedError as error:
                raise OptionError(f"--pretrained: {error}") from None

    def _check_pretrained(self) -> None:
        if self.recipe not in (None, FINETUNE.name):
            raise OptionError(
                f"--recipe {self.recipe} trains a model from scratch; leave it out, or leave out "
                "--pretrained"
            )
        if self.unlabelled:
            raise OptionError(
                "--unlabelled cannot be combined with --pretrained: pseudo-labels need the "
                "n-grams of --recipe fast; leave one of them out"
            )
        for name in ("tokenizer", "gpt2_files"):
            if getattr(self, name) is not None:
                raise OptionError(
                    f"{flag_of(name)} cannot be combined with --pretrained, whose model has a "
                    f"tokenizer of its own; leave {flag_of(name)} out"
                )


@dataclass(frozen=True)
class ImdbOptions(ClassifyOptions):
    """The options of `train.imdb`."""

    reviews: ClassVar[bool] = True

    data: str = option(
        "auto",
        "WHAT",
        "auto (default): IMDb, or the built-in sample if the Hugging Face hub cannot be reached; "
        "imdb: IMDb or an error; sample: generated reviews; or a path: the aclImdb folder or its "
        ".tar.gz, or what train.classify reads",
    )


def recipe_of(options: ClassifyOptions, data: str) -> Recipe:
    """Return the recipe for the data set named `data`, changed as the options ask."""
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


def _finetune(options: ClassifyOptions, data: str) -> Recipe:
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
    """Return whether `pretrained` is a run folder of `train.mlm`."""
    try:  # a damaged run folder is reported where the model is loaded
        saved = json.loads(read_text(Path(pretrained) / CONFIG))
        return saved["model"] == "MaskedLanguageModel"
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
