r"""Trains a text encoder to fill masks: to say which words were taken out of reviews. Labels are
not looked at.

    python -m train.mlm                             IMDb's, 75,000 of them, or the built-in sample's
    python -m train.mlm --data FOLDER               as train.imdb reads it, and what has no labels too
    python -m train.imdb --data FOLDER --pretrained RUN     fine-tunes what it leaves

What train.imdb tests or, with the same --seed, validates on is never read. It leaves a run folder:
the model (`python -m transformer_jax fill RUN "The film was [MASK]."`), report.md, report.json,
metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import math
import sys
from dataclasses import asdict, replace

import jax
from flax import nnx

from train.data.dataset import DataError
from train.data.load import load
from train.data.mlm_texts import pretraining_texts
from train.data.packing import make_passages
from train.evaluation.curves import draw_curves
from train.evaluation.provenance import training_facts
from train.evaluation.report import write_report
from train.objectives.masked_lm import (
    MaskedBatches,
    Masking,
    make_evaluation,
    masked_batches,
    mean_loss,
    unigram_loss,
)
from train.optim.precision import compute_dtype
from train.recipes.mlm_options import check, make_parser, recipe_of
from train.trainer.faults import faults_of
from train.trainer.fit import fit
from train.trainer.launcher import MAY_CHANGE, Program, run_program
from train.trainer.run import Run, event_log
from transformer_jax.models.text_encoder import MaskedLanguageModel
from transformer_jax.parallel.mesh import num_devices
from transformer_jax.serialization.run_folder import (
    WEIGHTS,
    MaskedLanguageModelSpec,
    save_specification,
    save_weights,
)
from transformer_jax.text.pretrained_tokenizer import as_published, load_pretrained_tokenizer
from transformer_jax.text.tokenizer import train_tokenizer

PROGRAM = "train.mlm"


def main(arguments: list[str] | None = None) -> int:
    mlm = Program(PROGRAM, "mlm", make_parser(__doc__), check, train, result, MAY_CHANGE)
    return run_program(mlm, sys.argv[1:] if arguments is None else arguments)


def result(report: dict) -> str:
    return f"{report['held_out_loss']:.4f} nats a hidden token"


def train(run: Run) -> None:
    """Texts, tokens, model, loop; then the held-out texts by the weights that did best on them."""
    options, folder = run.options, run.folder
    data = load(
        options.data,
        text_column=options.text_column,
        label_column=options.label_column,
        classes=options.classes,
        seed=options.seed,
    )
    recipe = recipe_of(options, data.name)
    texts = pretraining_texts(data, options.seed)
    for note in (*data.notes, *texts.notes):
        print(f"note        {note}")
    print(
        f"data        {data.source}\n"
        f"            {len(texts.learn):,} texts to learn from, {len(texts.held_out):,} held out, from those that "
        f"train.imdb validates on: {texts.rule}"
    )
    tokenizer = run.tokenizer(
        lambda: as_published(train_tokenizer(options.tokenizer, texts.learn)),
        load_pretrained_tokenizer,
    )
    length, devices = recipe.model.max_length, num_devices()
    rows = -(-max(1, recipe.batch_tokens // length) // devices) * devices
    learnt, held_out = (
        make_passages(tokenizer, part, length) for part in (texts.learn, texts.held_out)
    )
    for name, part in (("learn from", learnt), ("hold out", held_out)):
        if not len(part.lengths):
            raise DataError(f"{data.name}: the texts to {name} are empty; pass others with --data")
    masking = Masking.of(tokenizer, recipe.mask_rate)

    def batches(epoch: int) -> MaskedBatches:
        return masked_batches(learnt, length, rows, masking, seed=options.seed, epoch=epoch)

    options.dtype = compute_dtype(options.dtype or recipe.dtype)
    config = replace(recipe.model, vocab_size=tokenizer.vocab_size)
    with faults_of(folder, rows * length):
        options.data = data.name if options.data == "auto" else options.data
        options.epochs = recipe.fit.epochs
        run.begin(learnt.sha256 + held_out.sha256)
        spec = MaskedLanguageModelSpec(config, data.name, options.seed)
        save_specification(folder, tokenizer, spec)
        model = MaskedLanguageModel(config, rngs=nnx.Rngs(options.seed))
        graph, params = nnx.split(model, nnx.Param)
        evaluate = make_evaluation(
            graph, masked_batches(held_out, length, rows, masking, seed=options.seed, epoch=0)
        )
        parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        unigram = unigram_loss(learnt, held_out, masking)
        print(
            f"            {len(learnt.tokens):,} tokens to learn from, {len(held_out.tokens):,} held out; by how often "
            f"each comes alone {unigram:.4f} nats a token\n"
            f"model       {parameters:,} parameters, {tokenizer.spec}, rows of {length}, {rows * length:,} tokens a "
            f"batch, {recipe.mask_rate:.0%} hidden, {options.dtype}"
        )

        def validate(params) -> dict[str, float]:
            nats, right, targets = evaluate(params)
            return {
                "validation_loss": nats / max(targets, 1),
                "validation_log_likelihood": -nats / max(targets, 1),
                "validation_accuracy": right / max(targets, 1),
            }

        with event_log(folder, options.tensorboard) as log:
            fitted = fit(
                model,
                mean_loss,
                batches,
                validate,
                config=replace(recipe.fit, dtype=options.dtype),
                run=folder,
                select="validation_log_likelihood",
                count_tokens=lambda batch: int((batch.text_ids > 0).sum()),
                keep=lambda params: save_weights(folder / WEIGHTS, params),
                log=log,
                resume=bool(options.resume),
            )
        draw_curves(folder / "metrics.jsonl", folder / "curves.png")
        found = validate(fitted.params)
        report = {
            "task": "Masked language model",
            "data": {
                "name": data.name,
                "source": data.source,
                "notes": [*data.notes, *texts.notes],
                "held_out": f"{texts.rule}; the loss on {len(texts.held_out):,} of them also chose the weights",
                "texts": len(texts.learn),
                "tokens": len(learnt.tokens),
                "held_out_tokens": len(held_out.tokens),
            },
            "held_out_loss": found["validation_loss"],
            "held_out_accuracy": found["validation_accuracy"],
            "perplexity": math.exp(min(found["validation_loss"], 700.0)),
            "unigram_loss": unigram,
            "settings": asdict(recipe),
            "tokenizer": tokenizer.spec,
            "seed": options.seed,
            "parameters": parameters,
            "compute_dtype": options.dtype,
            "batch_tokens": rows * length,
            "command": run.command,
            **training_facts(fitted.progress),
        }
        write_report(folder, report)
    print(
        f"held out    {report['held_out_loss']:.4f} nats a hidden token, {report['held_out_accuracy']:.2%} of them "
        f"guessed; by how often each comes alone {unigram:.4f} nats\n"
        f"written: {folder / 'report.md'}, {folder / 'report.json'}\n"
        f'try         python -m transformer_jax fill {folder} "The film was [MASK]."\n'
        f"            python -m train.imdb --data {options.data} --pretrained {folder}"
    )


if __name__ == "__main__":
    sys.exit(main())
