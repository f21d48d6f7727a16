"""The page of mistakes: which reviews stand on it, what of them, and what does not."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from flax import nnx

from bench.mistakes import chosen, main, page, strongest
from tests.helpers.run_folders import save_run
from transformer_jax.inference.classify import predict
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.serialization.run_folder import load_classifier
from transformer_jax.serialization.specification import ClassifierSpec
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.words import Piece


def test_half_are_the_surest_and_a_text_counts_once():
    random = np.random.default_rng(0)
    p = random.random(200)
    said = np.stack([p, 1 - p], axis=1)
    labels = random.integers(0, 2, 200)
    texts = [f"text {i}" for i in range(200)]
    wrong = [i for i in range(200) if said[i].argmax() != labels[i]]
    wrong.sort(key=lambda i: -said[i].max())
    texts[wrong[1]] = texts[wrong[0]]
    found = chosen(said, SimpleNamespace(texts=texts, labels=labels), 7)
    assert [row for kind, row in found if kind == "surest"] == [wrong[i] for i in (0, 2, 3, 4)]
    drawn = [row for kind, row in found if kind == "drawn"]
    assert len(set(drawn)) == 3 and set(drawn) <= set(wrong[5:])


def test_a_word_is_the_sum_of_its_places():
    pieces = [
        Piece("Good", 1.0),
        Piece(" "),
        Piece("good", 0.5),
        Piece("bad", -3.0),
        Piece("bad", 1.0),
        Piece("x", 0.2),
    ]
    found = SimpleNamespace(pieces=pieces)
    assert strongest(found, 1) == [
        {"word": "good", "value": 1.5, "times": 2},
        {"word": "x", "value": 0.2, "times": 1},
    ]
    assert strongest(found, -1) == [{"word": "bad", "value": -2.0, "times": 2}]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A classifier of random weights, and reviews of a few words."""
    folder = tmp_path_factory.mktemp("mistakes")
    random = np.random.default_rng(1)
    words = [f"word{i}" for i in range(20)]
    texts = [" ".join(random.choice(words, 12)) for _ in range(60)]
    lines = [f"{text},{'bad' if i % 2 else 'good'}" for i, text in enumerate(texts)]
    (folder / "texts.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    tokenizer = train_tokenizer("word:30", texts)
    stack = StackConfig(num_layers=1, embed_dim=12, num_heads=2, hidden_dim=4)
    config = ClassifierConfig(tokenizer.vocab_size, 16, encoder=stack, pooling=("mean",))
    model = TextClassifier(config, rngs=nnx.Rngs(0))
    spec = ClassifierSpec(config, ("bad", "good"), "head", "texts")
    (folder / "run").mkdir()
    save_run(folder / "run", nnx.state(model, nnx.Param), tokenizer, spec)
    return folder


def test_what_is_written_is_wrong_and_holds_no_review(run, tmp_path, capsys):
    words = [str(run / "run"), "--data", str(run / "texts.csv"), "--docs", str(tmp_path)]
    assert main([*words, "--number", "4", "--show"]) == 0
    results = json.loads((tmp_path / "results/mistakes.json").read_text())
    shown = capsys.readouterr().out.splitlines()
    assert len(results["mistakes"]) == 4 and 0 < results["wrong"] <= results["reviews"]
    assert "RUN --data PATH" in results["command"] and str(run) not in json.dumps(results)
    assert str(tmp_path) not in json.dumps(results)
    classifier = load_classifier(run / "run")
    written = (tmp_path / "research/mistakes.md").read_text() + json.dumps(results)
    for mistake in results["mistakes"]:
        (place,) = [i for i, line in enumerate(shown) if line.startswith(f"{mistake['row']}  ")]
        text = shown[place + 1]
        (told,) = predict(classifier, [text])
        assert told.label == mistake["said"] != mistake["label"]
        assert told.probability == pytest.approx(mistake["probability"], abs=1e-4)
        assert " ".join(text.split()[:3]) not in written
    first = results["mistakes"][0]
    reasons = {str(first["row"]): "irony: why", "-1": "other: unused"}
    lines = list(page(results | {"reasons": reasons}, {}))
    assert sum("irony: why" in line for line in lines) == 1
    assert any("By the kind of reason: irony 1." in line for line in lines)
    assert f"{first['for'][0]['word']} {first['for'][0]['value']:+.2f}" in "\n".join(lines)


@pytest.mark.parametrize("wrong", ["run", "data"])
def test_what_is_not_there_is_one_line(run, tmp_path, capsys, wrong):
    words = {"run": str(run / "run"), "data": str(run / "texts.csv")} | {wrong: "no/such/file.csv"}
    assert main([words["run"], "--data", words["data"], "--docs", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
