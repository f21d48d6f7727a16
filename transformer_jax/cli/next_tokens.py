"""Show the likeliest next tokens of a text, with their probabilities.

    python -m transformer_jax next RUN "The film was"

prints a table, the likeliest first (--count 10).
"""

import argparse

import numpy as np

from transformer_jax.cli.arguments import LANGUAGE_MODEL, check_local, prompt_ids
from transformer_jax.cli.terminal import writable
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
    check_local(options.folder, "train.lm")
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.generation.generate import next_tokens
    from transformer_jax.inference.load import load

    trained = load(options.folder, "language")
    prompt = prompt_ids(trained, options.prompt)
    most = trained.spec.config.max_length
    if len(prompt) > most:
        raise InputError(f"the text has {len(prompt)} tokens, but the model reads at most {most}")
    best, probabilities = next_tokens(
        trained.model, prompt[None], np.ones((1, len(prompt)), bool), options.count
    )
    for token, probability in zip(best[0].tolist(), probabilities[0].tolist(), strict=True):
        print(writable(f"{probability:8.3%}  {trained.tokenizer.spell(token)!r}"))
