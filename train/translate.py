r"""Train the encoder-decoder of "Attention Is All You Need" to translate.

    python -m train.translate --data sample                     words to digits; three minutes
    python -m train.translate --data DIR --source en --target de
    python -m train.translate --data pairs.tsv
    python -m train.translate --data hub:bentrevett/multi30k --source en --target de

The run folder holds the model (use it with `python -m transformer_jax translate RUN "text"`),
report.html, report.md, report.json, metrics.jsonl, curves.png, and translations.txt (with the
references).
"""

if __name__ == "__main__":  # before NumPy and JAX start threads
    from train.trainer.signals import end_on_ctrl_c

    end_on_ctrl_c()
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import sys

from train.recipes.translate import TranslationOptions
from train.trainer.launcher import Program

PROGRAM = Program(
    "train.translate", __doc__, TranslationOptions, "train.tasks.translation:Translation"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the program on `arguments`, by default the command line, and return its exit code."""
    return PROGRAM.main(arguments)


if __name__ == "__main__":
    sys.exit(PROGRAM.script())
