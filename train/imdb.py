r"""Trains a transformer to tell good reviews from bad, and reports it beside a linear model.

    python -m train.imdb                            IMDb, or the built-in sample without a network
    python -m train.imdb --data FOLDER              train.parquet and test.parquet, or aclImdb
    python -m train.imdb --data reviews.csv --label-column stars
    python -m train.imdb --unlabelled --vectors     the most accurate: learns from texts without labels too
    python -m train.imdb --recipe tutorial          the source document's model and schedule
    python -m train.imdb --pretrained MODEL         fine-tunes a text encoder, as BERT or MiniLM

It leaves a run folder: the model (use it with `python -m transformer_jax predict RUN "text"`),
report.md, report.json, metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import hashlib
import sys
import textwrap
from dataclasses import asdict, replace

import jax
import numpy as np
from flax import nnx
from scipy.special import softmax

from train.classifier.build import FromPretrained, FromScratch
from train.classifier.calibration import calibrated, only, weighted
from train.classifier.pseudo_labels import guess_the_rest
from train.data.dataset import Dataset, Split
from train.data.load import load, split_validation
from train.data.splits import drop_overlap
from train.evaluation.baseline import compare_with_baseline
from train.evaluation.components import compare_with_parts
from train.evaluation.curves import draw_curves
from train.evaluation.metrics import score
from train.evaluation.provenance import training_facts
from train.evaluation.report import finished, summary, write_report
from train.objectives.classification import make_loss
from train.optim.precision import compute_dtype
from train.recipes.imdb import Recipe
from train.recipes.imdb_options import check, make_parser, recipe_of
from train.trainer import launcher
from train.trainer.faults import faults_of
from train.trainer.fit import fit
from train.trainer.launcher import OptionError, Program, run_program
from train.trainer.run import Run, event_log
from transformer_jax.inference.classify import Scorer
from transformer_jax.parallel.mesh import num_devices
from transformer_jax.serialization.run_folder import WEIGHTS, save_specification, save_weights
from transformer_jax.text.batching import Batches, bucket_lengths, epoch_plans

PROGRAM = "train.imdb"
MAY_CHANGE = launcher.MAY_CHANGE | {"no_baseline", "gpt2_files", "pretrained"}


def main(arguments: list[str] | None = None) -> int:
    imdb = Program(PROGRAM, "imdb", make_parser(__doc__), check, train, result, MAY_CHANGE)
    return run_program(imdb, sys.argv[1:] if arguments is None else arguments)


def result(report: dict) -> str:
    return f"test accuracy {report['test_accuracy']:.2%}"


def train(run: Run) -> None:
    """Data, model, optimizer, loop; then the test split, once."""
    options, folder = run.options, run.folder
    data = load(
        options.data,
        text_column=options.text_column,
        label_column=options.label_column,
        classes=options.classes,
        seed=options.seed,
    )
    fell_back = options.data == "auto" and data.name == "sample"
    for i, note in enumerate(data.notes):
        announce(note) if fell_back and i == 0 else print(f"note        {note}")
    begin = FromPretrained if options.pretrained else FromScratch
    beginning = begin(recipe_of(options, data.name), options)
    recipe = beginning.recipe
    train_split, validation, split_rule = split_validation(
        data.train, recipe.validation_fraction, options.seed
    )
    print(f"data        {data.source}")
    print(
        f"            {len(train_split):,} to train, {len(validation):,} to validate, {len(data.test):,} to test; "
        f"{split_rule}"
    )

    splits = (train_split, validation, data.test)
    unlabelled = unlabelled_texts(data, recipe, splits[:2]) if options.unlabelled else []
    tokenizer = run.tokenizer(
        lambda: beginning.make_tokenizer([*train_split.texts, *unlabelled]),
        beginning.load_tokenizer,
    )
    if recipe.token_dropout and tokenizer.mask_id is None:
        print(f"note        {tokenizer.spec} has no mask token: no token dropout")
        recipe = replace(recipe, token_dropout=0.0)
    encoded = [
        tokenizer.encode(texts, recipe.model.max_length, recipe.truncate)
        for texts in (*(split.texts for split in splits), unlabelled)
    ]
    buckets, batch_tokens = shapes(encoded, recipe, options.batch_tokens)
    learned = encoded[0] + encoded[3]
    lengths = [len(ids) for ids in learned]

    options.dtype = compute_dtype(options.dtype or recipe.dtype)
    with faults_of(folder, batch_tokens):
        options.data = data.name if options.data == "auto" else options.data
        options.epochs = recipe.fit.epochs
        classifier = beginning.make(
            tokenizer, data.classes, data.name, encoded[0], train_split.labels
        )
        beginning.begin(run, data_sha256(encoded, splits))
        save_specification(folder, tokenizer, classifier.spec)
        labels, guesses = train_split.labels, None
        if unlabelled:
            labels, guesses = guess_the_rest(
                (encoded[0], encoded[3], encoded[1]),
                (train_split.labels, validation.labels),
                classifier.solver,
                recipe,
                unknown=() if tokenizer.unk_id is None else (tokenizer.unk_id,),
                seed=options.seed,
                folder=folder,
            )

        def batches(epoch: int) -> Batches:
            plans = epoch_plans(lengths, buckets, batch_tokens, seed=options.seed, epoch=epoch)
            return Batches(plans, learned, labels, tokenizer.pad_id, num_devices())

        scorer = Scorer(classifier.model, tokenizer.pad_id, buckets, batch_tokens)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(scorer.params))
        print(
            f"model       {parameters:,} parameters, {tokenizer.spec}, at most {recipe.model.max_length} tokens a "
            f"text, {batch_tokens:,} a batch, {options.dtype}"
        )

        def validate(params) -> dict[str, float]:
            probabilities = scorer(encoded[1], classifier.kept(params))
            found = score(probabilities, validation.labels, data.classes)
            return {
                "validation_accuracy": found["accuracy"],
                "validation_loss": found["log_loss"],
            }

        with event_log(folder, options.tensorboard) as log:
            fitted = fit(
                classifier.trained,
                make_loss(
                    tokenizer,
                    token_dropout=recipe.token_dropout,
                    smoothing=recipe.label_smoothing,
                    margin=recipe.margin,
                    labelled=len(train_split) if unlabelled else None,
                    unlabelled_weight=recipe.unlabelled_weight,
                ),
                batches,
                validate,
                config=replace(recipe.fit, dtype=options.dtype),
                run=folder,
                select="validation_accuracy",
                count_tokens=lambda batch: int((batch.tokens != tokenizer.pad_id).sum()),
                keep=lambda params: save_weights(folder / WEIGHTS, classifier.kept(params)),
                log=log,
                resume=bool(options.resume),
            )
        draw_curves(folder / "metrics.jsonl", folder / "curves.png")

        kept = classifier.kept(fitted.params)
        kept, weights = calibrated(
            kept,
            lambda params: scorer(encoded[1], params),
            validation.labels,
            classifier.parts,
        )
        if classifier.solver:
            # Validation has nothing left to choose: the n-grams learn from it too.
            if guesses:
                every = np.concatenate([labels, validation.labels])
                classifier.solver.distil(learned + encoded[1], every, guesses.validated)
            else:
                classifier.solver.fit(encoded[1], validation.labels)
            kept = nnx.merge_state(kept, weighted(classifier.solved(), weights))
        save_weights(folder / WEIGHTS, kept)

        # The one reading of the test split, by the weights that validation chose.
        probabilities = scorer(encoded[2], kept)
        scores = score(probabilities, data.test.labels, data.classes)
        report = {
            "data": {
                "name": data.name,
                "source": data.source,
                "notes": list(data.notes),
                "train": len(train_split),
                "validation": len(validation),
                "test": len(data.test),
                **({"unlabelled": len(unlabelled)} if unlabelled else {}),
            },
            "split_rule": split_rule,
            "recipe": recipe.name,
            **({"pretrained": options.pretrained} if options.pretrained else {}),
            "settings": asdict(recipe),
            "tokenizer": tokenizer.spec,
            "seed": options.seed,
            "parameters": parameters,
            "compute_dtype": options.dtype,
            "batch_tokens": batch_tokens,
            "buckets": list(buckets),
            "weights": weights,
            "test_accuracy": scores["accuracy"],
            "test_accuracy_interval": scores["accuracy_interval"],
            "test": scores,
            "command": run.command,
            **training_facts(fitted.progress),
            **({"evidence_seconds": classifier.solver.seconds} if classifier.solver else {}),
            **(guesses.facts if guesses else {}),
        }
        if classifier.solver:
            parts = {
                "evidence": softmax(classifier.solver.logits(encoded[2]), axis=1),
                "head": scorer(encoded[2], only(kept, "head", classifier.parts)),
            }
            report |= compare_with_parts(probabilities, parts, data.test.labels, data.classes)
        if not options.no_baseline:
            print("baseline    TF-IDF bigrams and logistic regression ...", flush=True)
            report |= compare_with_baseline(data, train_split, validation, probabilities)
        if earlier := finished(folder, 0):  # the run was extended: the test split was read before
            report["earlier_test_accuracies"] = [
                *earlier.get("earlier_test_accuracies", []), earlier["test_accuracy"]
            ]  # fmt: skip
        write_report(folder, report)
    print(summary(report, folder))
    print(f'try         python -m transformer_jax predict {folder} "What a film!"')


def unlabelled_texts(data: Dataset, recipe: Recipe, splits: tuple[Split, ...]) -> list[str]:
    """Those of the data that repeat none of these splits; no test text is among them."""
    if not data.unsupervised:
        raise OptionError(
            f"--unlabelled: {data.name} has no texts without labels; leave it out, or pass a folder that has "
            "unsupervised.parquet or train/unsup"
        )
    if not getattr(recipe.model, "ngrams", 0):
        raise OptionError(
            f"--unlabelled: n-grams say what is what, and the recipe has none for {data.name}; leave it out"
        )
    kept = drop_overlap(data.unsupervised, [text for split in splits for text in split.texts])
    if not len(kept):
        raise OptionError(
            "--unlabelled: every text without a label repeats one that has a label; leave it out"
        )
    print(f"            {len(kept):,} without labels, which the n-grams give them")
    return [data.unsupervised[i] for i in kept]


def data_sha256(encoded: list[list[np.ndarray]], splits: tuple[Split, ...]) -> str:
    """Of every token and every label in their order, then of texts without labels: all that
    training sees of the data.
    """
    digest = hashlib.sha256()
    for texts, labels in zip(encoded, (*(split.labels for split in splits), ()), strict=True):
        digest.update(np.array([len(ids) for ids in texts], np.int64).tobytes())
        digest.update(np.concatenate([*texts, labels]).astype(np.int64).tobytes())
    return digest.hexdigest()


def shapes(
    encoded: list[list[np.ndarray]], recipe: Recipe, batch_tokens: int | None
) -> tuple[tuple[int, ...], int]:
    """The lengths that batches come in, and the tokens in each: `batch_examples` texts of average
    length.
    """
    lengths = np.array([len(ids) for split in encoded for ids in split])
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


def announce(note: str) -> None:
    """What nobody may miss."""
    frame = "!" * 100
    lines = textwrap.wrap(note, 96)
    print("\n".join([frame, *(f"! {line}" for line in lines), frame]), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
