r"""Train a transformer to tell good reviews from bad, and report it beside a linear model.

    python -m train.imdb                            IMDb, or the built-in sample without a network
    python -m train.imdb --data FOLDER              train.parquet and test.parquet, or aclImdb
    python -m train.imdb --data reviews.csv --label-column stars
    python -m train.imdb --unlabelled --vectors     the most accurate: with texts without labels
    python -m train.imdb --recipe tutorial          the source document's model and schedule
    python -m train.imdb --pretrained MODEL         fine-tunes a text encoder, as BERT or MiniLM

It leaves a run folder: the model (use it with `python -m transformer_jax predict RUN "text"`),
report.md, report.json, metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import sys

from train.recipes.imdb_options import ImdbOptions
from train.tasks.classification import Classification
from train.trainer.launcher import Program

PROGRAM = Program("train.imdb", __doc__, ImdbOptions, Classification)


def main(arguments: list[str] | None = None) -> int:
    """Run the program, by default on the command line, and return its exit code."""
    return PROGRAM.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
