r"""Trains the encoder-decoder of "Attention Is All You Need" to translate.

    python -m train.translate --data sample                     words to digits, no network, three minutes
    python -m train.translate --data DIR --source en --target de
    python -m train.translate --data pairs.tsv
    python -m train.translate --data hub:bentrevett/multi30k --source en --target de

It leaves a run folder: the model (`python -m transformer_jax translate RUN "text"`), report.md, report.json,
metrics.jsonl, curves.png, and translations.txt beside the references.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from train.memory import keep_freed_memory

    keep_freed_memory()

import argparse
import hashlib
import math
import resource
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from tqdm import tqdm

from train.curves import draw_curves
from train.faults import faults_of
from train.loop import fit
from train.memory import freed_memory_is_kept
from train.optimizers import OptimizerConfig
from train.pairs import Pairs, load_pairs
from train.precision import compute_dtype
from train.program import COMMON, MAY_CHANGE, OptionError, add_common, check_numbers, run_program
from train.report import finished, machine, versions, write_report
from train.run import RunError, event_log, resumed_options, write_options
from train.step import FitConfig
from train.transduction import (
    PairBatches,
    make_evaluation,
    make_mean_loss,
    pair_lengths,
    target_lengths,
)
from transformer_jax.batching import bucket_lengths, epoch_plans, evaluation_plans
from transformer_jax.config import SequenceToSequenceConfig, StackConfig
from transformer_jax.files import write_text
from transformer_jax.language_models import SequenceToSequence
from transformer_jax.run_folder import (
    TOKENIZER,
    WEIGHTS,
    TranslatorSpec,
    save_specification,
    save_weights,
)
from transformer_jax.tokenizers import Tokenizer, TokenizerError, load_tokenizer, train_tokenizer
from transformer_jax.translation import translated

PROGRAM = "train.translate"
SHOWN = 3  # translations that are printed while it learns


@dataclass(frozen=True)
class Recipe:
    """Model and schedule; the size of the vocabulary comes with the texts."""

    tokenizer: str
    model: SequenceToSequenceConfig
    fit: FitConfig
    batch_tokens: int
    label_smoothing: float


def recipe_of(options: argparse.Namespace) -> Recipe:
    """A small model of 2017, of the sizes that the options name."""
    sample = options.data == "sample"
    D = options.embed_dim or (128 if sample else 192)
    stack = StackConfig(
        num_layers=options.layers or (2 if sample else 3),
        embed_dim=D,
        num_heads=options.heads,
        hidden_dim=(2 if sample else 4) * D,
        norm=options.norm,
        final_norm=options.norm == "pre",
        dropout_rate=options.dropout if options.dropout is not None else (0.0 if sample else 0.2),
        attention_dropout_rate=0.0,
    )
    model = SequenceToSequenceConfig(
        vocab_size=1,
        max_length=options.max_length,
        encoder=stack,
        decoder=stack,
        embedding_dropout_rate=stack.dropout_rate,
    )
    config = FitConfig(
        epochs=5 if sample else 20,
        average_decay=0.99,
        optimizer=OptimizerConfig(
            learning_rate=options.learning_rate, warmup_fraction=0.1, weight_decay=0.01, b2=0.98
        ),
    )
    changes = {
        name: getattr(options, name)
        for name in ("epochs", "max_steps", "seed", "checkpoint_minutes")
        if getattr(options, name) is not None
    }
    return Recipe(
        options.tokenizer or ("char" if sample else "bpe:8000"),
        model,
        replace(config, **changes),
        options.batch_tokens or (1024 if sample else 2048),
        options.label_smoothing,
    )


def make_parser(description: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--data",
        default="sample",
        metavar="WHAT",
        help="a folder of train/val/test*.LANGUAGE(.gz), a .tsv, hub:NAME, or sample (default)",
    )
    add("--source", default="en", metavar="LANGUAGE", help="default: en")
    add("--target", default="de", metavar="LANGUAGE", help="default: de")
    add("--tokenizer", metavar="SPEC", help="char or bpe:N, of both languages (default: bpe:8000)")
    add("--max-length", type=int, default=128, metavar="N", help="of a text (default: 128)")
    add("--layers", type=int, metavar="L", help="of each stack (default: 3)")
    add("--embed-dim", type=int, metavar="D", help="default: 192")
    add("--heads", type=int, default=4, metavar="N", help="default: 4")
    add("--norm", choices=("pre", "post"), default="pre", help="default: pre; 2017's is post")
    add("--dropout", type=float, metavar="P", help="default: 0.2")
    add("--label-smoothing", type=float, default=0.1, metavar="E", help="default: 0.1")
    add(
        "--learning-rate", type=float, default=2e-3, metavar="R", help="the highest (default: 2e-3)"
    )
    add("--beams", type=int, default=4, metavar="W", help="of the search at the end (default: 4)")
    add("--alpha", type=float, default=0.6, metavar="A", help="length penalty (default: 0.6)")
    add_common(add, "translate")
    return parser


def check(options: argparse.Namespace) -> None:
    """The numbers among the options, before anything is read or made."""
    check_numbers(
        options,
        (*COMMON, ("max_length", 3), ("layers", 1), ("embed_dim", 1), ("heads", 1), ("beams", 1)),
    )
    for name, low in (("learning_rate", 1e-12), ("alpha", 0.0)):
        if not low <= getattr(options, name) < math.inf:
            raise OptionError(
                f"--{name.replace('_', '-')} must be a number above 0; got {getattr(options, name)}"
            )
    if not 0.0 <= options.label_smoothing < 1.0:
        raise OptionError(f"--label-smoothing must be in [0, 1); got {options.label_smoothing}")
    if options.batch_tokens is not None and options.batch_tokens < options.max_length:
        raise OptionError(
            f"--batch-tokens {options.batch_tokens} is less than one text of {options.max_length} tokens; "
            "pass more, or a smaller --max-length"
        )
    try:
        recipe_of(options)
    except ValueError as error:
        raise OptionError(str(error)) from None


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    return run_program(PROGRAM, "translate", make_parser(__doc__), check, train, arguments)


def train(run: Path, parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Pairs, model, loop; then the test part, once."""
    options, began_with = parser.parse_args(arguments), None
    if options.resume:
        options, began_with = resumed_options(
            run, PROGRAM, parser, arguments, MAY_CHANGE | {"beams", "alpha"}
        )
        check(options)
        if report := finished(run, options.epochs):
            print(
                f"{run} is finished: {report['epochs']} epochs, BLEU {report['bleu']:.2f}; see "
                f"{run / 'report.md'}. --epochs {options.epochs + 1} or more goes on"
            )
            return
    pairs = load_pairs(options.data, options.source, options.target, options.seed)
    recipe = recipe_of(options)
    for note in pairs.notes:
        print(f"note        {note}")
    print(
        f"data        {pairs.origin}: {len(pairs.train[0]):,} pairs to train, {len(pairs.validation[0]):,} to "
        f"validate, {len(pairs.test[0]):,} to test"
    )
    tokenizer = tokenizer_of(run, recipe, pairs, options)
    most = recipe.model.max_length
    learnt, held = (
        [tokenizer.encode(texts, most) for texts in part]
        for part in (pairs.train, pairs.validation)
    )
    sha256 = data_sha256(learnt, held, pairs)
    if began_with not in (None, sha256):
        raise RunError(f"the data are not those that {run} began with; pass the same with --data")
    lengths = pair_lengths(*learnt)
    every = [*lengths, *pair_lengths(*held)]
    buckets = bucket_lengths(every, most, 4)
    of_targets = target_lengths(every, [*learnt[1], *held[1]], buckets)
    batch_tokens = max(recipe.batch_tokens, buckets[-1])
    options.dtype = compute_dtype(options.dtype or "float32")
    config = replace(recipe.model, vocab_size=tokenizer.vocab_size)

    def batches(epoch: int) -> PairBatches:
        plans = epoch_plans(lengths, buckets, batch_tokens, seed=options.seed, epoch=epoch)
        return PairBatches(plans, *learnt, of_targets, tokenizer.pad_id)

    with faults_of(run, batch_tokens):
        options.epochs = recipe.fit.epochs
        write_options(run, PROGRAM, options, sha256)
        spec = TranslatorSpec(config, options.source, options.target, pairs.name)
        save_specification(run, tokenizer, spec)
        model = SequenceToSequence(config, rngs=nnx.Rngs(options.seed))
        graph, params = nnx.split(model, nnx.Param)
        plans = evaluation_plans(pair_lengths(*held), buckets, batch_tokens)
        evaluate = make_evaluation(graph, PairBatches(plans, *held, of_targets, tokenizer.pad_id))
        parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        print(
            f"model       {parameters:,} parameters, {tokenizer.spec}, at most {most} tokens a text, "
            f"{batch_tokens:,} a batch, {options.dtype}"
        )

        def write(params, texts: list[str], beams: int) -> list[str]:
            model = nnx.merge(graph, params)
            return translated(model, tokenizer, texts, beams=beams, alpha=options.alpha)

        def validate(params) -> dict[str, float]:
            nats, tokens = evaluate(params)
            texts, references = (part[:SHOWN] for part in pairs.validation)
            for lines in zip(texts, write(params, texts, 1), references, strict=True):
                tqdm.write("\n  {}\n  -> {}\n  == {}".format(*lines))
            return {
                "validation_loss": nats / tokens,
                "validation_log_likelihood": -nats / tokens,
            }

        with event_log(run, options.tensorboard) as log:
            fitted = fit(
                model,
                make_mean_loss(tokenizer.pad_id, recipe.label_smoothing),
                batches,
                validate,
                config=replace(recipe.fit, dtype=options.dtype),
                run=run,
                select="validation_log_likelihood",
                count_tokens=lambda batch: int((batch.wanted != tokenizer.pad_id).sum()),
                keep=lambda params: save_weights(run / WEIGHTS, params),
                log=log,
                resume=bool(options.resume),
            )
        draw_curves(run / "metrics.jsonl", run / "curves.png")
        # The one reading of the test part, by the weights that validation chose.
        written = write(fitted.params, pairs.test[0], options.beams)
        write_text(run / "translations.txt", side_by_side(*pairs.test, written))
        progress = fitted.progress
        report = {
            "task": "Translation",
            "data": {
                "name": pairs.name,
                "source": pairs.origin,
                "languages": f"{options.source} to {options.target}",
                "notes": list(pairs.notes),
                "train": len(pairs.train[0]),
                "validation": len(pairs.validation[0]),
                "test": len(pairs.test[0]),
            },
            **scores(written, pairs.test[1]),
            "settings": asdict(recipe),
            "tokenizer": tokenizer.spec,
            "seed": options.seed,
            "parameters": parameters,
            "compute_dtype": options.dtype,
            "freed_memory_kept": freed_memory_is_kept(),
            "beams": options.beams,
            "alpha": options.alpha,
            "batch_tokens": batch_tokens,
            "buckets": list(buckets),
            "steps": progress.step,
            "skipped_steps": progress.skipped,
            "epochs": progress.epoch,
            "best_epoch": progress.best_epoch,
            **(progress.best_metrics or {}),
            "train_seconds": progress.train_seconds,
            "checkpoint_seconds": progress.save_seconds,
            "tokens_per_second": progress.tokens / max(progress.step_seconds, 1e-9),
            "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "command": shlex.join(["python", "-m", PROGRAM, *arguments]),
            "versions": versions(),
            "machine": machine(),
        }
        write_report(run, report)
    print(
        f"test        BLEU {report['bleu']:.2f} ({report['bleu_signature']}), {report['exact']:.2%} of the texts exact\n"
        f"written: {run / 'report.md'}, {run / 'report.json'}, {run / 'translations.txt'}\n"
        f'try         python -m transformer_jax translate {run} "{pairs.test[0][0][:60]}"'
    )


def scores(written: list[str], references: list[str]) -> dict[str, object]:
    """BLEU as sacrebleu counts it (Post, 2018, https://arxiv.org/abs/1804.08771): 13a tokens, mixed case."""
    import sacrebleu

    metric = sacrebleu.metrics.BLEU()
    bleu = metric.corpus_score(written, [references]).score
    same = [one.strip() == other.strip() for one, other in zip(written, references, strict=True)]
    return {
        "bleu": bleu,
        "bleu_signature": str(metric.get_signature()),
        "exact": float(np.mean(same)),
    }


def side_by_side(sources: list[str], references: list[str], written: list[str]) -> str:
    """Source, translation and reference of every test text."""
    return "".join(
        f"{one}\n-> {ours}\n== {other}\n\n"
        for one, ours, other in zip(sources, written, references, strict=True)
    )


def tokenizer_of(run: Path, recipe: Recipe, pairs: Pairs, options: argparse.Namespace) -> Tokenizer:
    """The run's own when it goes on, else one learned from both languages of the training part."""
    if options.resume:
        try:
            return load_tokenizer(run / TOKENIZER)
        except TokenizerError as error:
            print(f"note        {error}; it is learned again")
    return train_tokenizer(recipe.tokenizer, [*pairs.train[0], *pairs.train[1]], lossless=True)


def data_sha256(learnt: list, held: list, pairs: Pairs) -> str:
    """Of every token to train and validate with, and of the test texts."""
    digest = hashlib.sha256()
    for texts in (*learnt, *held):
        digest.update(np.array([len(ids) for ids in texts], np.int64).tobytes())
        digest.update(np.concatenate(texts).astype(np.int64).tobytes())
    digest.update("\n".join([*pairs.test[0], *pairs.test[1]]).encode("utf-8", "replace"))
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
