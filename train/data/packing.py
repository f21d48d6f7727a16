"""Packing: texts are cut into passages that fit a row, and passages are packed into rows.

Each passage is framed by [CLS] and [SEP]. A text that is longer than a row gives several passages.
A row holds as many passages as fit, one after another, and a token attends to its own passage only
(Krell et al., 2021, https://arxiv.org/abs/2107.02027).
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
    """The concatenated tokens of all passages; passage i is starts[i] to starts[i + 1]."""

    tokens: Shaped[np.ndarray, " n"]
    is_first: Bool[np.ndarray, " n"]  # whether a token is the first piece of a word, or special
    starts: Int[np.ndarray, " passages+1"]

    @property
    def lengths(self) -> Int[np.ndarray, " passages"]:
        """The number of tokens of each passage."""
        return np.diff(self.starts)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the tokens in order."""
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()


def make_passages(
    tokenizer: PretrainedTokenizer, texts: Iterable[str], max_length: int
) -> Passages:
    """Return the passages of the texts, none longer than `max_length`, [CLS] and [SEP] included.

    Empty texts give no passage.
    """
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    room = max_length - 2
    tokens, firsts, starts = [], [], [0]
    for ids, words in tokenizer.by_word(texts):
        for start in range(0, len(ids), room):
            part, word = ids[start : start + room], np.array(words[start : start + room])
            tokens.append(np.array([tokenizer.cls_id, *part, tokenizer.sep_id], dtype))
            # A word that is cut by the end of a passage counts as two words.
            firsts.append(np.concatenate([[True, True], word[1:] != word[:-1], [True]]))
            starts.append(starts[-1] + len(tokens[-1]))
    if not tokens:
        return Passages(np.zeros(0, dtype), np.zeros(0, bool), np.array(starts))
    return Passages(np.concatenate(tokens), np.concatenate(firsts), np.array(starts))


def packed_rows(
    lengths: Int[np.ndarray, " n"], room: int, *, seed: int, epoch: int
) -> list[Int[np.ndarray, " _"]]:
    """Return rows of passage indices: every passage once, in an order drawn from (seed, epoch).

    The number of rows depends on the lengths only.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    order = order[np.argsort(-lengths[order], kind="stable")]
    rows = best_fit(lengths[order].tolist(), room)
    return [order[rows[i]] for i in rng.permutation(len(rows))]


def best_fit(lengths: list[int], room: int) -> list[list[int]]:
    """Place lengths into rows of at most `room` in total, by best fit; return each row's indices.

    Each length is put into the row where it leaves the least room, or into a new row if it fits
    none. With the longest first, the number of rows is within 11/9 of the minimum (Johnson et al.,
    1974, https://doi.org/10.1137/0203025). Raises ValueError for a length that is 0 or exceeds
    the room.

    >>> best_fit([5, 4, 3, 2, 1], 6)
    [[0, 4], [1, 3], [2]]
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(room + 1)]  # by_room[r]: rows with r left
    some = 0  # bit r: whether by_room[r] has any rows
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
