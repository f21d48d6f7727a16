"""The parts of a program's compile time are clocked in a process of its own."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import compile_time
from bench.compile_time import PROGRAM, clocked, main
from bench.measure import compile_clock
from docs.build.results import DOCS
from transformer_jax.runtime.errors import InputError

MODULE = (
    "import sys\nimport jax\nassert sys.argv[1:] == ['--n', '3']\njax.jit(lambda x: x * 3)(2)\n"
)


def test_a_program_is_clocked(tmp_path, monkeypatch):
    (tmp_path / "some_program.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    compile_clock.main([str(tmp_path / "clock.json"), "some_program", "--n", "3"])
    found = json.loads((tmp_path / "clock.json").read_text())
    assert found["programs"] >= 1 and 0 < found["compile"] < found["seconds"]
    assert found["trace"] > 0 and found["lower"] > 0


def test_what_is_missing_is_one_line():
    with pytest.raises(SystemExit, match=r"usage: python -m bench\.measure\.compile_clock"):
        compile_clock.main(["file"])


def test_a_page_has_every_program_cold_and_warm(tmp_path, monkeypatch, capsys):
    commands = []

    def run(words, *, env, **options):
        commands.append((words[4:], env["JAX_COMPILATION_CACHE_DIR"]))
        found = {"trace": 1, "lower": 2, "compile": 3.25, "seconds": 10 + len(commands)}
        Path(words[3]).write_text(json.dumps(found | {"programs": 7}))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(compile_time.subprocess, "run", run)
    assert main(["--docs", str(tmp_path)]) == 0
    programs = compile_time.PROGRAMS
    assert len(commands) == 2 * len(programs)
    (cold, one), (warm, other), *rest = commands
    assert one == other != rest[0][1]
    assert cold[:3] == ["train.imdb", "--data", "sample"] and cold[-2] == "--out" != warm[-1]
    at = 2 * list(programs).index("predict")
    assert commands[at][0] == ["transformer_jax", "predict", cold[-1], "text"]
    page = (tmp_path / "benchmarks" / "compile-time.md").read_text()
    assert page.count("\n| classifier | ") == 2 and page.count(" 3.25 |") == 2 * len(programs)
    assert main(["--page", "--docs", str(tmp_path)]) == 0
    assert (tmp_path / "benchmarks" / "compile-time.md").read_text() == page


def test_a_program_that_fails_is_named(tmp_path, monkeypatch):
    failed = SimpleNamespace(returncode=2, stderr="error: no such data\n")
    monkeypatch.setattr(compile_time.subprocess, "run", lambda *words, **options: failed)
    with pytest.raises(
        InputError, match=r"python -m train.lm --data x failed: error: no such data"
    ):
        clocked("train.lm --data x", tmp_path / "run", tmp_path)


def test_every_program_of_the_page_was_clocked():
    rows = PROGRAM.read(DOCS)["programs"]
    assert [row["name"] for row in rows] == list(compile_time.PROGRAMS)
