"""A contestant in its own process, which makes one step when told to while the others wait.

The memory and threads of one contestant then do not disturb another, and each uses the memory
allocator as its own program does.

    python -m bench.peers.contender [keep]

reads its settings as JSON from the first line and then makes one call per line; it answers in JSON.
"""

import sys

if __name__ == "__main__" and "keep" in sys.argv:  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.tutorial_classifier import CONTESTANTS, batches, call_of
from train.recipes.imdb import TUTORIAL
from transformer_jax.nn.config import StackConfig
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.malloc import freed_memory_is_kept

ROOT = Path(__file__).parents[2]


class Contender:
    """A contestant in a child process; a call makes its next step and returns loss or logits."""

    def __init__(self, name: str, settings: dict, *, kept: bool):
        self.name, self.kept = name, False
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.contender", *["keep"] * kept],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        self._say(json.dumps(settings | {"name": name}))

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.communicate()

    def __call__(self) -> np.ndarray:
        self._say("")
        return np.asarray(self.answer())

    def answer(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise InputError(f"{self.name} has stopped; its own output is above")
        return json.loads(line)

    def _say(self, line: str) -> None:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.answer()


def start(stack: ExitStack, names: Sequence[str], settings: dict) -> dict[str, Contender]:
    """Start the named contestants together and return them by name.

    They are stopped when the stack closes.
    """
    found = {
        name: stack.enter_context(Contender(name, settings, kept=CONTESTANTS[name].kept))
        for name in names
    }
    for contender in found.values():
        contender.kept = contender.answer()  # waits until it is ready
    return found


def sizes(recipe) -> dict[str, Any]:
    """Return the sizes in which a recipe for small machines may differ from the tutorial's."""
    model = recipe.model
    return {
        "vocab_size": model.vocab_size,
        "max_length": model.max_length,
        "encoder": asdict(model.encoder),
    }


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    model = settings["sizes"] | {"encoder": StackConfig(**settings["sizes"]["encoder"])}
    recipe = replace(TUTORIAL, model=replace(TUTORIAL.model, **model))
    found = batches(recipe, settings["rows"], settings["length"], settings["seed"])
    call = call_of(recipe, settings["name"], settings["dropout"], found, settings["seed"])
    print(json.dumps(freed_memory_is_kept()), flush=True)
    for _ in sys.stdin:
        print(json.dumps(np.asarray(call(), np.float64).tolist()), flush=True)


if __name__ == "__main__":
    main()
