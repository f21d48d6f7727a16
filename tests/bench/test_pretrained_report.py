"""The program that sets pretrained encoders beside PyTorch: its page, its mistakes, what it does
not time.
"""

import numpy as np
import pandas as pd
import pytest

from bench import pretrained
from bench.measure.harness import Disagreement


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
    with pytest.raises(Disagreement, match=r"transformer_jax computes something else: off by 0\.1"):
        pretrained.embedding("model", ["a", "b"], rounds=1, seconds=0.0)


def test_without_pytorch_the_opponent_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    words = ["--model", "FOLDER", "--data", "REVIEWS.parquet", "--docs", str(tmp_path)]
    assert pretrained.main(words) == 2
    captured = capsys.readouterr().err
    assert "pip install torch sentence_transformers" in captured and captured.count("\n") == 1


def test_reviews_that_are_not_there_are_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pretrained, "find_spec", lambda name: True)
    texts = tmp_path / "some.parquet"
    pd.DataFrame({"text": ["a", "b"]}).to_parquet(texts)
    for data, number, says in ((tmp_path / "none", 1, "--data"), (texts, 3, "has 2 texts")):
        words = ["--model", "m", "--data", str(data), "--texts", str(number)]
        assert pretrained.main([*words, "--docs", str(tmp_path)]) == 2
        captured = capsys.readouterr().err
        assert says in captured and captured.count("\n") == 1
    assert sorted(pretrained.texts_of(str(texts), 2)) == ["a", "b"]
