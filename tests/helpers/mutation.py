"""One fault of the library, made in a copy of it, and the test that must fail there.

A mutation names a definition (`dot_product_attention`, `MaskedRows.zero_keys`, `TILE`) and a text
in it, wherever the file stands. Where several files have such a definition, the name of the file
stands before it: `gpt2.ACTIVATIONS`. A test is named alone, or behind its file in the same case.

pytest runs in processes that are forked from one which has imported JAX already, on a copy of the
project whose files are compiled already: a mutation costs its test, and not the imports.
"""

import ast
import gc
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.helpers.forked import forked

ROOT = Path(__file__).parents[2]
COPIED = ("transformer_jax", "train", "tests", "bench", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    """A fault: in the definition `place` the text `old` becomes `new`, and `test` must notice."""

    name: str
    place: str
    old: str
    new: str
    test: str

    def find(self, package: Path) -> tuple[Path, str]:
        """Return the file of a package that is changed, and its text after the change.

        Raises ValueError unless the old text stands in the definition exactly once.
        """
        found = []
        for path in sorted(package.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if self.old in text:
                for start, end in _spans(path, text, self.place):
                    found += [(path, text, at) for at in _positions(text, self.old, start, end)]
        if len(found) != 1:
            raise ValueError(f"{self.name}: found {len(found)} times in {self.place}: {self.old!r}")
        ((path, text, at),) = found
        return path, text[:at] + self.new + text[at + len(self.old) :]

    def apply(self, folder: Path) -> None:
        """Change the copy of the package in a folder. Raises ValueError as `find` does."""
        path, text = self.find(folder / "transformer_jax")
        path.unlink()  # it may be a link to the file of another copy
        path.write_text(text, encoding="utf-8")

    @property
    def test_id(self) -> str:
        """The test as pytest takes it. Raises ValueError unless it is there exactly once."""
        file, _, name = self.test.rpartition("::")
        definition = f"\ndef {name.partition('[')[0]}("
        found = [
            path
            for path in sorted((ROOT / "tests").rglob(file or "test_*.py"))
            if definition in path.read_text(encoding="utf-8")
        ]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {len(found)} files have the test {self.test}")
        return f"{found[0].relative_to(ROOT)}::{name}"


def caught(mutation: Mutation, cache: Path) -> tuple[bool, str]:
    """Return whether the test failed on an assertion, and what it said."""
    code, printed = _run_tests([mutation.test_id], cache, mutation)
    failed = re.search(r"^FAILED (\S.*?) - (.*)$", printed, re.MULTILINE)
    if code == 0:
        return False, "the test passes"
    if code != 1 or failed is None:
        return False, f"the test did not run: {printed[-300:]}"
    message = failed[2]
    # A crash says that the fault is no quiet one, not that the test looks at the numbers.
    return message.startswith(("AssertionError", "assert ", "Failed: DID NOT")), message


def failure_without_mutation(mutations: list[Mutation], cache: Path) -> str:
    """Return what pytest prints if a test fails without any mutation, else an empty text."""
    code, printed = _run_tests(sorted({mutation.test_id for mutation in mutations}), cache)
    return printed if code else ""


@cache
def _whole_copy() -> tempfile.TemporaryDirectory:
    """A copy of the project without mutations, removed when the process ends."""
    copy = tempfile.TemporaryDirectory()
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, Path(copy.name) / name, ignore=ignored, symlinks=True)
        else:
            shutil.copy(ROOT / name, copy.name)
    return copy


def _run_tests(tests: list[str], cache: Path, mutation: Mutation | None = None) -> tuple[int, str]:
    """pytest on a copy of the tree: its exit code, and what it printed."""
    whole = Path(_whole_copy().name)
    if mutation is None:  # what Python compiles here is used again by every mutation
        return _pytest_apart(whole, tests, cache)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "copy"
        shutil.copytree(whole, folder, copy_function=os.link, symlinks=True)
        mutation.apply(folder)
        return _pytest_apart(folder, tests, cache)


def _pytest_apart(folder: Path, tests: list[str], cache: Path) -> tuple[int, str]:
    """Run pytest in a process of its own; return the exit code and what it printed."""
    process = forked(_pytest_in, folder, tests, cache)
    process.join()
    printed = (folder / "printed").read_text(encoding="utf-8", errors="replace")
    return process.exitcode, printed


def _pytest_in(folder: Path, tests: list[str], cache: Path) -> None:
    """Run pytest in a folder, on its own copy of the project; ends the process."""
    (folder / "printed").unlink(missing_ok=True)  # as in `apply`
    printed = os.open(folder / "printed", os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.chdir(folder)
    sys.path[:] = [str(folder), *(p for p in sys.path if p and Path(p).resolve() != ROOT)]
    for name in [n for n in sys.modules if n.partition(".")[0] in COPIED]:
        del sys.modules[name]
    # Subprocesses of a test import the copy too; a narrow summary would be cut.
    os.environ |= {"PYTHONPATH": str(folder), "COLUMNS": "1000"}
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)  # read by tests/conftest.py
    import pytest

    gc.freeze()  # garbage collection skips what was imported before the fork
    options = ["-x", "-q", "-rf", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow"]
    options += ["-p", "no:unraisableexception", "-p", "no:threadexception"]  # they collect garbage
    # Signatures are not checked: a test must notice by itself.
    options += ["--override-ini=addopts=--import-mode=importlib --benchmark-skip"]
    # Plugins that were imported before the fork have no assertions worth rewriting.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*options, *tests])
    sys.stdout.flush()
    os._exit(int(code))


def _spans(path: Path, text: str, place: str) -> Iterator[tuple[int, int]]:
    """The first and the last position of every definition of that name in a file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for name, node in _definitions(ast.parse(text).body):
        if place in (name, f"{path.stem}.{name}"):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            yield starts[first - 1], starts[node.end_lineno]


def _definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Functions, classes and methods by their qualified names, and the constants of a file."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign) and not prefix:
            yield from ((t.id, node) for t in node.targets if isinstance(t, ast.Name))


def _positions(text: str, old: str, start: int, end: int) -> Iterator[int]:
    """Return the positions between two others at which the old text begins."""
    while (start := text.find(old, start, end)) != -1:
        yield start
        start += 1
