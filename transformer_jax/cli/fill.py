"""Fill the masks of a text with a pretrained masked language model.

    python -m transformer_jax fill bert-base-uncased "The film was [MASK]."

prints the likeliest tokens at each mask, with their probabilities. The mask token depends on the
model: [MASK] for BERT, <mask> for RoBERTa.
"""

import argparse

from transformer_jax.cli.terminal import writable
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.runtime.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder or Hugging Face Hub name of a model")
    parser.add_argument("text", metavar="TEXT", help="text with one or more mask tokens")
    parser.add_argument(
        "--top", type=int, default=5, metavar="K", help="tokens shown per mask (default: 5)"
    )


def run(options: argparse.Namespace) -> None:
    if options.top < 1:
        raise InputError(f"--top must be 1 or more; got {options.top}")
    folder = folder_of(options.model)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.inference.fill_mask import MaskFiller
    from transformer_jax.inference.load import load

    try:
        guesses = MaskFiller(load(folder, "masked")).fill(options.text, options.top)
    except ValueError as error:
        raise InputError(str(error)) from None
    for number, found in enumerate(guesses):
        if number:
            print()
        for guess in found:
            print(writable(f"{guess.probability:6.1%}  {guess.token:<16}  {guess.text}"))
