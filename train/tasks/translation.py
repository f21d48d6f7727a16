"""Translation: an encoder-decoder learns from pairs of texts."""

from dataclasses import replace
from typing import Any

from flax import nnx
from tqdm import tqdm

from train.data.dataset import tokens_sha256
from train.data.pairs import load_pairs
from train.evaluation.metrics import bleu
from train.objectives.batches import LazyBatches
from train.objectives.seq2seq import (
    PairBatch,
    make_evaluation,
    make_loss,
    pair_batches,
    pair_lengths,
    target_lengths,
)
from train.recipes.translate import recipe_of
from train.tasks.task import Task
from train.trainer.fit import FitResult
from train.trainer.run import Run
from transformer_jax.inference.translate import translated
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.nn.parameters import created
from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.files import write_text
from transformer_jax.serialization.specification import TranslatorSpec
from transformer_jax.text.batching import bucket_lengths, epoch_plans, evaluation_plans
from transformer_jax.text.tokenizer import load_own_tokenizer, train_tokenizer

SHOWN = 3  # number of translations printed after each epoch


class Translation(Task):
    """A translation model, evaluated once by BLEU on the test pairs."""

    select = "validation_objective"
    written = (*Task.written, "translations.txt")

    def __init__(self, run: Run):
        options, recipe = run.options, recipe_of(run.options)
        self.data = pairs = load_pairs(options.data, options.source, options.target, options.seed)
        for note in pairs.notes:
            print(f"note        {note}")
        print(
            f"data        {pairs.source}: {counted(len(pairs.train[0]), 'pair')} to train, "
            f"{len(pairs.validation[0]):,} to validate, {len(pairs.test[0]):,} to test"
        )
        tokenizer = run.tokenizer(
            lambda: train_tokenizer(
                recipe.tokenizer, [*pairs.train[0], *pairs.train[1]], lossless=True
            ),
            load_own_tokenizer,
        )
        length = recipe.model.max_length
        self.train_ids, self.validation_ids = (
            [tokenizer.encode(texts, length) for texts in part]
            for part in (pairs.train, pairs.validation)
        )
        lengths = pair_lengths(*self.train_ids) + pair_lengths(*self.validation_ids)
        self.buckets = bucket_lengths(lengths, length, recipe.buckets)
        targets = [*self.train_ids[1], *self.validation_ids[1]]
        self.target_lengths = target_lengths(lengths, targets, self.buckets)
        batch_tokens = max(recipe.batch_tokens, self.buckets[-1])
        super().__init__(run, recipe, tokenizer, batch_tokens, "float32")

    def build(self) -> None:
        pad_id, smoothing = self.tokenizer.pad_id, self.recipe.label_smoothing
        config = replace(self.recipe.model, vocab_size=self.tokenizer.vocab_size)
        spec = TranslatorSpec(config, *self.data.languages, self.data.name)
        texts = ((part, []) for part in (*self.train_ids, *self.validation_ids))
        test = "\n".join([*self.data.test[0], *self.data.test[1]])
        self.begin(tokens_sha256(texts, test), spec)
        seed = self.options.seed
        self.model = created(lambda: SequenceToSequence(config, rngs=nnx.Rngs(seed)))
        self.graph = nnx.graphdef(self.model)
        self.loss = make_loss(smoothing)
        lengths = pair_lengths(*self.validation_ids)
        plans = evaluation_plans(lengths, self.buckets, self.batch_tokens)
        validation = pair_batches(plans, *self.validation_ids, self.target_lengths, pad_id)
        self.losses = make_evaluation(self.graph, validation, smoothing)

    def batches(self, epoch: int) -> LazyBatches:
        lengths, seed = pair_lengths(*self.train_ids), self.options.seed
        plans = epoch_plans(lengths, self.buckets, self.batch_tokens, seed=seed, epoch=epoch)
        return pair_batches(plans, *self.train_ids, self.target_lengths, self.tokenizer.pad_id)

    def count_tokens(self, batch: PairBatch) -> int:
        return int(batch.is_target.sum())

    def validate(self, params: nnx.State) -> dict[str, float]:
        """Return the loss on the validation pairs, and print some translations."""
        nats, smoothed = self.losses(params)
        texts, references = (part[:SHOWN] for part in self.data.validation)
        for lines in zip(texts, self._translated(params, texts, 1), references, strict=True):
            tqdm.write("\n  {}\n  -> {}\n  == {}".format(*lines))
        # Label smoothing makes a model less confident on purpose. Selected by the plain loss, an
        # early epoch would win.
        return {"validation_loss": nats, "validation_objective": -smoothed}

    def evaluate(self, fitted: FitResult) -> dict[str, Any]:
        """Translate the test texts, which are used only here, and return their BLEU."""
        data, options = self.data, self.options
        found = self._translated(fitted.params, data.test[0], options.beams)
        lines = zip(data.test[0], found, data.test[1], strict=True)
        text = "".join("{}\n-> {}\n== {}\n\n".format(*each) for each in lines)
        write_text(self.folder / "translations.txt", text)
        return {
            "task": "Translation",
            "data": {
                "name": data.name,
                "source": data.source,
                "languages": " to ".join(data.languages),
                "notes": list(data.notes),
                "train": len(data.train[0]),
                "validation": len(data.validation[0]),
                "test": len(data.test[0]),
            },
            **bleu(found, data.test[1]),
            "beams": options.beams,
            "alpha": options.alpha,
            "buckets": list(self.buckets),
        }

    def _translated(self, params: nnx.State, texts: list[str], beams: int) -> list[str]:
        model = nnx.merge(self.graph, params)
        return translated(model, self.tokenizer, texts, beams=beams, alpha=self.options.alpha)

    @staticmethod
    def result(report: dict[str, Any]) -> str:
        return f"BLEU {report['bleu']:.2f}"

    def summary(self, report: dict[str, Any]) -> str:
        signature, exact = report["bleu_signature"], report["exact"]
        return f"test        {self.result(report)} ({signature}), {exact:.2%} of the texts exact"

    def example(self) -> str:
        text = self.data.test[0][0][:60]
        return f'python -m transformer_jax translate {self.folder} "{text}"'
