"""The program that measures a GPU: its page, and where there is none."""

import json
from dataclasses import replace

import jax
import pytest

from bench import generation, gpu, utilization
from bench.peers.contestants import OURS
from docs.build.results import DOCS
from train.recipes.imdb import TUTORIAL
from transformer_jax.attention.kernels.dispatch import choose_on_accelerator


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
    monkeypatch.setattr(generation, "GPT2", generation.SMALL)
    monkeypatch.setattr(gpu, "PLANNED", (16,))
    words = "--lengths 64 --kinds full window --tokens 128 --rounds 1 --seconds 0.01 --batches 1 2"
    assert gpu.main([*words.split(), "--docs", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results/gpu.json").read_text())
    kinds = [(cell["kind"], cell["gradient"]) for cell in found["attention"]]
    assert kinds == [("full", False), ("full", True), ("window", False), ("window", True)]
    assert "blockwise" in found["attention"][2]["seconds"]
    assert [step["name"] for step in found["steps"]] == list(gpu.STEPS)
    assert all(step["utilization"] > 0 for step in found["steps"])
    assert len(found["plan"]) == 6 and [row["batch"] for row in found["decode"]] == [1, 2]
    page = (tmp_path / "benchmarks/gpu.md").read_text()
    assert "## A training step" in page and "## The choice between" in page
    assert page.count("python -m bench.gpu") == 1

    # What is measured again replaces its numbers alone.
    answers = iter(["gpu"])
    again = "--parts plan --kinds full --tokens 128 --seconds 0"
    assert gpu.main([*again.split(), "--docs", str(tmp_path)]) == 0
    last = json.loads((tmp_path / "results/gpu.json").read_text())
    assert len(last["plan"]) == 6 and last["steps"] == found["steps"]
    assert last["plan"][:2] == found["plan"][2:4]  # the window's, which come first now
    assert len(last["runs"]) == 2


def test_the_chosen_implementation_is_faster_than_blocks_wherever_both_were_measured():
    cells = [c for c in gpu.PROGRAM.read(DOCS)["attention"] if "blockwise" in c["seconds"]]
    assert len(cells) >= 5
    for cell in cells:
        sizes = cell["batch"], gpu.HEADS, cell["length"], cell["length"]
        chosen = choose_on_accelerator(sizes, has_cudnn=True, has_triton=True, is_window=True)
        assert chosen == cell["plan"] == "triton"
        assert cell["seconds"][OURS] < cell["seconds"]["blockwise"]


def test_a_row_of_the_choice():
    sizes = {"kind": "full", "batch": 8, "heads": 8, "queries": 512, "keys": 512}
    seconds = {"reference": 2.0, "blockwise": 3.0}
    assert gpu.chosen(sizes | {"seconds": seconds}) == "reference"
    assert gpu.chosen(sizes | {"seconds": seconds | {"cudnn": 1.0}}) == "cudnn"
    assert gpu.chosen(sizes | {"keys": 2**20, "seconds": seconds}) == "blockwise"
    both = {"seconds": seconds | {"triton": 1.0, "cudnn": 1.0}}
    assert gpu.chosen(sizes | both) == "triton"
    assert gpu.chosen(sizes | both | {"queries": 4096}) == "cudnn"
    assert gpu.chosen(sizes | both | {"queries": 4096, "kind": "window"}) == "triton"
