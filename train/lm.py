r"""Trains a language model: to say which token comes next.

    python -m train.lm --data sample                generated reviews, no network, two minutes
    python -m train.lm --data FILE                  one text, as a book; its last tenth is held out
    python -m train.lm --data DIR --tokenizer bpe:8192      a folder of .txt files, a text each
    python -m train.lm --data hub:roneneldan/TinyStories

It leaves a run folder: the model (`python -m transformer_jax generate RUN "prompt"`), report.md, report.json,
metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from train.memory import keep_freed_memory

    keep_freed_memory()

import argparse
import itertools
import math
import resource
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from tqdm import tqdm

from train.curves import draw_curves
from train.faults import faults_of
from train.language import epoch_batches, every_window, make_evaluation, mean_loss
from train.loop import fit
from train.memory import freed_memory_is_kept
from train.optimizers import OptimizerConfig
from train.precision import compute_dtype
from train.program import COMMON, MAY_CHANGE, OptionError, add_common, check_numbers, run_program
from train.report import finished, machine, versions, write_report
from train.run import RunError, event_log, resumed_options, write_options
from train.step import FitConfig
from train.texts import Texts, load_texts
from train.token_file import TokenFile, write_tokens
from transformer_jax.config import LanguageModelConfig, StackConfig
from transformer_jax.generation import generate
from transformer_jax.language_models import LanguageModel
from transformer_jax.run_folder import (
    TOKENIZER,
    WEIGHTS,
    LanguageModelSpec,
    save_specification,
    save_weights,
)
from transformer_jax.sampling import Sampling
from transformer_jax.tokenizers import (
    Tokenizer,
    TokenizerError,
    load_tokenizer,
    train_tokenizer,
)

PROGRAM = "train.lm"
SHOWN = 120  # tokens of the text that is printed while it learns


@dataclass(frozen=True)
class Recipe:
    """Model and schedule; the size of the vocabulary comes with the texts."""

    model: LanguageModelConfig
    fit: FitConfig
    batch_tokens: int


def recipe_of(options: argparse.Namespace) -> Recipe:
    """A small GPT of the sizes that the options name."""
    D, heads = options.embed_dim, options.heads
    stack = StackConfig(
        num_layers=options.layers,
        embed_dim=D,
        num_heads=heads,
        hidden_dim=4 * D,
        norm="pre",
        final_norm=True,
        activation="gelu_tanh",
        dropout_rate=options.dropout,
        attention_dropout_rate=0.0,
    )
    model = LanguageModelConfig(
        vocab_size=1,
        max_length=options.length,
        decoder=stack,
        positions=options.positions,
        window=options.window,
        embedding_dropout_rate=options.dropout,
    )
    fit_config = FitConfig(
        epochs=10,
        average_decay=0.99,
        optimizer=OptimizerConfig(
            learning_rate=options.learning_rate, warmup_fraction=0.05, weight_decay=0.1, b2=0.99
        ),
    )
    changes = {
        name: getattr(options, name)
        for name in ("epochs", "max_steps", "seed", "checkpoint_minutes")
        if getattr(options, name) is not None
    }
    tokens = options.batch_tokens or 32 * options.length
    return Recipe(model, replace(fit_config, **changes), tokens)


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
        help="a text file, a folder of .txt files, hub:NAME, or sample (default)",
    )
    add("--tokenizer", default="char", metavar="SPEC", help="char (default), bpe:N or gpt2")
    add("--gpt2-files", metavar="DIR", help="encoder.json and vocab.bpe, if tiktoken has none")
    add("--length", type=int, default=256, metavar="T", help="tokens of a window (default: 256)")
    add("--layers", type=int, default=4, metavar="L", help="default: 4")
    add("--embed-dim", type=int, default=192, metavar="D", help="default: 192")
    add("--heads", type=int, default=6, metavar="N", help="default: 6")
    add("--positions", default="rotary", choices=("learned", "sinusoidal", "rotary", "alibi"))
    add(
        "--window", type=int, metavar="W", help="a token sees so many before its own (default: all)"
    )
    add("--dropout", type=float, default=0.1, metavar="P", help="default: 0.1")
    add(
        "--learning-rate", type=float, default=2e-3, metavar="R", help="the highest (default: 2e-3)"
    )
    add_common(add, "lm")
    return parser


def check(options: argparse.Namespace) -> None:
    """The numbers among the options, before anything is read or made."""
    check_numbers(
        options,
        (*COMMON, ("length", 2), ("layers", 1), ("embed_dim", 1), ("heads", 1), ("window", 0)),
    )
    if not 0 < options.learning_rate < math.inf:
        raise OptionError(f"--learning-rate must be above 0; got {options.learning_rate}")
    if options.batch_tokens is not None and options.batch_tokens < options.length:
        raise OptionError(
            f"--batch-tokens {options.batch_tokens} is less than one window of {options.length} tokens; "
            "pass more, or a smaller --length"
        )
    try:
        recipe_of(options)
    except ValueError as error:
        raise OptionError(str(error)) from None


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    return run_program(PROGRAM, "lm", make_parser(__doc__), check, train, arguments)


def train(run: Path, parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Texts, tokens, model, loop; then the held-out part by the weights that did best on it."""
    options, began_with = parser.parse_args(arguments), None
    if options.resume:
        may_change = MAY_CHANGE | {"gpt2_files"}
        options, began_with = resumed_options(run, PROGRAM, parser, arguments, may_change)
        check(options)
        if report := finished(run, options.epochs):
            print(
                f"{run} is finished: {report['epochs']} epochs, {report['held_out_loss']:.4f} nats a token; "
                f"see {run / 'report.md'}. --epochs {options.epochs + 1} or more goes on"
            )
            return
    texts = load_texts(options.data, options.seed)
    recipe = recipe_of(options)
    length = recipe.model.max_length
    print(f"data        {texts.source}; held out: {texts.rule}")
    tokenizer = tokenizer_of(run, texts, options)
    folder = run / "tokens"
    parts = {
        name: write_tokens(folder / f"{name}.bin", read(), tokenizer, framed=texts.separate)
        for name, read in (("train", texts.train), ("held_out", texts.held_out))
    }
    learnt, held_out = parts["train"], parts["held_out"]
    for name, part in parts.items():
        if len(part.tokens) <= length:
            shutil.rmtree(folder)
            raise OptionError(
                f"the part of the texts to {'learn from' if name == 'train' else 'hold out'} has "
                f"{len(part.tokens)} tokens, no more than one window of {length}; pass more text or a smaller --length"
            )
    sha256 = learnt.sha256 + held_out.sha256
    if began_with not in (None, sha256):
        raise RunError(f"the data are not those that {run} began with; pass the same with --data")
    cls_id = tokenizer.cls_id if texts.separate else None
    rows = max(1, recipe.batch_tokens // length)
    options.dtype = compute_dtype(options.dtype or "float32")
    config = replace(recipe.model, vocab_size=tokenizer.vocab_size)

    def batches(epoch: int):
        return epoch_batches(learnt.tokens, length, rows, cls_id, seed=options.seed, epoch=epoch)

    with faults_of(run, rows * length):
        options.epochs = recipe.fit.epochs
        write_options(run, PROGRAM, options, sha256)
        save_specification(run, tokenizer, LanguageModelSpec(config, texts.name, texts.separate))
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

        with event_log(run, options.tensorboard) as log:
            fitted = fit(
                model,
                mean_loss,
                batches,
                validate,
                config=replace(recipe.fit, dtype=options.dtype),
                run=run,
                select="validation_log_likelihood",
                count_tokens=lambda batch: batch.tokens.size,
                keep=lambda params: save_weights(run / WEIGHTS, params),
                log=log,
                resume=bool(options.resume),
            )
        draw_curves(run / "metrics.jsonl", run / "curves.png")
        report = {
            "task": "Language model",
            "data": {
                "name": texts.name,
                "source": texts.source,
                "held_out": texts.rule,
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
            "freed_memory_kept": freed_memory_is_kept(),
            "batch_tokens": rows * length,
            "steps": fitted.progress.step,
            "skipped_steps": fitted.progress.skipped,
            "epochs": fitted.progress.epoch,
            "best_epoch": fitted.progress.best_epoch,
            "train_seconds": fitted.progress.train_seconds,
            "checkpoint_seconds": fitted.progress.save_seconds,
            "tokens_per_second": fitted.progress.tokens / max(fitted.progress.step_seconds, 1e-9),
            "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "command": shlex.join(["python", "-m", PROGRAM, *arguments]),
            "versions": versions(),
            "machine": machine(),
        }
        write_report(run, report)
    shutil.rmtree(folder, ignore_errors=True)  # the texts are there still
    print(
        f"held out    {report['held_out_loss']:.4f} nats a token, perplexity {report['perplexity']:.2f}, "
        f"{report['bits_per_byte']:.4f} bits a byte\n"
        f"written: {run / 'report.md'}, {run / 'report.json'}\n"
        f'try         python -m transformer_jax generate {run} "The "'
    )


def scores(nats: float, targets: int, part: TokenFile) -> dict[str, float]:
    """Of the held-out part: the mean over its targets, and over its bytes, which no tokenizer changes."""
    return {
        "held_out_loss": nats / targets,
        "perplexity": math.exp(min(nats / targets, 700.0)),
        "bits_per_byte": nats / math.log(2) / part.bytes,
    }


def tokenizer_of(run: Path, texts: Texts, options: argparse.Namespace) -> Tokenizer:
    """The run's own when it goes on, else one learned from the part to learn from."""
    if options.resume:
        try:
            return load_tokenizer(run / TOKENIZER)
        except TokenizerError as error:
            print(f"note        {error}; it is learned again")
    pieces: Iterator[str] = itertools.chain.from_iterable(texts.train())
    return train_tokenizer(options.tokenizer, pieces, lossless=True, gpt2_files=options.gpt2_files)


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
