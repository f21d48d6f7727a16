"""The two beginnings of a classifier: made anew from a recipe, or a pretrained encoder with a new
head.

Each says what the recipe comes to, with which tokenizer texts are read, and what is trained.
"""

import argparse
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from train.classifier.calibration import weighted
from train.classifier.finetuning import classifier_of, load_encoder
from train.classifier.ngram_solver import EvidenceSolver
from train.recipes.imdb import Recipe
from train.trainer.launcher import OptionError
from transformer_jax.models.config import EncoderClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.lora import Lora, merged
from transformer_jax.nn.parameters import AbstractRngs, named_parameters
from transformer_jax.pretrained import PretrainedError
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.serialization.run_folder import (
    CONFIG,
    ClassifierSpec,
    EncoderClassifierSpec,
    RunFolderError,
    Spec,
    read_spec,
)
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import load_own_tokenizer, train_tokenizer


@dataclass(frozen=True)
class Classifier:
    """What is trained, and what is kept of it."""

    trained: nnx.Module
    model: nnx.Module  # what is scored and kept; the same but for LoRA
    kept: Callable[[nnx.State], nnx.State]  # the parameters of `model`, from those of `trained`
    spec: Spec
    parts: tuple[str, ...] = ("head",)  # whose logits are added up
    solver: EvidenceSolver | None = None  # of what no step moves
    solved: Callable[[], nnx.State] | None = None  # those parameters, as it has fitted them now


class FromScratch:
    """A `TextClassifier` whose words and weights are all learned here."""

    load_tokenizer = staticmethod(load_own_tokenizer)

    def __init__(self, recipe: Recipe, options: argparse.Namespace):
        self.recipe, self.options = recipe, options

    def make_tokenizer(self, texts: Sequence[str]) -> Any:
        return train_tokenizer(self.recipe.tokenizer, texts, gpt2_files=self.options.gpt2_files)

    def make(
        self,
        tokenizer: Any,
        classes: tuple[str, ...],
        data: str,
        examples: Sequence[np.ndarray],
        labels: np.ndarray,
    ) -> Classifier:
        config = replace(
            self.recipe.model,
            vocab_size=tokenizer.vocab_size,
            num_classes=len(classes),
            ngram_bits=_ngram_bits(self.recipe, classes),
        )
        trained = TextClassifier(replace(config, ngrams=0), rngs=nnx.Rngs(self.options.seed))
        spec = ClassifierSpec(config, classes, self.recipe.truncate, data)
        alone = Classifier(trained, trained, lambda params: params, spec)
        if not config.ngrams:
            return alone
        whole = TextClassifier(config, rngs=AbstractRngs())
        solver = EvidenceSolver(whole.evidence, tokenizer.pad_id, seed=self.options.seed)
        return _with_evidence(alone, whole, solver, self.recipe, examples, labels)

    def begin(self, run, data_sha256: str) -> None:
        run.begin(data_sha256)


class FromPretrained:
    """An `EncoderClassifier`: the encoder of --pretrained, and a head that knows nothing yet.

    Raises OptionError where there is no text encoder, or the options do not fit it.
    """

    load_tokenizer = staticmethod(load_pretrained_tokenizer)

    def __init__(self, recipe: Recipe, options: argparse.Namespace):
        self.source, self.seed = options.pretrained, options.seed
        try:
            self.folder = folder_of(self.source)
            pretrained = load_encoder(self.folder, recipe.model.pooling)
        except (PretrainedError, RunFolderError) as error:
            raise OptionError(f"--pretrained: {error}") from None
        config, model = pretrained.config, recipe.model
        _check(recipe, options, config)
        stack = replace(config.text.encoder, attention_dropout_rate=model.attention_dropout_rate)
        text = replace(config.text, encoder=stack)
        if (rate := model.dropout_rate) is not None:
            text = replace(
                text, encoder=replace(stack, dropout_rate=rate), embedding_dropout_rate=rate
            )
        self.pretrained = pretrained._replace(config=replace(config, text=text))
        length = model.max_length
        if not config.in_passages:
            length = min(length, text.max_length)
        self.recipe = replace(
            recipe, model=replace(model, max_length=length, pooling=config.pooling)
        )

    def make_tokenizer(self, texts: Sequence[str]) -> Any:
        return load_pretrained_tokenizer(self.folder)

    def make(
        self,
        tokenizer: Any,
        classes: tuple[str, ...],
        data: str,
        examples: Sequence[np.ndarray],
        labels: np.ndarray,
    ) -> Classifier:
        vocab_size = tokenizer.vocab_size
        rows = self.pretrained.config.text.vocab_size
        if vocab_size > rows:
            raise OptionError(
                f"--pretrained: {self.folder} has a tokenizer of {vocab_size} tokens and a model of {rows}; "
                "they do not belong together"
            )
        if note := _seen(self.folder, data, self.seed):
            print(f"note        {note}")
        recipe, rngs = self.recipe.model, nnx.Rngs(self.seed)
        model = classifier_of(self.pretrained, len(classes), rngs=rngs)
        bits = _ngram_bits(self.recipe, classes)
        config = replace(model.config, ngrams=recipe.ngrams, ngram_bits=bits)
        spec = EncoderClassifierSpec(config, classes, self.recipe.truncate, data, recipe.max_length)
        if recipe.lora_rank:
            lora = Lora(model, recipe.lora_rank, rngs=rngs)
            alone = Classifier(lora, model, jax.jit(partial(merged, scale=lora.scale)), spec)
        else:
            alone = Classifier(model, model, lambda params: params, spec)
        if not config.ngrams:
            return alone
        whole = EncoderClassifier(config, rngs=AbstractRngs())
        solver = EvidenceSolver(whole.evidence, tokenizer.pad_id, seed=self.seed)
        return _with_evidence(alone, whole, solver, self.recipe, examples, labels)

    def begin(self, run, data_sha256: str) -> None:
        """A run goes on with the weights that it began with, too."""
        digest = hashlib.sha256(data_sha256.encode())
        for _, leaf in named_parameters(nnx.state(self.pretrained.encoder, nnx.Param)):
            digest.update(np.asarray(leaf).tobytes())
        run.begin(digest.hexdigest(), "pretrained")


def _ngram_bits(recipe: Recipe, classes: tuple[str, ...]) -> int:
    """However many classes share the tables of n-grams, they are as large."""
    columns = 1 if len(classes) == 2 else len(classes)
    return max(1, recipe.model.ngram_bits - (columns - 1).bit_length())


def _with_evidence(
    alone: Classifier,
    whole: nnx.Module,
    solver: EvidenceSolver,
    recipe: Recipe,
    examples: Sequence[np.ndarray],
    labels: np.ndarray,
) -> Classifier:
    """The n-grams are not trained with the rest: they would leave it nothing to learn
    (docs/research/experiments.md).
    """
    solver.fit(examples, labels)

    def evidence() -> nnx.State:
        solved = nnx.state(whole, nnx.PathContains("evidence"))
        return weighted(solved, {"evidence": recipe.evidence_weight})

    return replace(
        alone,
        model=whole,
        kept=lambda params: nnx.merge_state(alone.kept(params), evidence()),
        parts=(*alone.parts, "evidence"),
        solver=solver,
        solved=evidence,
    )


def _seen(folder: Path, data: str, seed: int) -> str | None:
    """What a run of `train.mlm` has read of what is held out here: with other seeds other texts
    are.
    """
    try:
        spec = read_spec(folder / CONFIG, "MaskedLanguageModel")
    except RunFolderError:  # another model
        return None
    if spec.data != data or spec.seed == seed:
        return None
    return (
        f"{folder} was made with --seed {spec.seed} and has read texts that validate here: "
        f"pass --seed {spec.seed}, or pretrain with --seed {seed}"
    )


def _check(recipe: Recipe, options: argparse.Namespace, config: EncoderClassifierConfig) -> None:
    """What the command line asks of an encoder that not every one has."""
    text = config.text
    width, parts = text.encoder.embed_dim, text.encoder.num_layers + 1
    if (options.max_length or 0) > text.max_length and not config.in_passages:
        raise OptionError(
            f"--max-length {options.max_length} is more than the {text.max_length} tokens that {options.pretrained} "
            "holds; pass less, or --pooling mean, which reads passages of as many"
        )
    if recipe.model.lora_rank > width:
        raise OptionError(
            f"--lora {recipe.model.lora_rank} is more than the width of {options.pretrained}, {width}"
        )
    share = recipe.fit.optimizer.rates.unfreeze
    if share * parts >= 1:
        raise OptionError(
            f"--unfreeze {share:g} is too much for {parts - 1} layers and the embeddings: "
            f"the last would join after the end; pass less than {1 / parts:.3g}"
        )
