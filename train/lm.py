r"""Trains a language model: to say which token comes next.

    python -m train.lm --data sample                generated reviews, no network, two minutes
    python -m train.lm --data FILE                  one text, as a book; its last tenth is held out
    python -m train.lm --data DIR --tokenizer bpe:8192      a folder of .txt files, a text each
    python -m train.lm --data hub:roneneldan/TinyStories

It leaves a run folder: the model (`python -m transformer_jax generate RUN "prompt"`), report.md,
report.json, metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import itertools
import math
import sys
from dataclasses import asdict, replace

import jax
import numpy as np
from flax import nnx
from tqdm import tqdm

from train.data.text_files import load_texts
from train.data.token_file import TokenFile, token_files
from train.evaluation.curves import draw_curves
from train.evaluation.provenance import training_facts
from train.evaluation.report import write_report
from train.objectives.language_modeling import (
    WindowBatches,
    epoch_batches,
    every_window,
    make_evaluation,
    mean_loss,
)
from train.optim.precision import compute_dtype
from train.recipes.lm_options import check, make_parser, recipe_of
from train.trainer import launcher
from train.trainer.faults import faults_of
from train.trainer.fit import fit
from train.trainer.launcher import OptionError, Program, run_program
from train.trainer.run import Run, event_log
from transformer_jax.generation.generate import generate
from transformer_jax.generation.sampling import Sampling
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.serialization.run_folder import (
    WEIGHTS,
    LanguageModelSpec,
    save_specification,
    save_weights,
)
from transformer_jax.text.tokenizer import Tokenizer, train_tokenizer

PROGRAM = "train.lm"
MAY_CHANGE = launcher.MAY_CHANGE | {"gpt2_files"}
SHOWN = 120  # tokens of the text that is printed while it learns


def main(arguments: list[str] | None = None) -> int:
    lm = Program(PROGRAM, "lm", make_parser(__doc__), check, train, result, MAY_CHANGE)
    return run_program(lm, sys.argv[1:] if arguments is None else arguments)


def result(report: dict) -> str:
    return f"{report['held_out_loss']:.4f} nats a token"


def train(run: Run) -> None:
    """Texts, tokens, model, loop; then the held-out part by the weights that did best on it."""
    options, folder, recipe = run.options, run.folder, recipe_of(run.options)
    length = recipe.model.max_length
    rows = max(1, recipe.batch_tokens // length)
    texts = load_texts(options.data, options.seed)
    print(f"data        {texts.source}; held out: {texts.rule}")
    tokenizer = run.tokenizer(
        lambda: train_tokenizer(
            options.tokenizer,
            itertools.chain.from_iterable(texts.train()),
            lossless=True,
            gpt2_files=options.gpt2_files,
        )
    )
    cls_id = tokenizer.cls_id if texts.separate else None
    options.dtype = compute_dtype(options.dtype or "float32")
    config = replace(recipe.model, vocab_size=tokenizer.vocab_size)

    with (
        faults_of(folder, rows * length),
        token_files(
            folder / "tokens",
            tokenizer,
            {"train": texts.train, "held_out": texts.held_out},
            framed=texts.separate,
        ) as parts,
    ):
        learnt, held_out = parts["train"], parts["held_out"]
        for name, part in (("learn from", learnt), ("hold out", held_out)):
            if len(part.tokens) <= length:
                raise OptionError(
                    f"the part of the texts to {name} has {len(part.tokens)} tokens, no more than one window of "
                    f"{length}; pass more text or a smaller --length"
                )

        def batches(epoch: int) -> WindowBatches:
            return epoch_batches(
                learnt.tokens, length, rows, cls_id, seed=options.seed, epoch=epoch
            )

        options.epochs = recipe.fit.epochs
        run.begin(learnt.sha256 + held_out.sha256)
        save_specification(folder, tokenizer, LanguageModelSpec(config, texts.name, texts.separate))
        model = LanguageModel(config, rngs=nnx.Rngs(options.seed))
        graph, params = nnx.split(model, nnx.Param)
        evaluate = make_evaluation(graph, every_window(held_out.tokens, length, rows, cls_id))
        parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        print(
            f"            {len(learnt.tokens):,} tokens to learn from, {len(held_out.tokens):,} held out\n"
            f"model       {parameters:,} parameters, {tokenizer.spec} of {config.vocab_size:,} tokens, windows of "
            f"{length}, {rows * length:,} tokens a batch, {options.dtype}"
        )

        def validate(params) -> dict[str, float]:
            nats, targets = evaluate(params)
            tqdm.write(f"\n{a_text(graph, params, tokenizer, held_out.tokens, options.seed)}\n")
            return {
                "validation_loss": nats / targets,
                "validation_log_likelihood": -nats / targets,
                "validation_bits_per_byte": nats / math.log(2) / held_out.bytes,
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
                count_tokens=lambda batch: batch.tokens.size,
                keep=lambda params: save_weights(folder / WEIGHTS, params),
                log=log,
                resume=bool(options.resume),
            )
        draw_curves(folder / "metrics.jsonl", folder / "curves.png")
        report = {
            "task": "Language model",
            "data": {
                "name": texts.name,
                "source": texts.source,
                "held_out": f"{texts.rule}; its loss also chose the weights",
                "tokens": len(learnt.tokens),
                "held_out_tokens": len(held_out.tokens),
                "held_out_bytes": held_out.bytes,
            },
            **scores(*evaluate(fitted.params), held_out),
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
        f"held out    {report['held_out_loss']:.4f} nats a token, perplexity {report['perplexity']:.2f}, "
        f"{report['bits_per_byte']:.4f} bits a byte; it also chose the weights\n"
        f"written: {folder / 'report.md'}, {folder / 'report.json'}\n"
        f'try         python -m transformer_jax generate {folder} "The "'
    )


def scores(nats: float, targets: int, part: TokenFile) -> dict[str, float]:
    """Of the held-out part: the mean over its targets, and over its bytes, which no tokenizer
    changes.
    """
    return {
        "held_out_loss": nats / targets,
        "perplexity": math.exp(min(nats / targets, 700.0)),
        "bits_per_byte": nats / math.log(2) / part.bytes,
    }


def a_text(graph, params, tokenizer: Tokenizer, held_out: np.ndarray, seed: int) -> str:
    """What the model writes behind the first tokens of the held-out part."""
    model = nnx.merge(graph, params)
    most = model.config.max_length
    prompt = np.asarray(held_out[: min(16, most // 2)], np.int32)[None]
    written = generate(
        model,
        prompt,
        max_tokens=min(SHOWN, most - prompt.shape[1]),
        sampling=Sampling(temperature=0.8),
        stop=(tokenizer.sep_id,),
        key=jax.random.key(seed),
        pad_id=tokenizer.pad_id,
    )
    return tokenizer.decode(prompt[0]) + "|" + tokenizer.decode(np.asarray(written.tokens[0]))


if __name__ == "__main__":
    sys.exit(main())
