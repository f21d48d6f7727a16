"""Classify texts with a trained model.

    python -m transformer_jax predict RUN "A wonderful film." "Dull."
    python -m transformer_jax predict RUN --file reviews.txt

prints the predicted label, its probability and the text, or with --json one object per line. The
file has one text per line; - is standard input.
"""

import argparse
from collections.abc import Iterable
from dataclasses import asdict

from transformer_jax.cli.arguments import given_texts, warn_of_sample
from transformer_jax.cli.terminal import writable
from transformer_jax.inference.classify import Prediction, predict
from transformer_jax.runtime.texts import json_line
from transformer_jax.serialization.run_folder import load_classifier


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="run folder of train.classify or train.imdb")
    parser.add_argument(
        "texts", metavar="TEXT", nargs="*", help="texts to classify (default: standard input)"
    )
    parser.add_argument("--file", metavar="FILE", help="texts, one per line; - is standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(options: argparse.Namespace) -> None:
    texts = given_texts(options)
    classifier = load_classifier(options.folder)
    if not options.json:
        warn_of_sample(classifier)
    for line in format_predictions(predict(classifier, texts), as_json=options.json):
        print(writable(line))


def format_predictions(predictions: Iterable[Prediction], *, as_json: bool) -> Iterable[str]:
    for prediction in predictions:
        if as_json:
            yield json_line(asdict(prediction))
            continue
        shown = " ".join(prediction.text.split())
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        line = f"{prediction.label:<10} {prediction.probability:6.1%}  {shown}"
        if prediction.tokens_cut:
            line += f"   (cut: {prediction.tokens_cut} tokens were not read)"
        yield line
