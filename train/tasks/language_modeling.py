"""Language modelling: a decoder learns to predict the next token of a text."""

import itertools
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from tqdm import tqdm

from train.data.text_files import load_texts
from train.data.token_file import token_files
from train.objectives.batches import LazyBatches
from train.objectives.language_modeling import (
    Windows,
    epoch_batches,
    every_window,
    make_evaluation,
    summed_loss,
)
from train.recipes.lm import recipe_of
from train.tasks.task import Task
from train.trainer.fit import FitResult
from train.trainer.options import OptionError
from train.trainer.run import Run
from transformer_jax.generation.generate import generate
from transformer_jax.generation.sampling import Sampling
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.nn.parameters import created
from transformer_jax.parallel.mesh import to_host
from transformer_jax.parallel.processes import is_first
from transformer_jax.runtime.counted import counted
from transformer_jax.serialization.specification import LanguageModelSpec
from transformer_jax.text.tokenizer import Tokenizer, load_own_tokenizer, train_tokenizer

SHOWN = 120  # length in tokens of the sample printed after each epoch


class LanguageModeling(Task):
    """A language model, evaluated by its loss on held-out texts."""

    loss = staticmethod(summed_loss)
    select = "validation_log_likelihood"

    def __init__(self, run: Run):
        options, recipe = run.options, recipe_of(run.options)
        self.length = recipe.model.max_length
        self.rows = max(1, recipe.batch_tokens // self.length)
        self.data = load_texts(options.data, options.seed)
        print(f"data        {self.data.source}; held out: {self.data.rule}")
        tokenizer = run.tokenizer(
            lambda: train_tokenizer(
                options.tokenizer,
                itertools.chain.from_iterable(self.data.train()),
                lossless=True,
                gpt2_files=options.gpt2_files,
            ),
            load_own_tokenizer,
        )
        super().__init__(run, recipe, tokenizer, self.rows * self.length, "float32")

    def build(self) -> None:
        """Write the tokens to temporary files, and build the model and its evaluation."""
        data, tokenizer, length = self.data, self.tokenizer, self.length
        self.cls_id = tokenizer.cls_id if data.separate else None
        texts = {"train": data.train, "held_out": data.held_out}
        # Each of several processes writes its own files.
        own = self.folder
        if not is_first():
            own = Path(self.resources.enter_context(tempfile.TemporaryDirectory()))
        files = token_files(own / "tokens", tokenizer, texts, framed=data.separate)
        self.parts = self.resources.enter_context(files)
        train, held_out = self.parts["train"], self.parts["held_out"]
        for name, part in (("learn from", train), ("hold out", held_out)):
            if len(part.tokens) <= length:
                raise OptionError(
                    f"the part of the texts to {name} has {counted(len(part.tokens), 'token')}, "
                    f"but must have more than one window of {length}; pass more text or a smaller "
                    "--length"
                )
        config = replace(self.recipe.model, vocab_size=tokenizer.vocab_size)
        spec = LanguageModelSpec(config, data.name, data.separate)
        self.begin(train.sha256 + held_out.sha256, spec)
        seed = self.options.seed
        self.model = created(lambda: LanguageModel(config, rngs=nnx.Rngs(seed)))
        self.graph = nnx.graphdef(self.model)
        windows = every_window(held_out.tokens, length, self.rows, self.cls_id)
        self.total_loss = make_evaluation(self.graph, windows)
        print(
            f"            {counted(len(train.tokens), 'token')} to train, "
            f"{len(held_out.tokens):,} held out, in windows of {length}"
        )

    def batches(self, epoch: int) -> LazyBatches:
        tokens, cls_id, seed = self.parts["train"].tokens, self.cls_id, self.options.seed
        return epoch_batches(tokens, self.length, self.rows, cls_id, seed=seed, epoch=epoch)

    def count_tokens(self, batch: Windows) -> int:
        return batch.tokens.size

    def validate(self, params: nnx.State) -> dict[str, float]:
        """Return the loss on the held-out part, and print a text that the model generates."""
        nats, targets = self.total_loss(params)
        model = nnx.merge(self.graph, params)
        held_out, seed = self.parts["held_out"], self.options.seed
        tqdm.write(f"\n{sample_text(model, self.tokenizer, held_out.tokens, seed)}\n")
        return {
            "validation_loss": nats / targets,
            "validation_log_likelihood": -nats / targets,
            "validation_bits_per_byte": nats / math.log(2) / held_out.bytes,
        }

    def evaluate(self, fitted: FitResult) -> dict[str, Any]:
        """Return the held-out loss per token, and per byte, which any tokenizer can compare."""
        train, held_out = self.parts["train"], self.parts["held_out"]
        scores = self.best_scores(fitted)
        return {
            "task": "Language model",
            "data": {
                "name": self.data.name,
                "source": self.data.source,
                "held_out": f"{self.data.rule}; its loss also selected the weights",
                "tokens": len(train.tokens),
                "held_out_tokens": len(held_out.tokens),
                "held_out_bytes": held_out.bytes,
            },
            "held_out_loss": scores["validation_loss"],
            "perplexity": math.exp(min(scores["validation_loss"], 700.0)),
            "bits_per_byte": scores["validation_bits_per_byte"],
        }

    @staticmethod
    def result(report: dict[str, Any]) -> str:
        return f"{report['held_out_loss']:.4f} nats per token"

    def summary(self, report: dict[str, Any]) -> str:
        return (
            f"held out    {self.result(report)}, perplexity {report['perplexity']:.2f}, "
            f"{report['bits_per_byte']:.4f} bits per byte (the held-out loss also selected the "
            "weights)"
        )

    def example(self) -> str:
        return f'python -m transformer_jax generate {self.folder} "The "'


def sample_text(model: LanguageModel, tokenizer: Tokenizer, tokens: np.ndarray, seed: int) -> str:
    """Return the first of these tokens as a prompt and, after a "|", the model's continuation."""
    most = model.config.max_length
    prompt = np.asarray(tokens[: min(16, most // 2)], np.int32)[None]
    written = generate(
        model,
        prompt,
        max_tokens=min(SHOWN, most - prompt.shape[1]),
        sampling=Sampling(temperature=0.8),
        stop=(tokenizer.sep_id,),
        key=jax.random.key(seed),
        pad_id=tokenizer.pad_id,
    )
    return tokenizer.decode(prompt[0]) + "|" + tokenizer.decode(to_host(written.tokens)[0])
