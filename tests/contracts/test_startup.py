"""Help and mistakes on a command line are answered before anything slow is imported."""

import os
import subprocess
import sys
from pathlib import Path

from transformer_jax.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
SLOW = (
    "datasets", "flax", "matplotlib", "optax", "orbax", "pandas", "pyarrow", "safetensors", "scipy",
    "sklearn", "tokenizers", "tqdm",
)  # fmt: skip
HUB = "nobody/no-such-model"  # a name on the hub, which cannot be reached
CHILD = """
import contextlib, io, sys
from importlib import import_module

def run(name, *words):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = import_module(name).main(list(words))
        except SystemExit as end:
            code = end.code
    assert code == (0 if words[-1] in ("--help", "--version") else 2), (name, words, code)
    slow = [name for name in {slow} if name != "tqdm" or {hub!r} not in words]  # the hub needs it
    found = [name for name in slow if name in sys.modules]
    assert not found, (name, words, found)

{calls}
"""


def run_calls(*calls):
    """Run programs one after another in one process, and fail if one imports what is slow."""
    lines = "\n".join(f"run(*{call!r})" for call in calls)
    code = CHILD.replace("{slow}", repr(SLOW)).replace("{hub!r}", repr(HUB))
    done = subprocess.run(
        [sys.executable, "-c", code.replace("{calls}", lines)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr


def test_a_training_program_checks_its_command_line_before_it_imports_what_trains():
    calls = []
    for program in ("train.imdb", "train.lm", "train.mlm", "train.translate"):
        calls += [(program, "--help"), (program, "--version"), (program, "--no-such-option")]
        calls += [(program, "--data", "no/such/file.csv"), (program, "--resume", "no/such/run")]
    for model in ("./no/such/model", "no/such/model", HUB):
        calls.append(("train.classify", "--data", "sample", "--pretrained", model))
    run_calls(*calls)


def test_a_command_checks_its_command_line_before_it_imports_a_model():
    main = "transformer_jax.__main__"
    calls = [(main, "--help"), (main, "--version"), (main, "no-such-command")]
    for command in COMMANDS:
        calls += [(main, command, "--help"), (main, command, "--no-such-option")]
    calls += [(main, name, "no/such/run", "text") for name in ("attention", "explain", "predict")]
    calls += [(main, "export", "no/such/run", "new")]
    calls += [(main, "export", "tests/data/run_folders/imdb-finetune", "tests")]
    calls += [(main, "translate", "no/such/run", "text"), (main, "cost", "no/such/run")]
    calls += [(main, "runs", "no/such/folder")]
    calls += [(main, "walk", "text", "--run", "no/such/run")]
    for model in ("./no/such/run", "no/such/run", HUB):
        calls += [(main, name, model, "text") for name in ("generate", "next", "fill")]
        calls.append((main, "embed", model, "pyproject.toml", "-o", "new.npy"))
        calls.append((main, "similar", model, "text", "pyproject.toml"))
    run_calls(*calls)
