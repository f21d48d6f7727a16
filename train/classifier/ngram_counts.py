"""Counts of n-grams in texts. Every n-gram has its own column; nothing is hashed."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_matrix, vstack

from transformer_jax.runtime.progress import ProgressBar

BLOCK = 2048  # texts that are converted to rows at a time


def ngram_counts(
    examples: Sequence[np.ndarray],
    learned: int,
    longest: int,
    least_texts: int,
    unknown: Sequence[int] = (),
) -> csr_matrix:
    """Count the n-grams of each text, [n, V].

    The columns are the n-grams of up to `longest` tokens that occur in at least `least_texts` of
    the first `learned` texts; those with an `unknown` id are left out. An n-gram is coded in 63
    bits, enough for three ids below 2^20. Raises ValueError if the vocabulary is too large for
    that, and if no n-gram occurs in enough texts.
    """
    vocabulary = 1 + max((int(ids.max()) for ids in examples if len(ids)), default=0)
    if vocabulary**longest * longest >= 2**63:
        raise ValueError(f"n-grams of {longest} of {vocabulary:,} tokens do not fit 63 bits")
    shown = ProgressBar(examples, desc="n-grams", unit="text", leave=False)
    all_of = [_ngrams(ids, longest, vocabulary, unknown) for ids in shown]
    distinct = np.concatenate([np.unique(found) for found in all_of[:learned]])
    keys, texts = np.unique(distinct, return_counts=True)
    keys = keys[texts >= least_texts]
    if not len(keys):
        raise ValueError(f"no n-gram occurs in {least_texts} of {learned:,} texts")

    def rows(some: list[np.ndarray]) -> csr_matrix:
        places = np.concatenate(some)
        columns = np.minimum(np.searchsorted(keys, places), len(keys) - 1)
        known = keys[columns] == places
        text = np.repeat(np.arange(len(some)), [len(found) for found in some])[known]
        ones = np.ones(len(text), np.int32)
        return csr_matrix((ones, (text, columns[known])), shape=(len(some), len(keys)))

    return vstack([rows(all_of[i : i + BLOCK]) for i in range(0, len(all_of), BLOCK)], format="csr")


def _ngrams(
    ids: np.ndarray, longest: int, vocabulary: int, unknown: Sequence[int]
) -> Int[np.ndarray, " k"]:
    """Return a code for each n-gram of a text, by length and then by position."""
    # The digits of a code are the token ids; the codes of longer n-grams follow those of shorter.
    ids = np.asarray(ids, np.int64)
    known = ~np.isin(ids, unknown)
    number, there, found, first = ids, known, [], 0
    for n in range(1, longest + 1):
        found.append(first + number[there])
        first += vocabulary**n
        number = number[:-1] * vocabulary + ids[n:]
        there = there[:-1] & known[n:]
    return np.concatenate(found)
