r"""Train the encoder-decoder of "Attention Is All You Need" to translate.

    python -m train.translate --data sample                     words to digits, three minutes
    python -m train.translate --data DIR --source en --target de
    python -m train.translate --data pairs.tsv
    python -m train.translate --data hub:bentrevett/multi30k --source en --target de

It leaves a run folder: the model (`python -m transformer_jax translate RUN "text"`), report.md,
report.json, metrics.jsonl, curves.png, and translations.txt beside the references.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import sys

from train.recipes.translate import TranslationOptions
from train.tasks.translation import Translation
from train.trainer.launcher import Program

PROGRAM = Program("train.translate", __doc__, TranslationOptions, Translation)


def main(arguments: list[str] | None = None) -> int:
    """Run the program, by default on the command line, and return its exit code."""
    return PROGRAM.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
