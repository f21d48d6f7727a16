r"""Pretrain a text encoder on reviews by masked language modelling. Labels are ignored.

    python -m train.mlm                             IMDb (75,000 reviews), or the built-in sample
    python -m train.mlm --data FOLDER               as for train.imdb, unlabelled texts included
    python -m train.imdb --data FOLDER --pretrained RUN     fine-tune the encoder of this run

It never trains on the test texts of train.imdb, nor on its validation texts for the same --seed.
The run folder holds the model (`python -m transformer_jax fill RUN "The film was [MASK]."`),
report.html, report.md, report.json, metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX start threads
    from train.trainer.signals import end_on_ctrl_c

    end_on_ctrl_c()
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import sys

from train.recipes.mlm import MaskedLanguageModelOptions
from train.trainer.launcher import Program

PROGRAM = Program(
    "train.mlm", __doc__, MaskedLanguageModelOptions, "train.tasks.masked_lm:MaskedLanguageModeling"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the program on `arguments`, by default the command line, and return its exit code."""
    return PROGRAM.main(arguments)


if __name__ == "__main__":
    sys.exit(PROGRAM.script())
