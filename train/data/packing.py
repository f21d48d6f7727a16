"""Texts as passages of tokens that fit a row, each between [CLS] and [SEP], and passages packed
into rows.

A text that is longer than a row makes several passages. In a row stand as many as have room, one
behind the other; a token sees its own passage alone (Krell et al., 2021,
https://arxiv.org/abs/2107.02027).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int, Shaped

from transformer_jax.pretrained import PretrainedTokenizer


@dataclass(frozen=True)
class Passages:
    """One behind the other; passage i is starts[i] to starts[i + 1]."""

    tokens: Shaped[np.ndarray, " n"]
    is_first: Bool[np.ndarray, " n"]  # the first piece of a word, a special token included
    starts: Int[np.ndarray, " passages+1"]

    @property
    def lengths(self) -> Int[np.ndarray, " passages"]:
        return np.diff(self.starts)

    @cached_property
    def sha256(self) -> str:
        """Of the tokens in their order."""
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()


def make_passages(
    tokenizer: PretrainedTokenizer, texts: Iterable[str], max_length: int
) -> Passages:
    """The passages of the texts, none longer than `max_length`, its frame included. Empty texts
    have none.
    """
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    room = max_length - 2
    tokens, firsts, starts = [], [], [0]
    for ids, words in tokenizer.by_word(texts):
        for start in range(0, len(ids), room):
            part, word = ids[start : start + room], np.array(words[start : start + room])
            tokens.append(np.array([tokenizer.cls_id, *part, tokenizer.sep_id], dtype))
            # A word that the end of a passage cuts is two.
            firsts.append(np.concatenate([[True, True], word[1:] != word[:-1], [True]]))
            starts.append(starts[-1] + len(tokens[-1]))
    if not tokens:
        return Passages(np.zeros(0, dtype), np.zeros(0, bool), np.array(starts))
    return Passages(np.concatenate(tokens), np.concatenate(firsts), np.array(starts))


def packed_rows(
    lengths: Int[np.ndarray, " n"], room: int, *, seed: int, epoch: int
) -> list[Int[np.ndarray, " _"]]:
    """Every passage once: which of them share a row, in an order of rows that (seed, epoch) draws.

    How many rows there are, the lengths alone decide.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    order = order[np.argsort(-lengths[order], kind="stable")]
    rows = best_fit(lengths[order].tolist(), room)
    return [order[rows[i]] for i in rng.permutation(len(rows))]


def best_fit(lengths: list[int], room: int) -> list[list[int]]:
    """Rows of at most `room` in all: each length goes where the least is left over, else into a row
    of its own.

    Longest first is within 11/9 of the fewest rows (Johnson et al., 1974,
    https://doi.org/10.1137/0203025). Raises ValueError for a length that is 0, or more than the
    room.

    >>> best_fit([5, 4, 3, 2, 1], 6)
    [[0, 4], [1, 3], [2]]
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(room + 1)]  # the rows with so much left
    some = 0  # bit r: whether by_room[r] has any
    for i, length in enumerate(lengths):
        if not 0 < length <= room:
            raise ValueError(f"a length must be 1 to {room}; got {length}")
        fitting = some >> length << length
        if fitting:
            left = (fitting & -fitting).bit_length() - 1  # the lowest bit
            row = by_room[left].pop()
            some ^= 0 if by_room[left] else 1 << left
        else:
            left, row = room, len(rows)
            rows.append([])
        rows[row].append(i)
        by_room[left - length].append(row)
        some |= 1 << (left - length)
    return rows
