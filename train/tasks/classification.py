"""Text classification by a network and n-grams, compared with a linear baseline."""

import hashlib
import shlex
import sys
import textwrap
from dataclasses import replace
from typing import Any

import numpy as np
from flax import nnx
from scipy.special import softmax

from train.classifier.build import FromPretrained, FromScratch, batch_shapes
from train.classifier.calibration import only
from train.classifier.unlabelled import learn_unlabelled, unlabelled_texts
from train.data.class_notes import class_notes, listed
from train.data.dataset import Dataset, tokens_sha256
from train.data.load import load_data
from train.data.splits import validation_part
from train.evaluation.baseline import compare_with_baseline
from train.evaluation.examples import examples
from train.evaluation.metrics import compared, score
from train.evaluation.mistakes import write_mistakes
from train.evaluation.report import summary, write_report
from train.objectives.classification import balanced_weights, make_loss
from train.recipes.classify_options import recipe_of
from train.tasks.task import Task
from train.trainer.faults import faults_of
from train.trainer.fit import FitResult
from train.trainer.run import Run, finished
from train.trainer.together import check_same
from transformer_jax.inference.classify import Scorer
from transformer_jax.runtime.progress import SHORT, ProgressBar
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import Batch, Batches, epoch_plans

SMALL = 2**17  # tokens that a small model computes in a few seconds


class Classification(Task):
    """A text classifier, evaluated once by its accuracy on the test texts."""

    select = "validation_accuracy"

    def __init__(self, run: Run, data: Dataset | None = None):
        options = run.options
        self.balanced = options.class_weights == "balanced"
        self.data = data = load_data(options) if data is None else data
        for i, note in enumerate(data.notes):
            if i == 0 and options.data == "auto" and data.name == "sample":
                announce(note)
            else:
                print(f"note        {note}")
        recipe = recipe_of(options, data.name)
        if options.pretrained:
            self.start = FromPretrained(recipe, options)
        else:
            self.start = FromScratch(recipe, options.seed, options.gpt2_files)
        recipe = self.start.recipe
        self.train_split, self.validation, self.split_rule = validation_part(
            data, recipe.validation_fraction, options.seed
        )
        self.notes = class_notes(
            self.train_split, self.validation, data.test, data.classes, balanced=self.balanced
        )
        for note in self.notes:
            print(f"note        {note}")
        print(
            f"data        {data.source}\n"
            f"            {len(self.train_split):,} to train, {len(self.validation):,} to "
            f"validate, {len(data.test):,} to test; {self.split_rule}\n"
            f"            {len(data.classes):,} classes: {listed(data.classes)}"
        )
        labelled = self.train_split, self.validation
        unlabelled = unlabelled_texts(data, recipe, labelled) if options.unlabelled else []
        tokenizer = run.tokenizer(
            lambda: self.start.make_tokenizer([*self.train_split.texts, *unlabelled]),
            self.start.load_tokenizer,
        )
        if recipe.token_dropout and tokenizer.mask_id is None:
            print(f"note        {tokenizer.spec} has no mask token: token dropout is off")
            recipe = replace(recipe, token_dropout=0.0)
        texts = *(split.texts for split in (*labelled, data.test)), unlabelled
        self.encoded = [
            tokenizer.encode(part, recipe.model.max_length, recipe.truncate) for part in texts
        ]
        self.buckets, batch_tokens = batch_shapes(self.encoded, recipe, options.batch_tokens)
        super().__init__(run, recipe, tokenizer, batch_tokens, recipe.dtype)

    def build(self) -> None:
        """Build the classifier, fit its n-grams, and make pseudo-labels of unlabelled texts."""
        train, validation, _, unlabelled = self.encoded
        tokenizer, recipe, data = self.tokenizer, self.recipe, self.data
        splits = self.train_split, self.validation, data.test
        self.labels = labels = self.train_split.labels
        self.classifier = self.start.make(
            tokenizer, data.classes, data.name, train, labels, balanced=self.balanced
        )
        sums = zip(self.encoded, [*(split.labels for split in splits), []], strict=True)
        sha256 = self.start.sha256(tokens_sha256(sums))
        self.begin(sha256, self.classifier.spec, *self.start.beside)
        self.facts = {}
        if unlabelled:
            self.labels, self.facts = learn_unlabelled(
                (train, unlabelled, validation),
                (labels, self.validation.labels),
                self.classifier.solver,
                recipe,
                unknown=() if tokenizer.unk_id is None else (tokenizer.unk_id,),
                seed=self.options.seed,
                folder=self.folder,
            )
            check_same("pseudo-labels", hashlib.sha256(self.labels.tobytes()).hexdigest())
        self.model = self.classifier.model
        self.scorer = Scorer(self.model, tokenizer.pad_id, self.buckets, self.batch_tokens)
        self.loss = make_loss(
            tokenizer,
            token_dropout=recipe.token_dropout,
            smoothing=recipe.label_smoothing,
            margin=recipe.margin,
            labelled=len(train) if unlabelled else None,
            unlabelled_weight=recipe.unlabelled_weight,
            class_weights=balanced_weights(labels, len(data.classes)) if self.balanced else None,
        )

    @property
    def trained(self) -> nnx.Module:
        return self.classifier.trained

    def keep(self, params: nnx.State, after: tuple[int, int] | None = None) -> None:
        super().keep(self.classifier.kept(params), after)

    def batches(self, epoch: int) -> Batches:
        texts, seed = self.encoded[0] + self.encoded[3], self.options.seed
        lengths = [len(ids) for ids in texts]
        plans = epoch_plans(lengths, self.buckets, self.batch_tokens, seed=seed, epoch=epoch)
        return Batches(plans, texts, self.labels, self.tokenizer.pad_id)

    def count_tokens(self, batch: Batch) -> int:
        return int(batch.is_token.sum())

    def validate(self, params: nnx.State) -> dict[str, float]:
        """Return the accuracy and log loss on the validation texts."""
        probabilities = self.scorer(self.encoded[1], self.classifier.kept(params))
        found = score(probabilities, self.validation.labels, self.data.classes)
        return {"validation_accuracy": found["accuracy"], "validation_loss": found["log_loss"]}

    def train_only(self) -> None:
        """Build and fit, calibrate and save the weights; report how, and test nothing."""
        with faults_of(self.folder, self.batch_tokens), self.resources:
            self.build()
            fitted = self.fit()
            _, weights = self.calibrate(fitted.params)
            write_report(self.folder, {**self.described(), "weights": weights, **self.made(fitted)})

    def calibrate(self, params: nnx.State) -> tuple[nnx.State, dict[str, float]]:
        """Fit the weights of the parts on validation; save the parameters, and return both."""
        classifier, labels = self.classifier, self.validation.labels
        params, weights = classifier.calibrated(
            classifier.kept(params), self.scorer, self.encoded[1], labels
        )
        super().keep(params)
        return params, weights

    def described(self) -> dict[str, Any]:
        """Return the report entries on the data and the recipe."""
        data, unlabelled = self.data, self.encoded[3]
        return {
            "data": {
                "name": data.name,
                "source": data.source,
                "notes": [*data.notes, *self.notes],
                "train": len(self.train_split),
                "validation": len(self.validation),
                "test": len(data.test),
                **({"unlabelled": len(unlabelled)} if unlabelled else {}),
            },
            **({"class_notes": list(self.notes)} if self.notes else {}),
            "split_rule": self.split_rule,
            "recipe": self.recipe.name,
            **({"class_weights": "balanced"} if self.balanced else {}),
            **({"pretrained": self.options.pretrained} if self.options.pretrained else {}),
            "buckets": list(self.buckets),
        }

    def evaluate(self, fitted: FitResult) -> dict[str, Any]:
        """Calibrate and save the weights, then score the test texts, which are used only here."""
        classifier, data = self.classifier, self.data
        test = self.encoded[2]
        params, weights = self.calibrate(fitted.params)
        with ProgressBar(
            total=len(test), desc="testing", unit="text", leave=False, delay=SHORT
        ) as bar:
            probabilities = self.scorer(test, params, done=bar.update)
        scores = score(probabilities, data.test.labels, data.classes)
        self.examples = examples(data.test.texts, data.test.labels, probabilities)
        report = {
            **self.described(),
            "weights": weights,
            "test_accuracy": scores["accuracy"],
            "test_accuracy_interval": scores["accuracy_interval"],
            "test": scores,
            **self.facts,
        }
        if classifier.solver:
            parts = {
                "evidence": softmax(classifier.solver.logits(test), axis=1),
                "head": self.scorer(test, only(params, "head", classifier.parts)),
            }
            report["evidence_seconds"] = classifier.solver.seconds
            report["alone"] = {
                name: compared(probabilities, part, data.test.labels, data.classes)
                for name, part in parts.items()
            }
        if not self.options.no_baseline:
            print("baseline    TF-IDF bigrams and logistic regression ...", flush=True)
            report |= compare_with_baseline(
                data, self.train_split, self.validation, probabilities, balanced=self.balanced
            )
        self.keep_mistakes(params, probabilities)
        # If a finished run is extended, its test accuracy was measured before.
        earlier = finished(self.folder, 0) or {}
        if "test_accuracy" in earlier:  # the estimator measures none
            accuracies = earlier.get("earlier_test_accuracies", [])
            report["earlier_test_accuracies"] = [*accuracies, earlier["test_accuracy"]]
        return report

    def keep_mistakes(self, params: nnx.State, probabilities: np.ndarray) -> None:
        """Write the most confident mistakes on the test texts, for `report.html`."""
        fit = self.recipe.fit
        trained = fit.epochs * sum(map(len, self.encoded[0]))
        if fit.max_steps is not None:
            trained = min(trained, fit.max_steps * self.batch_tokens)
        model = nnx.merge(nnx.graphdef(self.model), params)
        write_mistakes(
            self.folder,
            Trained(model, self.tokenizer, self.classifier.spec),
            self.data.test.texts,
            self.data.test.labels,
            probabilities,
            # A tenth of training, or as much as training if that takes a few seconds.
            tokens=max(trained / 10, min(trained, SMALL)),
        )

    @staticmethod
    def result(report: dict[str, Any]) -> str:
        accuracy = report.get("test_accuracy")  # a run of the estimator has none
        return "not tested" if accuracy is None else f"test accuracy {accuracy:.2%}"

    def summary(self, report: dict[str, Any]) -> str:
        return summary(report)

    def example(self) -> str:
        command = ["python", "-m", "transformer_jax", "predict", str(self.folder)]
        test, classes = self.data.test, self.data.classes
        if not self.examples:
            return f"{shlex.join(command)} --file texts.txt    (one text per line)"
        labels = " and ".join(classes[test.labels[i]] for i in self.examples)
        what = "a text that was held out; it is"
        if len(self.examples) == 2:
            what = "two held-out texts with the same words in another order; they are"
        texts = (test.texts[i] for i in self.examples)
        return f"{shlex.join([*command, *texts])}\n            ({what} {labels})"


def announce(note: str) -> None:
    """Print a framed note to standard error, so that it is not missed."""
    frame = "!" * 100
    lines = (f"! {line}" for line in textwrap.wrap(note, 96))
    print(frame, *lines, frame, sep="\n", file=sys.stderr)
