"""The program that measures a GPU: its page, and where there is none."""

import json
from dataclasses import replace

import jax
import pytest

from bench import gpu, utilization
from train.recipes.imdb import TUTORIAL


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="here is one")
def test_without_a_gpu_one_line_says_so(tmp_path, capsys):
    assert gpu.main(["--docs", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "sees no GPU" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.optimized
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
