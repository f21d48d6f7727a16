"""Show the likeliest next tokens of a text, with their probabilities.

    python -m transformer_jax next RUN "The film was"

prints a table, the likeliest first (--count 10).
"""

import argparse

from transformer_jax.cli.arguments import LANGUAGE_MODEL
from transformer_jax.cli.terminal import writable
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.runtime.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="MODEL", help=LANGUAGE_MODEL)
    parser.add_argument("prompt", metavar="TEXT", help="text before the next token")
    parser.add_argument(
        "--count", type=int, default=10, metavar="N", help="number of tokens shown (default: 10)"
    )


def run(options: argparse.Namespace) -> None:
    if options.count < 1:
        raise InputError(f"--count must be 1 or more; got {options.count}")
    folder = folder_of(options.folder)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.inference.load import load
    from transformer_jax.inference.text_generator import TextGenerator

    writer = TextGenerator(load(folder, "language"))
    for token, probability in writer.next_tokens(options.prompt, options.count):
        print(writable(f"{probability:8.3%}  {token!r}"))
