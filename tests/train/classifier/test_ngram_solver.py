"""The n-grams that the solver fits: the linear model of its definition, with a network and in a
run of the default recipe.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.svm import LinearSVC

from tests.functional.test_ngrams import hashed
from tests.helpers.compiled import compiled
from train.classifier.build import FromScratch
from train.classifier.calibration import only
from train.classifier.ngram_solver import (
    EvidenceSolver,
    distil_evidence,
    evidence_logits,
    fit_evidence,
    ngrams_held,
)
from train.data.load import load, split_validation
from train.imdb import main
from train.recipes.imdb import FAST
from transformer_jax.inference.classify import Scorer, predict
from transformer_jax.interpret.explain import explain
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.ngram_evidence import NgramEvidence
from transformer_jax.nn.config import StackConfig
from transformer_jax.serialization.run_folder import load_classifier

BITS, PAD = 10, 0


def reviews(classes, number=120, seed=0):
    """Texts of random tokens, some with one token that tells the class, and their labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, number)
    examples = [random.integers(10, 30, random.integers(3, 12)) for _ in labels]
    for ids, label in zip(examples, labels, strict=True):
        ids[random.integers(len(ids))] = 1 + (label if random.random() < 0.9 else 0)
    return [ids.astype(np.int32) for ids in examples], labels


def evidence_of(classes, examples, labels, **options):
    evidence = NgramEvidence(classes, longest=2, bits=BITS)
    fit_evidence(evidence, ngrams_held(examples, PAD, 2, BITS), labels, **options)
    return evidence


def logits_of(evidence, examples):
    tokens = np.zeros((len(examples), 12), np.int32)
    for row, ids in zip(tokens, examples, strict=True):
        row[: len(ids)] = ids
    return np.asarray(compiled(evidence)(tokens, tokens != PAD))


def same_tables(ours, expected):
    for name in ("weight", "square", "bias"):
        found = np.asarray(getattr(ours, name)[...])
        np.testing.assert_allclose(found, getattr(expected, name)[...], rtol=1e-5, atol=1e-6)


def test_what_a_text_holds_is_what_it_says_once_or_more():
    examples = [np.array([5, 7, 5, 7], np.int32), np.array([7], np.int32)]
    held = ngrams_held(examples, PAD, 2, BITS).toarray()
    expected = np.zeros((2, 2**BITS))
    for row, gram in ((0, [5]), (0, [7]), (0, [5, 7]), (0, [7, 5]), (1, [7])):
        expected[row, hashed(gram, BITS)] = 1
    np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_two_classes_are_the_linear_model_of_the_definition(weights):
    examples, labels = reviews(2)
    labels[:40] = 0
    evidence = evidence_of(2, examples, labels, balanced=weights == "balanced")
    grams = [
        [hashed(ids[t : t + n].tolist(), BITS) for n in (1, 2) for t in range(len(ids) - n + 1)]
        for ids in examples
    ]
    x = np.zeros((len(examples), 2**BITS))
    for row, gram in zip(x, grams, strict=True):
        row[gram] = 1
    c, d = (1 + x[labels == k].sum(axis=0) for k in (1, 0))
    ratio = np.log(c / c.sum()) - np.log(d / d.sum())
    length = np.sqrt(10 + x @ ratio**2)
    x = x * ratio / length[:, None]
    machine = LinearSVC(C=1.0, random_state=0, class_weight=weights)
    expected = machine.fit(x, labels).decision_function(x)
    logits = logits_of(evidence, examples)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], expected, atol=1e-3)
    np.testing.assert_allclose(logits.sum(axis=1), 0, atol=1e-6)


def test_what_is_distilled_is_the_least_squares_of_the_definition():
    """Against a solution by the inverse of what is damped."""
    examples, labels = reviews(2)
    told = np.random.default_rng(1).normal(size=(len(labels), 2))
    holds = ngrams_held(examples, PAD, 2, BITS)
    evidence = NgramEvidence(2, longest=2, bits=BITS)
    distil_evidence(evidence, holds, labels, told)
    x, n, z = holds.toarray(), len(labels), told[:, 1] - told[:, 0]
    texts = x.sum(axis=0)
    x = x * (texts >= 3)
    c, d = (1 + x[labels == k][:, texts >= 3].sum(axis=0) for k in (1, 0))
    ratio = np.zeros(len(texts))
    ratio[texts >= 3] = np.log(c / c.sum()) - np.log(d / d.sum())
    w = np.sign(ratio) * np.sqrt(abs(ratio)) * np.log(n / np.maximum(texts, 1)) ** 2
    x = x * w / np.sqrt(10 + x @ w**2)[:, None]
    b = z.mean()
    expected = b + x @ np.linalg.solve(x.T @ x + 0.3**2 * np.eye(len(w)), x.T @ (z - b))
    logits = logits_of(evidence, examples)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], expected, atol=1e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_what_is_distilled_says_what_the_other_model_says(classes):
    """It learns from other texts too; an n-gram that too few of them hold has no weight."""
    (examples, labels), (others, expected) = reviews(classes, 400), reviews(classes, seed=1)
    examples = [*examples, *[np.array([2, 31], np.int32)] * 2]
    labels = np.concatenate([labels, [1, 1]])
    solver = EvidenceSolver(NgramEvidence(classes, longest=2, bits=BITS), PAD)
    solver.distil(examples, labels, 4.0 * np.eye(classes)[labels])
    assert solver.seconds > 0
    found = solver.logits(others)
    assert (found.argmax(axis=1) == expected).mean() > 0.8
    np.testing.assert_allclose(found, logits_of(solver.evidence, others), atol=1e-4)
    weight = np.asarray(solver.evidence.weight[...])
    assert not weight[[hashed([31], BITS), hashed([2, 31], BITS)]].any()
    assert weight[hashed([2], BITS)].all()


@pytest.mark.parametrize("classes", [2, 3])
def test_the_matrix_says_what_the_model_says(classes):
    evidence = evidence_of(classes, *reviews(classes))
    examples = [*reviews(classes, seed=1)[0], np.zeros(0, np.int32)]
    found = evidence_logits(evidence, ngrams_held(examples, PAD, 2, BITS))
    np.testing.assert_allclose(found, logits_of(evidence, examples), atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_more_texts_join_those_of_before(classes):
    (examples, labels), (more, more_labels) = reviews(classes), reviews(classes, 40, seed=2)
    evidence = NgramEvidence(classes, longest=2, bits=BITS)
    solver = EvidenceSolver(evidence, PAD)
    for texts, expected in (
        ((examples, labels), (examples, labels)),
        ((more, more_labels), (examples + more, np.concatenate([labels, more_labels]))),
    ):
        solver.fit(*texts)
        expected = evidence_of(classes, *expected)
        same_tables(evidence, expected)
        others, _ = reviews(classes, seed=1)
        guessed = logits_of(expected, others).argmax(axis=1)
        np.testing.assert_array_equal(solver.logits(others).argmax(axis=1), guessed)


@pytest.mark.parametrize("classes", [2, 3])
def test_what_was_fitted_tells_other_texts(classes):
    evidence = evidence_of(classes, *reviews(classes))
    examples, labels = reviews(classes, seed=1)
    assert (logits_of(evidence, examples).argmax(axis=1) == labels).mean() > 0.8


@pytest.mark.parametrize(("classes", "bits"), [(2, 10), (3, 8), (4, 8), (5, 7)])
def test_more_classes_share_tables_as_large(classes, bits):
    model = ClassifierConfig(40, 12, encoder=StackConfig(0, 12, 2, 4), ngrams=2, ngram_bits=10)
    start = FromScratch(replace(FAST, model=model, evidence_weight=3.0), seed=0)
    examples, labels = reviews(classes)
    tokenizer = SimpleNamespace(vocab_size=40, pad_id=PAD)
    names = tuple(f"class {k}" for k in range(classes))
    made = start.make(tokenizer, names, "reviews", examples, labels)
    assert made.spec.config.ngram_bits == bits
    # What is trained has none; what is kept has them, as loud as the recipe says; and they are
    # fitted anew when asked.
    params = nnx.state(made.trained, nnx.Param)
    assert "evidence" not in params
    kept = nnx.merge(nnx.split(made.model, nnx.Param)[0], made.kept(params))
    alone = NgramEvidence(classes, longest=2, bits=bits)
    fit_evidence(alone, ngrams_held(examples, PAD, 2, bits), labels)
    for name, times in (("weight", 3), ("square", 1), ("bias", 3)):
        ours, expected = (np.asarray(getattr(e, name)[...]) for e in (kept.evidence, alone))
        np.testing.assert_allclose(ours, times * expected, rtol=1e-5, atol=1e-6)
    seconds = made.solver.seconds
    made.solver.fit(*reviews(classes, 60, seed=1))
    other = made.evidence()["evidence"]["weight"]
    assert np.abs(np.asarray(other[...]) - np.asarray(kept.evidence.weight[...])).max() > 0.1
    assert made.parts == ("head", "evidence") and 0 < seconds < made.solver.seconds


def test_one_class_alone_says_nothing_and_an_empty_text_only_the_bias():
    examples, labels = reviews(2)
    evidence = evidence_of(2, examples, 0 * labels)
    np.testing.assert_array_equal(logits_of(evidence, examples), 0)
    evidence = evidence_of(2, examples, labels)
    bias = float(evidence.bias[0])
    np.testing.assert_allclose(
        logits_of(evidence, [np.zeros(0, np.int32)]), [[-bias / 2, bias / 2]]
    )


# A run of the default recipe with a small network, on texts whose words tell their label
# ----------------------------------------------------------------------------------------

TOLD = {"good": "fine", "bad": "dull"}


@pytest.fixture(scope="module")
def run(small_recipes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evidence")
    random = np.random.default_rng(0)
    lines = ["text,label"]
    for i in range(300):
        label = ("good", "bad")[i % 2]
        words = [*random.choice(list("abcdefgh"), 6), TOLD[label] if i % 5 else "x"]
        lines.append(f"{' '.join(random.permutation(words))} {i},{label}")
    (folder / "texts.csv").write_text("\n".join(lines) + "\n")
    words = f"--data {folder / 'texts.csv'} --out {folder / 'run'} --epochs 1 --max-length 16"
    assert main([*words.split(), "--batch-tokens", "512", "--no-baseline"]) == 0
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
    expected = NgramEvidence(2, longest=config.ngrams, bits=config.ngram_bits)
    labels = np.concatenate([split.labels for split in splits])
    holds = ngrams_held(encoded, trained.tokenizer.pad_id, config.ngrams, config.ngram_bits)
    fit_evidence(expected, holds, labels)
    times = report["settings"]["evidence_weight"] * report["weights"]["evidence"]
    for name, by in (("weight", times), ("square", 1), ("bias", times)):
        found = np.asarray(getattr(trained.model.evidence, name)[...])
        scaled = by * np.asarray(getattr(expected, name)[...])
        np.testing.assert_allclose(found, scaled, rtol=1e-4, atol=1e-6)
    assert report["evidence_seconds"] > 0 and set(report["weights"]) == {"head", "evidence"}
    assert report["test_accuracy"] > 0.8


def test_the_report_says_what_the_parts_do_by_themselves(run):
    """The probabilities of the model whose other part is zero."""
    trained = load_classifier(run / "run")
    alone = json.loads((run / "run/report.json").read_text())["alone"]
    test = load(str(run / "texts.csv")).test
    encoded = trained.tokenizer.encode(test.texts, 16, trained.spec.truncate)
    params = nnx.state(trained.model, nnx.Param)
    scorer = Scorer(trained.model, trained.tokenizer.pad_id, (16,), 512)
    whole = scorer(encoded, params).argmax(axis=1) == test.labels
    for part in ("head", "evidence"):
        said = scorer(encoded, only(params, part, ("head", "evidence")))
        right = said.argmax(axis=1) == test.labels
        assert alone[part]["test_accuracy"] == pytest.approx(right.mean())
        assert alone[part]["mcnemar"]["b"] == (whole & ~right).sum()
        assert alone[part]["mcnemar"]["c"] == (right & ~whole).sum()
    assert alone["head"]["test_accuracy"] != alone["evidence"]["test_accuracy"]


def test_they_predict_and_are_explained(run):
    trained = load_classifier(run / "run")
    texts = ["a b fine c d", "a b dull c d"]
    assert [p.label for p in predict(trained, texts)] == ["good", "bad"]
    found = explain(trained, texts[0])
    assert found.attribution.is_complete
    assert max(found.pieces, key=lambda piece: piece.value or 0).text.strip() == "fine"
    tokens = jnp.asarray(trained.tokenizer.encode(texts[:1], 16, "head")[0])[None]
    evidence = compiled(trained.model.evidence)(tokens, tokens >= 0)
    assert float(evidence[0, trained.spec.classes.index("good")]) > 0
