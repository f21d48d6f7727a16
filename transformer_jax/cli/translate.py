"""Translate texts with a trained encoder-decoder.

    python -m transformer_jax translate RUN "A man rides a horse."
    python -m transformer_jax translate RUN < texts.txt          (one text per line)

prints one translation per line.
"""

import argparse

from transformer_jax.cli.arguments import given_texts
from transformer_jax.cli.terminal import writable
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.folder_files import check_run_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="RUN", help="run folder of train.translate (its --out)")
    add("texts", metavar="TEXT", nargs="*", help="texts to translate (default: standard input)")
    add("--file", metavar="FILE", help="texts, one per line; - is standard input")
    add("--beams", type=int, default=4, metavar="W", help="beam width (default: 4)")
    add("--alpha", type=float, default=0.6, metavar="A", help="length penalty (default: 0.6)")


def run(options: argparse.Namespace) -> None:
    check_run_folder(options.folder, "train.translate")
    texts = given_texts(options)
    if options.beams < 1:
        raise InputError(f"--beams must be 1 or more; got {options.beams}")
    if not 0.0 <= options.alpha < float("inf"):
        raise InputError(f"--alpha must be 0 or more; got {options.alpha}")
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.inference.translate import Translator
    from transformer_jax.serialization.run_folder import load_model

    translator = Translator(load_model(options.folder, "SequenceToSequence"))
    trained = translator.trained
    most = trained.spec.config.max_length
    _, cuts = trained.tokenizer.encode_with_cuts(texts, most)
    for text, cut in zip(texts, cuts, strict=True):
        if cut:
            raise InputError(
                f"a text has {cut} tokens more than the {most} that the model reads; shorten "
                f"{text[:40]!r}..."
            )
    try:
        lines = translator.translate(texts, beams=options.beams, alpha=options.alpha)
    except ValueError as error:  # a search that cannot be computed
        raise InputError(str(error)) from None
    for line in lines:
        print(writable(line))
