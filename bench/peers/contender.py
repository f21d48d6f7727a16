"""One contestant in a process of its own, that makes a step when it is told to, beside others that
wait.

Memory and threads of one are then in nobody else's way, and each has the C library's memory as its
program has it.

    python -m bench.peers.contender [keep]

reads its settings as JSON in the first line, then makes a call for every line; it answers in JSON.
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
    """Called, it makes its next step, or inference, and gives the loss, or logits."""

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
            raise InputError(f"{self.name} has stopped; what it said stands above")
        return json.loads(line)

    def _say(self, line: str) -> None:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.answer()


def start(stack: ExitStack, names: Sequence[str], settings: dict) -> dict[str, Contender]:
    """By name, all at once; they end with the stack."""
    found = {
        name: stack.enter_context(Contender(name, settings, kept=CONTESTANTS[name].kept))
        for name in names
    }
    for contender in found.values():
        contender.kept = contender.answer()  # it is ready
    return found


def sizes(recipe) -> dict[str, Any]:
    """What a recipe for small machines may have smaller than the tutorial's."""
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
