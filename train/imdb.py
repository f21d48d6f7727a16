r"""Train a text classifier, by default on IMDb reviews, and compare it with a linear baseline.

    python -m train.imdb                            IMDb, or the built-in sample without a network
    python -m train.imdb --data FOLDER              train.parquet and test.parquet, or aclImdb
    python -m train.imdb --data reviews.csv --label-column stars
    python -m train.imdb --unlabelled --vectors     most accurate; needs unlabelled texts too
    python -m train.imdb --recipe tutorial          model and schedule of the source document
    python -m train.imdb --pretrained MODEL         fine-tune a text encoder such as BERT or MiniLM

The run folder holds the model (use it with `python -m transformer_jax predict RUN "text"`),
report.html, report.md, report.json, metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX start threads
    from train.trainer.signals import end_on_ctrl_c

    end_on_ctrl_c()
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import sys

from train.recipes.classify_options import ImdbOptions
from train.trainer.launcher import Program

PROGRAM = Program("train.imdb", __doc__, ImdbOptions, "train.tasks.classification:Classification")


def main(arguments: list[str] | None = None) -> int:
    """Run the program on `arguments`, by default the command line, and return its exit code."""
    return PROGRAM.main(arguments)


if __name__ == "__main__":
    sys.exit(PROGRAM.script())
