"""Initial classifiers: trained from scratch, or a pretrained encoder with a new head.

Each determines the final recipe, the tokenizer, and the modules that are trained.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from train.classifier.calibration import calibrated, weighted
from train.classifier.finetuning import classifier_of, load_encoder
from train.classifier.ngram_solver import EvidenceSolver
from train.classifier.recipe import Recipe
from train.trainer.options import CommonOptions, OptionError
from transformer_jax.inference.sentence_files import read_pooling
from transformer_jax.models.config import EncoderClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.lora import Lora, merged
from transformer_jax.nn.parameters import AbstractRngs, created
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.parallel.mesh import to_host
from transformer_jax.pretrained import PretrainedError
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.runtime.errors import RunFolderError
from transformer_jax.serialization.run_folder import CONFIG, read_spec
from transformer_jax.serialization.specification import ClassifierSpec, EncoderClassifierSpec, Spec
from transformer_jax.text.batching import bucket_lengths
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import load_own_tokenizer, train_tokenizer


@dataclass(frozen=True)
class Classifier:
    """A network trained by gradient steps, and an optional n-gram part fitted by a solver.

    The n-grams are not trained together with the network, because they would leave it nothing to
    learn (docs/research/experiments.md).
    """

    trained: nnx.Module
    model: nnx.Module  # the model that is scored and saved: `trained`, or it with LoRA and n-grams
    spec: Spec
    # Adds the updates of LoRA to the kernels.
    merge: Callable[[nnx.State], nnx.State] = lambda params: params
    parts: tuple[str, ...] = ("head",)  # parts whose logits are added
    solver: EvidenceSolver | None = None
    evidence_weight: float = 1.0  # of the n-grams, until it is fitted on validation

    def evidence(self) -> nnx.State:
        """Return the current parameters of the n-grams, times their weight."""
        solved = nnx.state(self.model, nnx.PathContains("evidence"))
        return weighted(solved, {"evidence": self.evidence_weight})

    def kept(self, params: nnx.State) -> nnx.State:
        """Convert parameters of `trained` to parameters of `model`."""
        params = self.merge(params)
        return nnx.merge_state(params, self.evidence()) if self.solver else params

    def calibrated(
        self,
        params: nnx.State,
        score: Callable[[Sequence[np.ndarray], nnx.State], np.ndarray],
        examples: Sequence[np.ndarray],
        labels: np.ndarray,
    ) -> tuple[nnx.State, dict[str, float]]:
        """Return parameters of `model` with the best weight for each part, and the weights.

        `examples` and `labels` are the validation texts; `score` returns class probabilities of
        texts. After this last use of validation, the n-grams are fitted to its texts too.
        """
        params, weights = calibrated(params, partial(score, examples), labels, self.parts)
        if self.solver:
            self.solver.extend(examples, labels)
            params = nnx.merge_state(params, weighted(self.evidence(), weights))
        return params, weights


class Start(ABC):
    """The starting point of a classifier: its recipe, tokenizer and initial weights."""

    recipe: Recipe
    seed: int
    model_type: type[nnx.Module]
    beside: tuple[str, ...] = ()  # options that name further inputs of training, besides the data

    @abstractmethod
    def make_tokenizer(self, texts: Sequence[str]) -> Any:
        """Return the tokenizer of a new run."""

    @abstractmethod
    def network(self, tokenizer: Any, classes: tuple[str, ...], data: str) -> Classifier:
        """Return the classifier for the data set named `data`, without n-grams."""

    def make(
        self,
        tokenizer: Any,
        classes: tuple[str, ...],
        data: str,
        examples: Sequence[np.ndarray],
        labels: np.ndarray,
        *,
        balanced: bool = False,
    ) -> Classifier:
        """Return the classifier for the data set named `data`, its n-grams fitted to `examples`.

        With `balanced`, all classes count the same for the n-grams.
        """
        classifier = self.network(tokenizer, classes, data)
        config = classifier.spec.config
        if not config.ngrams:
            return classifier
        whole = self.model_type(config, rngs=AbstractRngs())
        solver = EvidenceSolver(whole.evidence, tokenizer.pad_id, seed=self.seed, balanced=balanced)
        solver.fit(examples, labels)
        parts, weight = (*classifier.parts, "evidence"), self.recipe.evidence_weight
        return replace(classifier, model=whole, parts=parts, solver=solver, evidence_weight=weight)

    def sha256(self, data_sha256: str) -> str:
        """Return the SHA-256 of all inputs of training."""
        return data_sha256

    def _ngram_bits(self, classes: tuple[str, ...]) -> int:
        """Return the bits of the n-gram tables such that their size is the same for any classes."""
        columns = 1 if len(classes) == 2 else len(classes)
        return max(1, self.recipe.model.ngram_bits - (columns - 1).bit_length())


class FromScratch(Start):
    """A `TextClassifier` whose vocabulary and weights are trained from scratch."""

    model_type = TextClassifier
    load_tokenizer = staticmethod(load_own_tokenizer)

    def __init__(self, recipe: Recipe, seed: int, gpt2_files: str | None = None):
        self.recipe, self.seed, self.gpt2_files = recipe, seed, gpt2_files

    def make_tokenizer(self, texts: Sequence[str]) -> Any:
        return train_tokenizer(self.recipe.tokenizer, texts, gpt2_files=self.gpt2_files)

    def network(self, tokenizer: Any, classes: tuple[str, ...], data: str) -> Classifier:
        config = replace(
            self.recipe.model,
            vocab_size=tokenizer.vocab_size,
            num_classes=len(classes),
            ngram_bits=self._ngram_bits(classes),
        )
        small = replace(config, ngrams=0)
        model = created(lambda: TextClassifier(small, rngs=nnx.Rngs(self.seed)))
        return Classifier(model, model, ClassifierSpec(config, classes, self.recipe.truncate, data))


class FromPretrained(Start):
    """An `EncoderClassifier`: the encoder of --pretrained with a new, untrained head.

    Raises OptionError if there is no text encoder, or the options do not fit it.
    """

    model_type = EncoderClassifier
    beside = ("pretrained",)

    def __init__(self, recipe: Recipe, options: CommonOptions):
        self.seed = options.seed
        try:
            self.folder = folder_of(options.pretrained)
            pretrained = load_encoder(self.folder, recipe.model.pooling)
        except (PretrainedError, RunFolderError) as error:
            raise OptionError(f"--pretrained: {error}") from None
        config, model = pretrained.config, recipe.model
        _check(recipe, options, config)
        stack = replace(config.text.encoder, attention_dropout_rate=model.attention_dropout_rate)
        text = replace(config.text, encoder=stack)
        if (rate := model.dropout_rate) is not None:
            stack = replace(stack, dropout_rate=rate)
            text = replace(text, encoder=stack, embedding_dropout_rate=rate)
        self.pretrained = pretrained._replace(config=replace(config, text=text))
        length = model.max_length
        if not config.in_passages:
            length = min(length, text.max_length)
        model = replace(model, max_length=length, pooling=config.pooling)
        self.recipe = replace(recipe, model=model)

    def make_tokenizer(self, texts: Sequence[str]) -> Any:
        tokenizer = self.load_tokenizer(self.folder)
        return tokenizer.lowercased() if read_pooling(self.folder).lowercase else tokenizer

    def load_tokenizer(self, folder: Path) -> Any:
        return load_pretrained_tokenizer(folder).for_table(self.pretrained.config.text.vocab_size)

    def network(self, tokenizer: Any, classes: tuple[str, ...], data: str) -> Classifier:
        if note := _seen(self.folder, data, self.seed):
            print(f"note        {note}")
        recipe, rngs = self.recipe.model, nnx.Rngs(self.seed)
        model = classifier_of(self.pretrained, len(classes), rngs=rngs)
        bits = self._ngram_bits(classes)
        config = replace(model.config, ngrams=recipe.ngrams, ngram_bits=bits)
        spec = EncoderClassifierSpec(config, classes, self.recipe.truncate, data, recipe.max_length)
        if not recipe.lora_rank:
            return Classifier(model, model, spec)
        lora = Lora(model, recipe.lora_rank, rngs=rngs)
        return Classifier(lora, model, spec, jax.jit(partial(merged, scale=lora.scale)))

    def sha256(self, data_sha256: str) -> str:
        """Return the SHA-256 of the data and of the encoder's weights."""
        digest = hashlib.sha256(data_sha256.encode())
        for _, leaf in named_parameters(nnx.state(self.pretrained.encoder, nnx.Param)):
            digest.update(to_host(leaf).tobytes())
        return digest.hexdigest()


# A different seed holds out different texts.
def _seen(folder: Path, data: str, seed: int) -> str | None:
    """Return a warning if a run of `train.mlm` was trained on validation texts of this run."""
    try:
        spec = read_spec(folder / CONFIG, "MaskedLanguageModel")
    except RunFolderError:  # another model
        return None
    if spec.data != data or spec.seed == seed:
        return None
    return (
        f"{folder} was trained with --seed {spec.seed} and has seen validation texts of this run: "
        f"pass --seed {spec.seed}, or pretrain with --seed {seed}"
    )


def _check(recipe: Recipe, options: CommonOptions, config: EncoderClassifierConfig) -> None:
    """Raise OptionError for options that this encoder cannot satisfy."""
    text, pretrained = config.text, options.pretrained
    width, parts = text.encoder.embed_dim, text.encoder.num_layers + 1
    if (options.max_length or 0) > text.max_length and not config.in_passages:
        raise OptionError(
            f"--max-length {options.max_length} is more than the {text.max_length} tokens that "
            f"{pretrained} holds; pass less, or --pooling mean, which splits longer texts"
        )
    if recipe.model.lora_rank > width:
        raise OptionError(
            f"--lora {recipe.model.lora_rank} is more than the width of {pretrained}, {width}"
        )
    share = recipe.fit.optimizer.rates.unfreeze
    if share * parts >= 1:
        raise OptionError(
            f"--unfreeze {share:g} is too much for {parts - 1} layers and the embeddings: the "
            f"last would be unfrozen after the end; pass less than {1 / parts:.3g}"
        )


def batch_shapes(
    encoded: Sequence[Sequence[np.ndarray]], recipe: Recipe, batch_tokens: int | None
) -> tuple[tuple[int, ...], int]:
    """Return the lengths of batches, and the number of tokens per batch."""
    lengths = np.array([len(ids) for part in encoded for ids in part])
    buckets = bucket_lengths(lengths, recipe.model.max_length, recipe.buckets)
    if batch_tokens is None:
        padded = np.asarray(buckets)[np.searchsorted(buckets, lengths)]
        return buckets, max(buckets[-1], round(recipe.batch_examples * float(padded.mean())))
    if batch_tokens < buckets[-1]:
        raise OptionError(
            f"--batch-tokens {batch_tokens} is less than one text of {buckets[-1]} tokens; "
            "pass more, or a smaller --max-length"
        )
    return buckets, batch_tokens
