"""Arguments that several commands share, and the functions that read their values."""

import argparse
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.cli.terminal import read_lines, writable
from transformer_jax.parallel.mesh import use_mesh
from transformer_jax.runtime.errors import InputError

if TYPE_CHECKING:
    from transformer_jax.serialization.run_folder import Trained

LANGUAGE_MODEL = (
    "run folder of train.lm (its --out), or the folder or hub name of a GPT-2, Llama, SmolLM, "
    "Qwen2 or Qwen3 model"
)

PATH = re.compile(
    r"[^\s]{1,200}\.(txt|csv|tsv|jsonl?|ndjson|parquet)(\.gz)?|(\.{0,2}|~)/[^\s]{1,200}"
)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add the option `--dtype` to a command that computes embeddings."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32",
        help="dtype of the computation (default: float32)",
    )  # fmt: skip


def add_mesh(parser: argparse.ArgumentParser) -> None:
    """Add the option `--mesh` to a command that uses a model."""
    parser.add_argument(
        "--mesh", metavar="AXES",
        help="distribute the model over all devices by these sizes of data, fsdp and tensor, such "
        "as fsdp=4,tensor=2; -1 stands for the rest",
    )  # fmt: skip


def mesh_of(text: str | None) -> AbstractContextManager[None]:
    """Return a context that sets the mesh of `--mesh`; without the option, none.

    Raises InputError if there is no such mesh.
    """
    if text is None:
        return nullcontext()
    try:
        return use_mesh(text)
    except ValueError as error:
        raise InputError(str(error)) from None


def given_texts(options: argparse.Namespace) -> list[str]:
    """Return the texts of TEXT and `--file`, or the lines of standard input if both are missing.

    Raises InputError if both are missing and standard input is a terminal.
    """
    if options.file is not None:
        return [*options.texts, *read_lines(options.file)]
    if options.texts:
        return list(options.texts)
    if sys.stdin.isatty():
        raise InputError('no text given; pass "a text", --file FILE, or --file - to type texts')
    return read_lines("-")


def warn_of_paths(texts: Sequence[str]) -> None:
    """Print a note on standard error for each text that looks like the path of a file."""
    for text in texts:
        if PATH.fullmatch(text):
            there = "is a file" if Path(text).is_file() else "looks like a file that does not exist"
            note = f"note: {text} {there}, and is taken for a text; --file FILE reads a file"
            print(writable(note), file=sys.stderr)


def warn_of_sample(classifier: "Trained") -> None:
    """Print a note on standard error if a classifier was trained on the built-in sample."""
    if classifier.spec.data == "sample":
        note = "note: this model was trained on the built-in sample, not on real reviews"
        print(note, file=sys.stderr)


def warn_of_blank(blank: int, texts: int) -> None:
    """Print a note on standard error if texts have no words."""
    if blank:
        note = f"note: {blank:,} of {texts:,} texts are blank, so that the label says nothing"
        print(note, file=sys.stderr)


def warn_of_unknown(unknown: int, texts: int) -> None:
    """Print a note on standard error if texts are mostly out of the vocabulary of the model."""
    if unknown:
        print(
            f"note: in {unknown:,} of {texts:,} texts at least half of the words are out of the "
            "model's vocabulary, so that the label says little",
            file=sys.stderr,
        )
