"""Vectors of texts: the counts they are learned from, a visit against the gradient of the equation,
and what they tell.
"""

import json
import signal
from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.classifier import document_vectors
from train.classifier.document_vectors import (
    VectorConfig,
    Vectors,
    _visit,
    shares_kept,
    text_vectors,
    vector_logits,
)
from train.classifier.ngram_counts import ngram_counts
from train.classifier.pseudo_labels import PseudoLabels, kept_pseudo_labels, make_pseudo_labels
from train.trainer import checkpoints
from train.trainer.signals import Stopped

SMALL = VectorConfig(features=16, epochs=30, negatives=64, learning_rate=5e-3)


def ngrams(ids, longest, unknown=()):
    found = (tuple(ids[i : i + n]) for n in range(1, longest + 1) for i in range(len(ids) - n + 1))
    return Counter(gram for gram in found if not set(gram) & set(unknown))


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_the_counts_are_those_of_the_ngrams_that_enough_learned_texts_hold(longest):
    rng = np.random.default_rng(longest)
    texts = [rng.integers(0, 9, rng.integers(0, 12)) for _ in range(40)]
    texts[30:] = [np.append(text, 9) for text in texts[30:]]  # which has no column
    found = ngram_counts(texts, 30, longest, 3, unknown=(4,))
    expected = [ngrams(text.tolist(), longest, (4,)) for text in texts]
    texts_with = Counter(gram for own in expected[:30] for gram in own)
    kept = sorted((g for g, n in texts_with.items() if n >= 3), key=lambda g: (len(g), g))
    assert found.shape == (40, len(kept))
    counted = [[own[gram] for gram in kept] for own in expected]
    np.testing.assert_array_equal(found.toarray(), counted)


def test_texts_without_a_common_ngram_and_ngrams_too_long_for_their_number_are_errors():
    with pytest.raises(ValueError, match="no n-gram occurs in 2 of 2 texts"):
        ngram_counts([np.array([1]), np.array([2]), np.array([1])], 2, 1, 2)
    with pytest.raises(ValueError, match="do not fit 63 bits"):
        ngram_counts([np.array([2**22])] * 3, 3, 3, 1)


def test_an_ngram_is_kept_as_its_labels_differ():
    # "1" in all, "2" in texts of class 1, "3" in one that has no label
    texts = [np.array([1] if i % 2 else [1, 2]) for i in range(40)] + [np.array([3])]
    counts = ngram_counts(texts, 41, 1, 1)
    config = VectorConfig(longest=1, least_kept=0.2, unlabelled_kept=0.7)
    found = shares_kept(counts[:40], np.arange(40) % 2, config)
    # c = (20, 20) of class 0 and d = (20, 0) of class 1, each one more, over their sums; "3" counts
    # 1 in both
    ratio = np.log(21 / 43) - np.log(21 / 23)
    assert found == pytest.approx([abs(ratio), 1.0, 0.7])
    even = shares_kept(counts[:40], np.arange(40) // 2 % 2, config)
    assert even == pytest.approx([0.2, 0.2, 0.7])


def test_a_visit_follows_the_gradient_of_the_equation():
    config = VectorConfig(features=8, inner_steps=1, learning_rate=0.02, scale=5.0)
    rng = np.random.default_rng(0)
    W, X = (rng.normal(0, 0.2, (n, 8)).astype(np.float32) for n in (20, 3))
    rows, times = np.array([[3, 7, 0]]), np.array([[2.0, 1.0, 0.0]])  # the last is padding
    against = np.array([[7, 9, 9, 11]])

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def slopes(x, W):
        def cos(w):
            return w @ x / jnp.linalg.norm(w, axis=-1) / jnp.linalg.norm(x)

        held = times[0] @ jax.nn.log_sigmoid(5 * cos(W[rows[0]]))
        drawn = jax.nn.log_sigmoid(-5 * cos(W[against[0]])).sum()
        return held + config.negative_weight * 3 / 4 * drawn

    x = X[1] + 0.02 * np.asarray(slopes(X[1], W)[0])
    x = x / max(1, np.linalg.norm(x))
    expected = W + 0.02 * np.asarray(slopes(x, W)[1])
    texts = np.stack([X[0], x, X[2]])
    found = [
        _visit(
            jax.device_put(Vectors(W.copy(), X.copy())),
            np.array([1], np.int32),
            rows.astype(np.int32),
            times.astype(np.float32),
            against.astype(np.int32),
            config=config,
            learns=learns,
        )
        for learns in (True, False)
    ]
    np.testing.assert_allclose(found[0].ngrams, expected, atol=1e-6)
    np.testing.assert_array_equal(found[1].ngrams, W)
    for vectors in found:
        np.testing.assert_allclose(vectors.texts, texts, atol=1e-6)


@pytest.fixture(scope="module")
def corpus():
    """1,000 texts of noise and ten of 50 words of their class: the labelled ones know the first 20,
    the last 100 the others.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 1000)
    texts = []
    for i, label in enumerate(labels):
        own = rng.integers(20 if i >= 900 else 0, 20 if i < 200 else 50, 10)
        texts.append(rng.permutation(np.r_[rng.integers(100, 300, 20), 300 + 50 * label + own]))
    return texts, labels


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A folder that keeps what is learned, so that it is learned once."""
    return tmp_path_factory.mktemp("learned")


@pytest.fixture(scope="module")
def vectors(corpus, learned):
    return text_vectors(corpus[0], corpus[1][:200], 900, config=SMALL, keep_in=learned).vectors


def test_texts_of_a_class_lie_together_by_words_that_no_labelled_one_has(corpus, vectors):
    labels = corpus[1]
    assert vectors.shape == (1000, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    right = vector_logits(vectors, np.arange(200), labels[:200], 2).argmax(axis=1) == labels
    assert (
        right[200:900].mean() > 0.75 and right[900:].mean() > 0.7
    )  # the last were not learned from


# Stopped and gone on with
# ------------------------------------------------------------------------------------

SHORT = replace(SMALL, epochs=2, passes=2)


@pytest.fixture(scope="module")
def few(corpus):
    """A quarter of the texts; the first 50 with labels, the last 25 not to be learned from."""
    return corpus[0][::4], corpus[1][::4]


def short(few, folder=None, minutes=5.0, seed=0):
    options = {"config": SHORT, "keep_in": folder, "checkpoint_minutes": minutes, "seed": seed}
    return text_vectors(few[0], few[1][:50], 225, **options)


def test_a_seed_says_it_all(few):
    first, again, other = (short(few, seed=seed).vectors for seed in (0, 0, 1))
    np.testing.assert_array_equal(again, first)
    assert np.abs(other - first).max() > 0.1


@pytest.fixture(scope="module")
def checkpointed(few, tmp_path_factory):
    """The vectors, and the visits that every checkpoint has behind it."""
    with pytest.MonkeyPatch.context() as patch:
        seen = []
        patch.setattr(checkpoints, "save", lambda folder, state, progress: seen.append(progress))
        found = short(few, tmp_path_factory.mktemp("whole"), minutes=0.0).vectors
    return found, [progress.step for progress in seen]


def test_checkpoints_change_nothing(few, checkpointed):
    np.testing.assert_array_equal(checkpointed[0], short(few).vectors)


@pytest.mark.parametrize("step", ["first", 225, 450, "first beyond 450", 700, 950], ids=str)
def test_stopped_behind_any_visit_they_go_on_bit_for_bit(step, few, checkpointed, tmp_path):
    """At first, between two rounds, before and behind where the texts begin anew, and when all is
    done.
    """
    whole, visits = checkpointed
    if step == "first":
        step = visits[0]
    elif step == "first beyond 450":
        step = next(visit for visit in visits if visit > 450)
    save = checkpoints.save

    def save_and_stop(folder, vectors, progress):
        if progress.step == step:
            save(folder, vectors, progress)
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            short(few, tmp_path, minutes=0.0)
    visited = []

    def counted(*args, **options):
        visited.append(args[1])
        return _visit(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_vectors, "_visit", counted)
        found = short(few, tmp_path)
    np.testing.assert_array_equal(found.vectors, whole)
    assert len(visited) == len(visits) - (1 + visits.index(step))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_first(number, few, checkpointed, tmp_path):
    calls = []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == 20:
            signal.raise_signal(number)
        return _visit(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_vectors, "_visit", interrupted)
        with pytest.raises(Stopped) as stopped:
            short(few, tmp_path)
    assert stopped.value.number == number and len(calls) == 20
    (kept,) = tmp_path.glob("*/step-*")
    progress = json.loads((kept / "progress.json").read_text())
    assert progress["step"] == checkpointed[1][19]
    found = short(few, tmp_path)
    np.testing.assert_array_equal(found.vectors, checkpointed[0])
    assert found.seconds > progress["train_seconds"] > 0


def test_what_is_learned_is_kept_before_anything_is_made_of_it(few, checkpointed, tmp_path):
    texts, labels = few
    parts, known = (texts[:50], texts[50:225], texts[225:]), (labels[:50], labels[225:])
    told = [np.zeros((n, 2)) for n in (175, 25)]

    def stopped(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.classifier.pseudo_labels.vector_logits", stopped)
        with pytest.raises(KeyboardInterrupt):
            make_pseudo_labels(parts, known, told, SHORT, keep_in=tmp_path)
        patch.setattr(document_vectors, "_visit", stopped)
        np.testing.assert_array_equal(short(few, tmp_path).vectors, checkpointed[0])


@pytest.mark.parametrize("other", ["config", "seed", "labels", "texts"])
def test_what_began_otherwise_is_not_gone_on_with(other, few, tmp_path):
    texts, labels = few
    given = {"config": SHORT, "seed": 0, "labels": labels[:50], "texts": texts}
    changed = {
        "config": replace(SHORT, learning_rate=6e-3),
        "seed": 1,
        "labels": 1 - labels[:50] * (np.arange(50) > 9),
        "texts": [texts[1], *texts[1:]],
    }
    short(few, tmp_path)
    given[other] = changed[other]
    options = {"config": given["config"], "seed": given["seed"]}
    found, alone = (
        text_vectors(given["texts"], given["labels"], 225, **options, keep_in=folder).vectors
        for folder in (tmp_path, None)
    )
    np.testing.assert_array_equal(found, alone)


# What is made of them
# ----------------------------------------------------------------------------------------


def test_a_class_without_texts_is_never_the_likeliest(corpus, vectors):
    labels = corpus[1][:200]
    some = np.arange(200)
    logits = vector_logits(vectors, some, 2 * labels, 4)
    assert logits.shape == (1000, 4) and set(logits.argmax(axis=1)) == {0, 2}
    one = vector_logits(vectors, some, np.full(200, 2), 4)
    assert set(one.argmax(axis=1)) == {2} and one.dtype == logits.dtype
    two = vector_logits(vectors, some, labels, 2)
    np.testing.assert_allclose(logits[:, 2] - logits[:, 0], two[:, 1] - two[:, 0], rtol=1e-5)


def test_pseudo_labels_follow_who_is_right(corpus, learned):
    """n-grams that know nothing are not heard, and those that know all are."""
    texts, labels = corpus
    parts = texts[:200], texts[200:900], texts[900:]
    known = labels[:200], labels[900:]
    rng = np.random.default_rng(1)
    nothing = [rng.normal(size=(n, 2)) for n in (700, 100)]
    found = make_pseudo_labels(parts, known, nothing, SMALL, keep_in=learned)
    right = found.facts["guess_validation_accuracy"]
    assert right["both"] > 0.7 > right["ngrams"] and right["vectors"] > 0.7
    assert (found.labels == labels[200:900]).mean() > 0.7
    assert found.logits.shape == (900, 2) and found.validated.shape == (1000, 2)
    # Those to validate are not learned from, and then they are.
    assert ((found.logits - found.validated[:900]) != 0).any()
    by_vectors = found.validated[900:].argmax(axis=1) == labels[900:]
    assert by_vectors.mean() >= right["vectors"]
    everything = [3.0 * np.eye(2)[own] for own in (labels[200:900], labels[900:])]
    found = make_pseudo_labels(parts, known, everything, SMALL, keep_in=learned)
    np.testing.assert_array_equal(found.labels, labels[200:900])
    assert found.facts["guess_weights"]["ngrams"] > found.facts["guess_weights"]["vectors"]


def test_pseudo_labels_are_made_once_and_kept_bit_for_bit(tmp_path):
    made = []

    def make():
        made.append(1)
        rng = np.random.default_rng(0)
        logits, validated = (rng.normal(size=(n, 2)).astype(np.float32) for n in (4, 5))
        return PseudoLabels(np.array([1, 0, 2], np.int32), logits, validated, {"seconds": 1.0})

    path = tmp_path / "guesses.json"
    first, second = (kept_pseudo_labels(path, make) for _ in range(2))
    assert len(made) == 1 and json.loads(path.read_text())["labels"] == [1, 0, 2]
    for name in ("labels", "logits", "validated"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        assert getattr(first, name).dtype == getattr(second, name).dtype
    assert first.facts == second.facts
