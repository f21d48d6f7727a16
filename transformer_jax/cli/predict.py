"""Classify texts with a trained model.

    python -m transformer_jax predict RUN "A wonderful film." "Dull."
    python -m transformer_jax predict RUN --file texts.txt
    python -m transformer_jax predict RUN --file texts.csv --text-column body -o labelled.csv

prints the predicted label, its probability and the text, or with --json one object per line. A file
named .csv, .tsv, .json, .jsonl or .parquet is a table, as train.classify reads it, and so is a
folder with such files (shards) or saved by datasets; FOLDER/test is its part test. Any other file
has one text per line, and - is standard input. -o writes the input with the label and its
probability added. They come in the order of the texts, as they are classified, and the texts that
are mostly out of the model's vocabulary are counted.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.cli.arguments import (
    given_texts,
    warn_of_blank,
    warn_of_paths,
    warn_of_sample,
    warn_of_unknown,
)
from transformer_jax.cli.predicted_tables import check_output, write_predictions
from transformer_jax.cli.terminal import writable
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.texts import json_line
from transformer_jax.serialization.folder_files import CLASSIFIER_PROGRAMS, check_run_folder
from transformer_jax.text.table_folders import is_tabular, read_whole
from transformer_jax.text.tables import Table

if TYPE_CHECKING:
    from transformer_jax.inference.classify import Prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="run folder of train.classify or train.imdb")
    parser.add_argument(
        "texts", metavar="TEXT", nargs="*", help="texts to classify (default: standard input)"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="a table or a folder, or texts, one per line; - is standard input",
    )
    parser.add_argument(
        "--text-column", metavar="NAME", help="column of the texts of a table (default: text)"
    )
    parser.add_argument(
        "--encoding", metavar="NAME", help="encoding of a table, such as cp1252 (default: UTF-8)"
    )
    parser.add_argument(
        "-o", "--out", metavar="OUT", help="table to write: a .csv, .tsv or .jsonl file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(options: argparse.Namespace) -> None:
    check_run_folder(options.folder, CLASSIFIER_PROGRAMS)
    if options.out is not None:
        check_output(options.out, options.file)
    table, texts = _given(options)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.inference.classify import Classifier
    from transformer_jax.runtime.progress import print_above
    from transformer_jax.serialization.run_folder import load_classifier

    classifier = Classifier(load_classifier(options.folder))
    if not options.json:
        warn_of_sample(classifier.trained)
    predictions = _with_note(classifier.stream(texts, progress=True))
    if options.out is not None:
        said = write_predictions(options.out, table, predictions)
        print(writable(said), file=sys.stderr)
        return
    for line in format_predictions(predictions, as_json=options.json):
        print_above(writable(line))


def _given(options: argparse.Namespace) -> tuple[Table, list[str]]:
    """Return the table of `--file` and its texts, or a table of the texts that are given."""
    warn_of_paths(options.texts)
    if not options.file or not is_tabular(Path(options.file)):
        for name, value in (("text-column", options.text_column), ("encoding", options.encoding)):
            if value is not None:
                raise InputError(f"--{name} is for --file with a .csv or another table")
        texts = given_texts(options)
        return Table("texts", ["text"], [texts], range(len(texts))), texts
    if options.texts:
        raise InputError(f"pass texts or the table {options.file}, not both")
    column = options.text_column or "text"
    table = read_whole(Path(options.file), [column], encoding=options.encoding)
    texts = table.texts(column, "--text-column")
    if not texts:
        raise InputError(f"{options.file} holds no text")
    for note in table.notes:
        print(writable(f"note: {note}"), file=sys.stderr)
    return table, texts


def _with_note(predictions: Iterable["Prediction"]) -> Iterator["Prediction"]:
    """Yield the predictions, and count blank and unknown texts on standard error at the end."""
    texts = blank = unknown = 0
    for prediction in predictions:
        texts, blank = texts + 1, blank + (not prediction.text.strip())
        unknown += prediction.is_mostly_unknown
        yield prediction
    warn_of_blank(blank, texts)
    warn_of_unknown(unknown, texts)


def format_predictions(predictions: Iterable["Prediction"], *, as_json: bool) -> Iterable[str]:
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
