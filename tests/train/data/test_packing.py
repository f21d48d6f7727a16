"""Texts cut into passages and packed into rows: no token is lost, none comes twice, no row is too
long.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data.packing import best_fit, make_passages, packed_rows
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.tokenizer_formats import as_published

TEXTS = [
    "the plot was unbelievable, and the acting unbelievably dull",
    "",
    "a",
    "the film was not dull: the acting was dull, the plot was not",
    "the the the",
]


@pytest.fixture(scope="module", params=["word:40", "bpe:300"])
def tokenizer(request):
    return as_published(train_tokenizer(request.param, TEXTS))


def parts(passages):
    return [passages.tokens[start:end].tolist() for start, end in pairwise(passages.starts)]


@pytest.mark.parametrize("length", [3, 5, 7, 100])
def test_the_passages_hold_every_token_of_the_texts_once_in_frames(tokenizer, length):
    passages = make_passages(tokenizer, TEXTS, length)
    found = parts(passages)
    for part in found:
        assert 3 <= len(part) <= length
        assert (part[0], part[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
    inside = [token for part in found for token in part[1:-1]]
    assert inside == np.concatenate(tokenizer.pieces(TEXTS)).tolist()
    if length == 100:
        assert found == [ids.tolist() for ids in tokenizer.encode(TEXTS, 100) if len(ids) > 2]


def test_a_word_begins_where_its_first_piece_stands():
    tokenizer = as_published(train_tokenizer("bpe:262", TEXTS))  # one pair is merged: letters
    passages = make_passages(tokenizer, ["dull plot"], 100)
    begins = [
        tokenizer.token(int(token))
        for token, first in zip(passages.tokens, passages.is_first, strict=True)
        if first
    ]
    assert begins == ["[CLS]", "d", "Ġ", "[SEP]"]
    cut = make_passages(tokenizer, ["dull plot"], 5)  # in the middle of both words
    assert parts(cut)[0][1:-1] == tokenizer.pieces(["dul"])[0].tolist()
    assert cut.is_first[cut.starts[:-1]].all() and cut.is_first[cut.starts[:-1] + 1].all()


def test_no_texts_are_no_passages(tokenizer):
    passages = make_passages(tokenizer, ["", ""], 9)
    assert len(passages.tokens) == 0 and len(passages.lengths) == 0
    assert packed_rows(passages.lengths, 9, seed=0, epoch=0) == []


@given(st.lists(st.integers(1, 12), max_size=60))
def test_every_length_is_in_one_row_and_no_row_is_too_long(lengths):
    rows = best_fit(lengths, 12)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 12 for row in rows)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60))
def test_rows_are_nearly_as_few_as_can_be(lengths):
    """Johnson et al. bound them by 11/9 of the fewest, which are at least the sum over the room."""
    rows = best_fit(sorted(lengths, reverse=True), 12)
    halves = sum(length > 6 for length in lengths)  # no two of them share a row
    least = max(-(-sum(lengths) // 12), halves)
    assert len(rows) <= 11 / 9 * least * 1.5 + 1
    # No two rows could have been one.
    longest_first = sorted(lengths, reverse=True)
    sums = sorted(sum(longest_first[i] for i in row) for row in rows)
    assert len(sums) < 2 or sums[0] + sums[1] > 12


def test_a_length_goes_where_the_least_is_left_over():
    assert best_fit([7, 6, 3, 4], 10) == [[0, 2], [1, 3]]
    assert best_fit([10, 9, 1], 10) == [[0], [1, 2]]
    for wrong in (0, 11):
        with pytest.raises(ValueError, match="must be 1 to 10"):
            best_fit([wrong], 10)


def test_an_epoch_has_rows_of_its_own_and_as_many_as_the_others():
    lengths = np.random.default_rng(0).integers(1, 30, 200)
    one, again, other = (packed_rows(lengths, 32, seed=3, epoch=e) for e in (0, 0, 1))
    as_lists = [[row.tolist() for row in rows] for rows in (one, again, other)]
    assert as_lists[0] == as_lists[1] != as_lists[2]
    assert len(one) == len(other)
    for rows in (one, other):
        assert sorted(np.concatenate(rows).tolist()) == list(range(200))
        assert max(lengths[row].sum() for row in rows) <= 32
    first = [lengths[row].sum() for row in one[: len(one) // 2]]
    assert np.mean(first) < 32  # the last, half-empty rows are not all at the end
    assert len(one) * 32 < 1.1 * lengths.sum()


def test_the_sum_tells_other_tokens(tokenizer):
    sums = {make_passages(tokenizer, texts, 9).sha256 for texts in (TEXTS, TEXTS[:4], TEXTS[::-1])}
    assert len(sums) == 3
