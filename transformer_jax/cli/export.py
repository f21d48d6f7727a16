"""Save a fine-tuned classifier as Hugging Face Transformers loads it.

    python -m transformer_jax export RUN FOLDER

RUN is a run folder of train.classify or train.imdb with --pretrained, for an encoder of BERT,
RoBERTa, XLM-R or DistilBERT whose first token is pooled (--pooling cls). FOLDER is created;
Transformers loads it with AutoModelForSequenceClassification and AutoTokenizer. Its README.md is a
model card with the labels and the results in report.json.
"""

import argparse
import sys

from transformer_jax.cli.arguments import warn_of_sample
from transformer_jax.cli.terminal import writable
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.folder_files import (
    CLASSIFIER_PROGRAMS,
    check_new_folder,
    check_run_folder,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="run folder of a classifier")
    parser.add_argument("out", metavar="FOLDER", help="folder to create")


def run(options: argparse.Namespace) -> None:
    check_run_folder(options.folder, CLASSIFIER_PROGRAMS)
    check_new_folder(options.out)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.pretrained.export import export_classifier

    try:
        trained = export_classifier(options.folder, options.out)
    except OSError as error:
        raise InputError(f"{options.out} cannot be written: {error.strerror}") from None
    warn_of_sample(trained)
    if trained.spec.truncate == "head-tail":
        note = (
            f"note: Transformers cuts a text of more than {trained.spec.max_length} tokens at its "
            "end, and this run leaves out the middle"
        )
        print(writable(note), file=sys.stderr)
    print(writable(f"wrote {options.out}: {', '.join(trained.spec.classes)}"), file=sys.stderr)
