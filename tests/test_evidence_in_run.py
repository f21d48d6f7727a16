"""A run of the default recipe on texts whose words tell their label: what of it the n-grams are, and that all hangs together."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train.data import load, split_validation
from train.evidence import fit_evidence
from train.imdb import main
from transformer_jax.embeddings import NgramEvidence
from transformer_jax.explain import explain
from transformer_jax.predict import predict
from transformer_jax.run_folder import load_classifier

TOLD = {"good": "fine", "bad": "dull"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evidence")
    random = np.random.default_rng(0)
    lines = ["text,label"]
    for i in range(300):
        label = ("good", "bad")[i % 2]
        words = [*random.choice(list("abcdefgh"), 6), TOLD[label] if i % 5 else "x"]
        lines.append(f"{' '.join(random.permutation(words))} {i},{label}")
    (folder / "texts.csv").write_text("\n".join(lines) + "\n")
    words = f"--data {folder / 'texts.csv'} --out {folder / 'run'} --epochs 1 --max-length 16"
    assert main(words.split()) == 0
    return folder


def test_the_n_grams_are_those_of_training_and_validation_texts_by_their_weight(run):
    trained = load_classifier(run / "run")
    report = json.loads((run / "run/report.json").read_text())
    data = load(str(run / "texts.csv"))
    splits = split_validation(data.train, 0.1, 0)[:2]
    encoded = [
        ids
        for split in splits
        for ids in trained.tokenizer.encode(split.texts, 16, trained.spec.truncate)
    ]
    config = trained.spec.config
    expected = NgramEvidence(2, longest=config.ngrams, bits=config.ngram_bits, rngs=nnx.Rngs(0))
    labels = np.concatenate([split.labels for split in splits])
    fit_evidence(expected, encoded, labels, trained.tokenizer.pad_id)
    times = report["settings"]["evidence_weight"] * report["weights"]["evidence"]
    for name, by in (("weight", times), ("square", 1), ("bias", times)):
        found = np.asarray(getattr(trained.model.evidence, name)[...])
        np.testing.assert_allclose(found, by * np.asarray(getattr(expected, name)[...]), rtol=1e-4, atol=1e-6)  # fmt: skip
    assert report["evidence_seconds"] > 0 and set(report["weights"]) == {"head", "evidence"}
    assert report["test_accuracy"] > 0.8


def test_they_predict_and_are_explained(run):
    trained = load_classifier(run / "run")
    texts = ["a b fine c d", "a b dull c d"]
    assert [p.label for p in predict(trained, texts)] == ["good", "bad"]
    found = explain(trained, texts[0])
    assert found.attribution.is_complete
    assert max(found.pieces, key=lambda piece: piece.value or 0).text.strip() == "fine"
    tokens = jnp.asarray(trained.tokenizer.encode(texts[:1], 16, "head")[0])[None]
    evidence = trained.model.evidence(tokens, tokens >= 0)
    assert float(evidence[0, trained.spec.classes.index("good")]) > 0
