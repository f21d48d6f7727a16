"""Every command that the documentation names is run by a test of this folder."""

import re
from pathlib import Path

import pytest

from transformer_jax.__main__ import COMMANDS

pytestmark = pytest.mark.commands

ROOT = Path(__file__).parents[2]
HERE = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
TEXTS += [
    path for name in ("train", "bench", "docs", "tests") for path in (ROOT / name).rglob("*.py")
]
# Parts of others, which start them.
CHILDREN = {
    "bench.measure.compile_clock",
    "bench.peers.contender",
    "bench.peers.resident_memory",
}


def modules() -> set[str]:
    named = re.findall(
        r"python -m ((?:train|bench|docs|tests)\.[a-z_.]*[a-z])",
        "\n".join(path.read_text(encoding="utf-8") for path in TEXTS),
    )
    return {name for name in set(named) - CHILDREN if is_program(ROOT / name.replace(".", "/"))}


def is_program(path: Path) -> bool:
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


@pytest.mark.parametrize("module", sorted(modules()))
def test_the_documented_program_is_run(module):
    assert re.search(rf"\b{re.escape(module)}\b", HERE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_of_the_library_is_run(command):
    assert re.search(rf'"transformer_jax {command}[ "]', HERE)


def test_the_target_of_make_is_run():
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT / ".ci/run").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()) - {"clean"}
    run = {word for line in ci.splitlines() if line.startswith("make ") for word in line.split()}
    of_this_folder = {"imdb", "imdb-best", "docs", "serve", "bench", "figures"}
    assert targets - run <= of_this_folder
