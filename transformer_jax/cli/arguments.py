"""Arguments that several commands share, and the texts that they stand for."""

import argparse
import sys

import numpy as np

from transformer_jax.cli.terminal import read_lines
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.run_folder import Trained

LANGUAGE_MODEL = "a run folder, the --out of train.lm; or a folder or name of a GPT-2 or Llama"


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add `--dtype`, of commands that compute vectors."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32",
        help="of the computation (default: float32)",
    )  # fmt: skip


def given_texts(options: argparse.Namespace) -> list[str]:
    """Return the texts of TEXT and `--file`; without either, the lines of standard input."""
    if options.file:
        return [*options.texts, *read_lines(options.file)]
    if options.texts:
        return list(options.texts)
    if sys.stdin.isatty():
        raise InputError('no text given; pass "a text", --file FILE or --file - to type some')
    return read_lines("-")


def prompt_ids(trained: Trained, text: str) -> np.ndarray:
    """Return the ids of a prompt of a language model."""
    if not text:
        raise InputError("an empty prompt; pass a word at least")
    return trained.tokenizer.prompt(text, framed=trained.spec.framed)


def warn_of_sample(classifier: Trained) -> None:
    """Say on standard error that a classifier was not trained on real reviews."""
    if classifier.spec.data == "sample":
        note = "note: this model was trained on the built-in sample, not on real reviews"
        print(note, file=sys.stderr)
