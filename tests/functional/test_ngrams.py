"""N-grams: their rows are those of a plain hash, their evidence is the sum of its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional.ngrams import ngram_evidence, ngram_rows, ngram_shares

B, T, N, BITS = 3, 9, 3, 10
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
    """Among 200 thousand different pairs and triples, as many share a row as would by chance:
    birthdays.
    """
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
