r"""Trains the encoder-decoder of "Attention Is All You Need" to translate.

    python -m train.translate --data sample                     words to digits, no network, three minutes
    python -m train.translate --data DIR --source en --target de
    python -m train.translate --data pairs.tsv
    python -m train.translate --data hub:bentrevett/multi30k --source en --target de

It leaves a run folder: the model (`python -m transformer_jax translate RUN "text"`), report.md,
report.json, metrics.jsonl, curves.png, and translations.txt beside the references.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import hashlib
import sys
from dataclasses import asdict, replace

import jax
import numpy as np
from flax import nnx
from tqdm import tqdm

from train.data.pairs import Pairs, load_pairs
from train.evaluation.curves import draw_curves
from train.evaluation.provenance import training_facts
from train.evaluation.report import write_report
from train.objectives.seq2seq import (
    PairBatches,
    make_evaluation,
    make_mean_loss,
    pair_lengths,
    target_lengths,
)
from train.optim.precision import compute_dtype
from train.recipes.translate_options import check, make_parser, recipe_of
from train.trainer import launcher
from train.trainer.faults import faults_of
from train.trainer.fit import fit
from train.trainer.launcher import Program, run_program
from train.trainer.run import Run, event_log
from transformer_jax.inference.translate import translated
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.runtime.files import write_text
from transformer_jax.serialization.run_folder import (
    WEIGHTS,
    TranslatorSpec,
    save_specification,
    save_weights,
)
from transformer_jax.text.batching import bucket_lengths, epoch_plans, evaluation_plans
from transformer_jax.text.tokenizer import train_tokenizer

PROGRAM = "train.translate"
MAY_CHANGE = launcher.MAY_CHANGE | {"beams", "alpha"}
SHOWN = 3  # translations that are printed while it learns


def main(arguments: list[str] | None = None) -> int:
    translate = Program(
        PROGRAM, "translate", make_parser(__doc__), check, train, result, MAY_CHANGE
    )
    return run_program(translate, sys.argv[1:] if arguments is None else arguments)


def result(report: dict) -> str:
    return f"BLEU {report['bleu']:.2f}"


def train(run: Run) -> None:
    """Pairs, model, loop; then the test part, once."""
    options, folder, recipe = run.options, run.folder, recipe_of(run.options)
    pairs = load_pairs(options.data, options.source, options.target, options.seed)
    for note in pairs.notes:
        print(f"note        {note}")
    print(
        f"data        {pairs.origin}: {len(pairs.train[0]):,} pairs to train, {len(pairs.validation[0]):,} to "
        f"validate, {len(pairs.test[0]):,} to test"
    )
    tokenizer = run.tokenizer(
        lambda: train_tokenizer(recipe.tokenizer, [*pairs.train[0], *pairs.train[1]], lossless=True)
    )
    most = recipe.model.max_length
    learnt, held = (
        [tokenizer.encode(texts, most) for texts in part]
        for part in (pairs.train, pairs.validation)
    )
    lengths = pair_lengths(*learnt)
    every = [*lengths, *pair_lengths(*held)]
    buckets = bucket_lengths(every, most, recipe.buckets)
    of_targets = target_lengths(every, [*learnt[1], *held[1]], buckets)
    batch_tokens = max(recipe.batch_tokens, buckets[-1])
    options.dtype = compute_dtype(options.dtype or "float32")
    config = replace(recipe.model, vocab_size=tokenizer.vocab_size)

    def batches(epoch: int) -> PairBatches:
        plans = epoch_plans(lengths, buckets, batch_tokens, seed=options.seed, epoch=epoch)
        return PairBatches(plans, *learnt, of_targets, tokenizer.pad_id)

    with faults_of(folder, batch_tokens):
        options.epochs = recipe.fit.epochs
        run.begin(data_sha256(learnt, held, pairs))
        spec = TranslatorSpec(config, *pairs.languages, pairs.name)
        save_specification(folder, tokenizer, spec)
        model = SequenceToSequence(config, rngs=nnx.Rngs(options.seed))
        graph, params = nnx.split(model, nnx.Param)
        plans = evaluation_plans(pair_lengths(*held), buckets, batch_tokens)
        evaluate = make_evaluation(
            graph,
            PairBatches(plans, *held, of_targets, tokenizer.pad_id),
            recipe.label_smoothing,
        )
        parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        print(
            f"model       {parameters:,} parameters, {tokenizer.spec}, at most {most} tokens a text, "
            f"{batch_tokens:,} a batch, {options.dtype}"
        )

        def write(params, texts: list[str], beams: int) -> list[str]:
            model = nnx.merge(graph, params)
            return translated(model, tokenizer, texts, beams=beams, alpha=options.alpha)

        def validate(params) -> dict[str, float]:
            nats, smoothed = evaluate(params)
            texts, references = (part[:SHOWN] for part in pairs.validation)
            for lines in zip(texts, write(params, texts, 1), references, strict=True):
                tqdm.write("\n  {}\n  -> {}\n  == {}".format(*lines))
            # A model that has learnt smoothed labels is unsure on purpose: by nats alone an early
            # one would win.
            return {"validation_loss": nats, "validation_objective": -smoothed}

        with event_log(folder, options.tensorboard) as log:
            fitted = fit(
                model,
                make_mean_loss(tokenizer.pad_id, recipe.label_smoothing),
                batches,
                validate,
                config=replace(recipe.fit, dtype=options.dtype),
                run=folder,
                select="validation_objective",
                count_tokens=lambda batch: int((batch.wanted != tokenizer.pad_id).sum()),
                keep=lambda params: save_weights(folder / WEIGHTS, params),
                log=log,
                resume=bool(options.resume),
            )
        draw_curves(folder / "metrics.jsonl", folder / "curves.png")
        # The one reading of the test part, by the weights that validation chose.
        written = write(fitted.params, pairs.test[0], options.beams)
        write_text(folder / "translations.txt", side_by_side(*pairs.test, written))
        report = {
            "task": "Translation",
            "data": {
                "name": pairs.name,
                "source": pairs.origin,
                "languages": " to ".join(pairs.languages),
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
            "beams": options.beams,
            "alpha": options.alpha,
            "batch_tokens": batch_tokens,
            "buckets": list(buckets),
            "command": run.command,
            **training_facts(fitted.progress),
        }
        write_report(folder, report)
    print(
        f"test        BLEU {report['bleu']:.2f} ({report['bleu_signature']}), {report['exact']:.2%} of the texts exact\n"
        f"written: {folder / 'report.md'}, {folder / 'report.json'}, {folder / 'translations.txt'}\n"
        f'try         python -m transformer_jax translate {folder} "{pairs.test[0][0][:60]}"'
    )


def scores(written: list[str], references: list[str]) -> dict[str, object]:
    """BLEU as sacrebleu counts it (Post, 2018, https://arxiv.org/abs/1804.08771): 13a tokens, mixed
    case.
    """
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
