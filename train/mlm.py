r"""Train a text encoder to predict words that are hidden in reviews. Labels are ignored.

    python -m train.mlm                             IMDb's, 75,000 of them, or the built-in sample's
    python -m train.mlm --data FOLDER               as train.imdb reads it, with unlabelled texts
    python -m train.imdb --data FOLDER --pretrained RUN     fine-tunes what it leaves

What train.imdb tests or, with the same --seed, validates on is never read. It leaves a run folder:
the model (`python -m transformer_jax fill RUN "The film was [MASK]."`), report.md, report.json,
metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import sys

from train.recipes.mlm import MaskedLanguageModelOptions
from train.tasks.masked_lm import MaskedLanguageModeling
from train.trainer.launcher import Program

PROGRAM = Program("train.mlm", __doc__, MaskedLanguageModelOptions, MaskedLanguageModeling)


def main(arguments: list[str] | None = None) -> int:
    """Run the program, by default on the command line, and return its exit code."""
    return PROGRAM.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
