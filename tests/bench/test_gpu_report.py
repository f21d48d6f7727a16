"""The program that measures a GPU: its page, and where there is none."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from bench import gpu, utilization
from train.recipes.imdb import TUTORIAL

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="here is one")
def test_without_a_gpu_one_line_says_so(tmp_path, capsys):
    assert gpu.main(["--docs", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "sees no GPU" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("contents", [None, "{", "[]", "{}"])
def test_a_page_of_no_numbers_is_one_line(tmp_path, capsys, contents):
    (tmp_path / "results").mkdir()
    if contents is not None:
        (tmp_path / "results/gpu.json").write_text(contents)
    assert gpu.main(["--page", "--docs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "benchmarks/gpu.md").exists()


def test_the_page_says_what_was_measured():
    results = json.loads((DOCS / "results/gpu.json").read_text())
    assert "\n".join(gpu.page(results)) + "\n" == (DOCS / "benchmarks/gpu.md").read_text()


@pytest.mark.slow
def test_every_part_is_measured_and_written(tmp_path, monkeypatch):
    """On a processor that says that it is a GPU when the program asks."""
    answers = iter(["gpu"])
    monkeypatch.setattr(gpu.jax, "default_backend", lambda: next(answers, "cpu"))
    small = replace(TUTORIAL.model, encoder=replace(TUTORIAL.model.encoder, num_layers=1))
    monkeypatch.setitem(utilization.MODELS, "bert-base", (small, 1, 8))
    words = "--lengths 64 --kinds full window --tokens 128 --rounds 1 --seconds 0.01"
    assert gpu.main([*words.split(), "--docs", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results/gpu.json").read_text())
    kinds = [(cell["kind"], cell["gradient"]) for cell in found["attention"]]
    assert kinds == [("full", False), ("full", True), ("window", False), ("window", True)]
    assert "blockwise" in found["attention"][2]["seconds"]
    assert [step["name"] for step in found["steps"]] == list(gpu.STEPS)
    assert all(step["utilization"] > 0 for step in found["steps"])
    assert "## A training step" in (tmp_path / "benchmarks/gpu.md").read_text()
