r"""Train a classifier on your own texts, and compare it with a linear baseline.

    python -m train.classify --data texts.csv                   columns `text` and `label`
    python -m train.classify --data texts.csv --text-column body --label-column topic
    python -m train.classify --data FOLDER                      train.parquet and test.parquet
    python -m train.classify --data texts.csv --pretrained MODEL    fine-tune a text encoder

The run folder holds the model (use it with `python -m transformer_jax predict RUN "text"`),
report.html, report.md, report.json, metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX start threads
    from train.trainer.signals import end_on_ctrl_c

    end_on_ctrl_c()
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import sys

from train.recipes.classify_options import ClassifyOptions
from train.trainer.launcher import Program

PROGRAM = Program(
    "train.classify", __doc__, ClassifyOptions, "train.tasks.classification:Classification"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the program on `arguments`, by default the command line, and return its exit code."""
    return PROGRAM.main(arguments)


if __name__ == "__main__":
    sys.exit(PROGRAM.script())
