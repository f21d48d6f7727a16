r"""Train a language model to predict the next token.

    python -m train.lm --data sample                generated reviews; no network, two minutes
    python -m train.lm --data FILE                  one text, e.g. a book; last tenth held out
    python -m train.lm --data DIR --tokenizer bpe:8192      a folder of .txt files, one text each
    python -m train.lm --data hub:roneneldan/TinyStories

The run folder holds the model (use it with `python -m transformer_jax generate RUN "prompt"`),
report.html, report.md, report.json, metrics.jsonl and curves.png.
"""

if __name__ == "__main__":  # before NumPy and JAX start threads
    from train.trainer.signals import end_on_ctrl_c

    end_on_ctrl_c()
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import sys

from train.recipes.lm import LanguageModelOptions
from train.trainer.launcher import Program

PROGRAM = Program(
    "train.lm", __doc__, LanguageModelOptions, "train.tasks.language_modeling:LanguageModeling"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the program on `arguments`, by default the command line, and return its exit code."""
    return PROGRAM.main(arguments)


if __name__ == "__main__":
    sys.exit(PROGRAM.script())
