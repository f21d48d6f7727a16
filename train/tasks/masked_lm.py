"""Masked language modelling: a text encoder learns to predict the masked words of texts."""

import math
from dataclasses import replace
from typing import Any

from flax import nnx

from train.data.dataset import DataError
from train.data.load import load_data
from train.data.mlm_texts import pretraining_texts
from train.data.packing import Passages, make_passages
from train.objectives.batches import LazyBatches
from train.objectives.masked_lm import (
    MaskedBatch,
    Masking,
    make_evaluation,
    masked_batches,
    summed_loss,
    unigram_loss,
)
from train.recipes.mlm import VALIDATION_FRACTION, recipe_of
from train.tasks.task import Task
from train.trainer.fit import FitResult
from train.trainer.run import Run
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.nn.parameters import created
from transformer_jax.runtime.counted import counted
from transformer_jax.serialization.specification import MaskedLanguageModelSpec
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.tokenizer_formats import as_published


class MaskedLanguageModeling(Task):
    """A masked language model, evaluated on validation texts of `train.imdb`."""

    loss = staticmethod(summed_loss)
    select = "validation_log_likelihood"

    def __init__(self, run: Run):
        options = run.options
        self.data = load_data(options)
        recipe = recipe_of(options, self.data.name)
        self.texts = texts = pretraining_texts(self.data, VALIDATION_FRACTION, options.seed)
        for note in (*self.data.notes, *texts.notes):
            print(f"note        {note}")
        print(
            f"data        {self.data.source}\n"
            f"            {counted(len(texts.train), 'text')} to train, "
            f"{len(texts.held_out):,} held out, from the validation texts of "
            f"train.imdb: {texts.rule}"
        )
        tokenizer = run.tokenizer(
            lambda: as_published(train_tokenizer(options.tokenizer, texts.train)),
            load_pretrained_tokenizer,
        )
        self.length = recipe.model.max_length
        self.rows = max(1, recipe.batch_tokens // self.length)
        self.train_part, self.held_out = (
            make_passages(tokenizer, part, self.length) for part in (texts.train, texts.held_out)
        )
        for name, part in (("learn from", self.train_part), ("hold out", self.held_out)):
            if not len(part.lengths):
                raise DataError(
                    f"{self.data.name}: the texts to {name} are empty; pass others with --data"
                )
        self.masking = Masking.of(tokenizer, recipe.mask_rate)
        super().__init__(run, recipe, tokenizer, self.rows * self.length, recipe.dtype)

    def build(self) -> None:
        seed = self.options.seed
        config = replace(self.recipe.model, vocab_size=self.tokenizer.vocab_size)
        spec = MaskedLanguageModelSpec(config, self.data.name, seed)
        self.begin(self.train_part.sha256 + self.held_out.sha256, spec)
        self.model = created(lambda: MaskedLanguageModel(config, rngs=nnx.Rngs(seed)))
        self.total_loss = make_evaluation(
            nnx.graphdef(self.model), self._batches(self.held_out, epoch=0)
        )
        self.unigram_loss = unigram_loss(self.train_part, self.held_out, self.masking)
        print(
            f"            {counted(len(self.train_part.tokens), 'token')} to train, "
            f"{len(self.held_out.tokens):,} held out, in rows of {self.length}, "
            f"{self.recipe.mask_rate:.0%} masked; unigram baseline {self.unigram_loss:.4f} nats "
            "per token"
        )

    def batches(self, epoch: int) -> LazyBatches:
        return self._batches(self.train_part, epoch)

    def _batches(self, part: Passages, epoch: int) -> LazyBatches:
        seed = self.options.seed
        return masked_batches(part, self.length, self.rows, self.masking, seed=seed, epoch=epoch)

    def count_tokens(self, batch: MaskedBatch) -> int:
        return int((batch.text_ids > 0).sum())

    def validate(self, params: nnx.State) -> dict[str, float]:
        """Return the loss and accuracy on the masked tokens of the held-out texts."""
        nats, right, targets = self.total_loss(params)
        return {
            "validation_loss": nats / max(targets, 1),
            "validation_log_likelihood": -nats / max(targets, 1),
            "validation_accuracy": right / max(targets, 1),
        }

    def evaluate(self, fitted: FitResult) -> dict[str, Any]:
        texts, found = self.texts, self.best_scores(fitted)
        return {
            "task": "Masked language model",
            "data": {
                "name": self.data.name,
                "source": self.data.source,
                "notes": [*self.data.notes, *texts.notes],
                "held_out": f"{texts.rule}; the loss on {len(texts.held_out):,} of them also "
                "selected the weights",
                "texts": len(texts.train),
                "tokens": len(self.train_part.tokens),
                "held_out_tokens": len(self.held_out.tokens),
            },
            "held_out_loss": found["validation_loss"],
            "held_out_accuracy": found["validation_accuracy"],
            "perplexity": math.exp(min(found["validation_loss"], 700.0)),
            "unigram_loss": self.unigram_loss,
        }

    @staticmethod
    def result(report: dict[str, Any]) -> str:
        return f"{report['held_out_loss']:.4f} nats per masked token"

    def summary(self, report: dict[str, Any]) -> str:
        return (
            f"held out    {self.result(report)}, {report['held_out_accuracy']:.2%} predicted "
            f"correctly; unigram baseline {self.unigram_loss:.4f} nats"
        )

    def example(self) -> str:
        data = self.data.name if self.options.data == "auto" else self.options.data
        return (
            f'python -m transformer_jax fill {self.folder} "The film was [MASK]."\n'
            f"            python -m train.imdb --data {data} --pretrained {self.folder}"
        )
