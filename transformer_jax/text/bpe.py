"""Byte-pair encoding in readable form (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909,
algorithm 1).

    >>> merges = train_bpe({"old": 7, "older": 3, "finest": 9, "lowest": 4}, 3)
    >>> merges
    [('e', 's'), ('es', 't'), ('est', '</w>')]
    >>> apply_merges("newest", merges)
    ['n', 'e', 'w', 'est</w>']

A word is a sequence of its characters and an end marker. Training repeatedly merges the most
frequent pair of neighbouring symbols. Among equally frequent pairs, the one that appears first in
the corpus (the order of `counts`, then from left to right) is merged. The `tokenizers` library
chooses the pair with the smallest ids instead. Its merges are therefore the same up to the first
tie, and may differ after it.

The loops count all pairs again for every merge, which is slow. For real corpora use
`tokenizer.train_tokenizer`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

END = "</w>"  # marks the end of a word: "est</w>" is a suffix, "est" may be anywhere in a word

Pair = tuple[str, str]


def train_bpe(counts: Mapping[str, int], num_merges: int) -> list[Pair]:
    """Learn up to `num_merges` merges from the number of occurrences of each word.

    Returns the merges in the order in which they were learnt. There are fewer than `num_merges` if
    every word has become a single token. Raises ValueError for a negative `num_merges`, a count
    below 1, or a word that contains the end marker.
    """
    if num_merges < 0:
        raise ValueError(f"num_merges must be 0 or more, got {num_merges}")
    words = {_symbols(word): count for word, count in counts.items()}
    if any(count < 1 for count in counts.values()):
        raise ValueError(f"counts must be 1 or more, got {min(counts.values())}")

    merges: list[Pair] = []
    while len(merges) < num_merges and (pairs := pair_counts(words)):
        # `max` returns the first of equal pairs, and the dictionary has the order of the corpus.
        best = max(pairs, key=pairs.__getitem__)
        words = {_merge(word, best): count for word, count in words.items()}
        merges.append(best)
    return merges


def pair_counts(words: Mapping[tuple[str, ...], int]) -> dict[Pair, int]:
    """Count how often each pair of symbols is neighbouring, weighted by the counts of the words.

    The pairs are in the order of their first occurrence.
    """
    pairs: dict[Pair, int] = {}
    for word, count in words.items():
        for pair in pairwise(word):
            pairs[pair] = pairs.get(pair, 0) + count
    return pairs


def apply_merges(word: str, merges: Sequence[Pair]) -> list[str]:
    """Tokenize a word: apply the merges to it, always the one that was learnt first.

    The word need not be in the training corpus. A character that is not in the corpus stays a token
    of its own, which is not in the vocabulary.
    """
    # The same pair can be learnt twice, when one of its sides is formed in a second way. Its first
    # rank counts.
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}
    symbols = _symbols(word)
    while known := [pair for pair in pairwise(symbols) if pair in ranks]:
        symbols = _merge(symbols, min(known, key=ranks.__getitem__))
    return list(symbols)


def vocabulary(counts: Mapping[str, int], merges: Sequence[Pair]) -> dict[str, int]:
    """Return the id of each token.

    The characters and the end marker come first, in the order of their first occurrence, then the
    results of the merges.
    """
    symbols = [symbol for word in counts for symbol in _symbols(word)]
    tokens = dict.fromkeys([*symbols, *(left + right for left, right in merges)])
    return {token: index for index, token in enumerate(tokens)}


def _symbols(word: str) -> tuple[str, ...]:
    if END in word:
        raise ValueError(f"a word must not contain {END!r}, the marker of its end; got {word!r}")
    return (*word, END)


def _merge(symbols: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    """Merge every occurrence of `pair`, from left to right: a a a becomes aa a."""
    merged: list[str] = []
    index = 0
    while index < len(symbols):
        width = 2 if symbols[index : index + 2] == pair else 1
        merged.append("".join(symbols[index : index + width]))
        index += width
    return tuple(merged)
