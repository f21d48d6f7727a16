"""N-grams: their rows are those of a plain hash, their evidence is the linear model of its definition."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.svm import LinearSVC

from train.classifiers import FromScratch
from train.evidence import fit_evidence, ngrams_held
from train.recipes import FAST
from transformer_jax.config import ClassifierConfig, StackConfig
from transformer_jax.embeddings import NgramEvidence
from transformer_jax.ngrams import ngram_evidence, ngram_rows, ngram_shares

B, T, N, BITS = 3, 9, 3, 10
PAD = 0
WRAP = 2**32


def hashed(gram, bits):
    """The same with integers of any size, wrapped by hand."""
    state = 0
    for token in gram:
        state = ((state ^ (token + 1)) * 0x9E3779B1) % WRAP
        state ^= state >> 15
    state = ((state + len(gram)) * 0x85EBCA6B) % WRAP
    state ^= state >> 13
    return ((state * 0xC2B2AE35) % WRAP) >> (32 - bits)


def texts(seed, rows=B):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 50_000, (rows, T)).astype(np.int32)
    return tokens, random.random((rows, T)) < 0.8


rows_of = jax.jit(ngram_rows, static_argnums=(2, 3))


@pytest.mark.parametrize("bits", [BITS, 22])
def test_rows_are_the_hash_of_what_begins_there(bits):
    for seed in range(5):
        tokens, is_token = texts(seed)
        rows, there = map(np.asarray, rows_of(tokens, is_token, N, bits))
        for b, t, n in np.ndindex(B, T, N):
            whole = t + n < T and is_token[b, t : t + n + 1].all()
            assert there[b, t, n] == whole
            if whole:
                assert rows[b, t, n] == hashed(tokens[b, t : t + n + 1].tolist(), bits)
        assert rows.min() >= 0 and rows.max() < 2**bits


def test_rows_are_spread():
    """Of 200 thousand different pairs and triples, as many share a row as would by chance: birthdays."""
    words = np.arange(100_002, dtype=np.int32)[None]
    rows, _ = rows_of(words, np.ones_like(words, bool), N, 22)
    found = np.asarray(rows)[0, :100_000].T.ravel()
    shared = len(found) - len(np.unique(found))
    by_chance = len(found) - 2**22 * (1 - np.exp(-len(found) / 2**22))
    assert shared == pytest.approx(by_chance, rel=0.1)


def test_evidence_is_the_sum_over_the_root():
    random = np.random.default_rng(0)
    weight, square = random.normal(size=(2**BITS, 2)), random.random((2**BITS, 2))
    presence = random.random((B, T))
    tokens, is_token = texts(1)
    is_token[2] = False  # an empty text
    tokens[:, 4:6] = tokens[:, 1:3]  # said twice
    is_token[:2, 1:6] = True
    rows, there = rows_of(tokens, is_token, N, BITS)
    found = jax.jit(ngram_evidence)(
        *(jnp.asarray(x, jnp.float32) for x in (weight, square)),
        rows,
        jax.jit(ngram_shares)(rows, there),
        jnp.asarray(np.where(is_token, presence, np.nan), jnp.float32),
    )
    for b in range(B):
        z, size = np.zeros(2), np.zeros(2)
        places = {}
        for t in range(T):
            for n in range(1, N + 1):
                if t + n <= T and is_token[b, t : t + n].all():
                    row = hashed(tokens[b, t : t + n].tolist(), BITS)
                    places.setdefault(row, []).append(presence[b, t : t + n].prod())
        assert b == 2 or max(map(len, places.values())) > 1
        for row, p in places.items():
            z += weight[row] * np.mean(p)
            size += square[row] * np.mean(np.square(p))
        expected = z / np.sqrt(10 + size)
        np.testing.assert_allclose(found[b], expected, rtol=1e-4, atol=1e-5)


def test_shares_are_one_over_the_count():
    random = np.random.default_rng(3)
    rows, there = random.integers(0, 6, (B, T, N)), random.random((B, T, N)) < 0.7
    found = np.asarray(jax.jit(ngram_shares)(rows, there))
    for b, t, n in np.ndindex(B, T, N):
        times = ((rows[b] == rows[b, t, n]) & there[b]).sum()
        assert found[b, t, n] == pytest.approx(1 / times if there[b, t, n] else 0)


def reviews(classes, number=120, seed=0):
    """Texts of random tokens, each with one token that tells its class, or not, and their labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, number)
    examples = [random.integers(10, 30, random.integers(3, 12)) for _ in labels]
    for ids, label in zip(examples, labels, strict=True):
        ids[random.integers(len(ids))] = 1 + (label if random.random() < 0.9 else 0)
    return [ids.astype(np.int32) for ids in examples], labels


def evidence_of(classes, examples, labels):
    evidence = NgramEvidence(classes, longest=2, bits=BITS, rngs=nnx.Rngs(0))
    fit_evidence(evidence, examples, labels, PAD)
    return evidence


def logits_of(evidence, examples):
    tokens = np.zeros((len(examples), 12), np.int32)
    for row, ids in zip(tokens, examples, strict=True):
        row[: len(ids)] = ids
    return np.asarray(evidence(jnp.asarray(tokens), jnp.asarray(tokens != PAD)))


def test_what_a_text_holds_is_what_it_says_once_or_more():
    examples = [np.array([5, 7, 5, 7], np.int32), np.array([7], np.int32)]
    held = ngrams_held(examples, PAD, 2, BITS).toarray()
    expected = np.zeros((2, 2**BITS))
    for row, gram in ((0, [5]), (0, [7]), (0, [5, 7]), (0, [7, 5]), (1, [7])):
        expected[row, hashed(gram, BITS)] = 1
    np.testing.assert_array_equal(held, expected)


def test_two_classes_are_the_linear_model_of_the_definition():
    examples, labels = reviews(2)
    evidence = evidence_of(2, examples, labels)
    grams = [
        [hashed(ids[t : t + n].tolist(), BITS) for n in (1, 2) for t in range(len(ids) - n + 1)]
        for ids in examples
    ]
    x = np.zeros((len(examples), 2**BITS))
    for row, gram in zip(x, grams, strict=True):
        row[gram] = 1
    c, d = (1 + (x[labels == k] > 0).sum(axis=0) for k in (1, 0))
    ratio = np.log(c / c.sum()) - np.log(d / d.sum())
    length = np.sqrt(10 + x @ ratio**2)
    x = x * ratio / length[:, None]
    expected = LinearSVC(C=1.0, random_state=0).fit(x, labels).decision_function(x)
    logits = logits_of(evidence, examples)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], expected, atol=1e-3)
    np.testing.assert_allclose(logits.sum(axis=1), 0, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_what_was_fitted_tells_other_texts(classes):
    evidence = evidence_of(classes, *reviews(classes))
    examples, labels = reviews(classes, seed=1)
    assert (logits_of(evidence, examples).argmax(axis=1) == labels).mean() > 0.8


@pytest.mark.parametrize(("classes", "bits"), [(2, 10), (3, 8), (4, 8), (5, 7)])
def test_more_classes_share_tables_as_large(classes, bits):
    model = ClassifierConfig(40, 12, encoder=StackConfig(1, 12, 2, 4), ngrams=2, ngram_bits=10)
    options = SimpleNamespace(seed=0, gpt2_files=None)
    beginning = FromScratch(replace(FAST, model=model, evidence_weight=3.0), options)
    examples, labels = reviews(classes)
    tokenizer = SimpleNamespace(vocab_size=40, pad_id=PAD)
    names = tuple(f"class {k}" for k in range(classes))
    made = beginning.make(tokenizer, names, "reviews", examples, labels)
    assert made.spec.config.ngram_bits == bits
    # What is trained has none; what is kept has them, as loud as the recipe says; and they are fitted anew when asked.
    params = nnx.state(made.trained, nnx.Param)
    assert "evidence" not in params
    kept = nnx.merge(nnx.split(made.model, nnx.Param)[0], made.kept(params))
    alone = NgramEvidence(classes, longest=2, bits=bits, rngs=nnx.Rngs(0))
    fit_evidence(alone, examples, labels, PAD)
    for name, times in (("weight", 3), ("square", 1), ("bias", 3)):
        ours, expected = (np.asarray(getattr(e, name)[...]) for e in (kept.evidence, alone))
        np.testing.assert_allclose(ours, times * expected, rtol=1e-5, atol=1e-6)
    fewer = made.solved(examples[:60], labels[:60])["evidence"]["weight"]
    assert np.abs(np.asarray(fewer[...]) - np.asarray(kept.evidence.weight[...])).max() > 0.1
    assert made.parts == ("head", "evidence") and made.facts["evidence_seconds"] > 0


def test_one_class_alone_says_nothing_and_an_empty_text_only_the_bias():
    examples, labels = reviews(2)
    evidence = evidence_of(2, examples, 0 * labels)
    np.testing.assert_array_equal(logits_of(evidence, examples), 0)
    evidence = evidence_of(2, examples, labels)
    bias = float(evidence.bias[0])
    np.testing.assert_allclose(
        logits_of(evidence, [np.zeros(0, np.int32)]), [[-bias / 2, bias / 2]]
    )
