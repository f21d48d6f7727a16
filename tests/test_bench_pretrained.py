"""The program that sets pretrained encoders beside PyTorch: its page, its mistakes, what it does not time."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench import pretrained

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("contents", [None, "{", "[]", "{}"])
def test_a_page_of_no_numbers_is_one_line(tmp_path, capsys, contents):
    (tmp_path / "results").mkdir()
    if contents is not None:
        (tmp_path / "results/pretrained.json").write_text(contents)
    assert pretrained.main(["--page", "--docs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "pretrained.md").exists()


def test_the_page_says_what_was_measured():
    results = json.loads((DOCS / "results/pretrained.json").read_text())
    assert "\n".join(pretrained.page(results)) + "\n" == (DOCS / "pretrained.md").read_text()


def test_nobody_is_timed_whose_vectors_are_others(monkeypatch):
    class Child:
        def __init__(self, name, model, texts):
            self.vectors = np.ones((len(texts), 2)) * (1.1 if name == pretrained.OURS else 1.0)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __call__(self):
            pytest.fail("it was timed")

    monkeypatch.setattr(pretrained, "Child", Child)
    with pytest.raises(ValueError, match=r"transformer_jax computes something else: off by 0\.1"):
        pretrained.embedding("model", ["a", "b"], rounds=1, seconds=0.0)
