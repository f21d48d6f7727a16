"""Byte-pair encoding, the readable trainer (Sennrich et al., 2016,
https://arxiv.org/abs/1508.07909, algorithm 1).

    >>> merges = train_bpe({"old": 7, "older": 3, "finest": 9, "lowest": 4}, 3)
    >>> merges
    [('e', 's'), ('es', 't'), ('est', '</w>')]
    >>> apply_merges("newest", merges)
    ['n', 'e', 'w', 'est</w>']

A word is its characters and a marker of its end; training joins the pair of neighbours that occurs
most often, again and again. Where pairs are equally frequent, the one that appears first in the
corpus (the order of `counts`, then from left to right) wins. The `tokenizers` library gives such
ties to the pair with the smallest ids instead, so from the first tie on its merges may be others;
up to there they are the same.

Plain loops that count every pair again for every merge: for real corpora there is
`tokenizers.train_tokenizer`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

END = "</w>"  # of a word: "est</w>" is a suffix, "est" may stand anywhere

Pair = tuple[str, str]


def train_bpe(counts: Mapping[str, int], num_merges: int) -> list[Pair]:
    """The merges in the order in which they were learnt, from words and how often each occurs.

    Fewer than `num_merges` where every word has become one token.
    """
    if num_merges < 0:
        raise ValueError(f"num_merges must be 0 or more, got {num_merges}")
    words = {_symbols(word): count for word, count in counts.items()}
    if any(count < 1 for count in counts.values()):
        raise ValueError(f"counts must be 1 or more, got {min(counts.values())}")

    merges: list[Pair] = []
    while len(merges) < num_merges and (pairs := pair_counts(words)):
        # `max` keeps the first of equals, and the dictionary is in the order of the corpus.
        best = max(pairs, key=pairs.__getitem__)
        words = {_merge(word, best): count for word, count in words.items()}
        merges.append(best)
    return merges


def pair_counts(words: Mapping[tuple[str, ...], int]) -> dict[Pair, int]:
    """How often each two symbols are neighbours, each word counted as often as it occurs; first
    seen, first.
    """
    pairs: dict[Pair, int] = {}
    for word, count in words.items():
        for pair in pairwise(word):
            pairs[pair] = pairs.get(pair, 0) + count
    return pairs


def apply_merges(word: str, merges: Sequence[Pair]) -> list[str]:
    """The tokens of a word, known or not: of the pairs in it, the one learnt first is joined first.

    A character that training never saw stays a token of its own, which no vocabulary holds.
    """
    # A pair can be learnt again, once its left or right side is made in a second way: its first
    # rank counts.
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}
    symbols = _symbols(word)
    while known := [pair for pair in pairwise(symbols) if pair in ranks]:
        symbols = _merge(symbols, min(known, key=ranks.__getitem__))
    return list(symbols)


def vocabulary(counts: Mapping[str, int], merges: Sequence[Pair]) -> dict[str, int]:
    """Token to id: the characters and the end marker as they first appear, then what each merge
    made.
    """
    symbols = [symbol for word in counts for symbol in _symbols(word)]
    tokens = dict.fromkeys([*symbols, *(left + right for left, right in merges)])
    return {token: index for index, token in enumerate(tokens)}


def _symbols(word: str) -> tuple[str, ...]:
    if END in word:
        raise ValueError(f"a word must not contain {END!r}, the marker of its end; got {word!r}")
    return (*word, END)


def _merge(symbols: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    """The symbols with every `pair` joined, from left to right: a a a is aa a."""
    merged: list[str] = []
    index = 0
    while index < len(symbols):
        width = 2 if symbols[index : index + 2] == pair else 1
        merged.append("".join(symbols[index : index + width]))
        index += width
    return tuple(merged)
