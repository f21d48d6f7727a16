"""Byte-pair encoding: the worked example, the definition as loops, and the `tokenizers` library."""

import json
import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, trainers

from transformer_jax.text.bpe import END, apply_merges, pair_counts, train_bpe, vocabulary

# A tutorial's worked example (M. P. Singh, "The Transformers", section 1.4).
COUNTS = {"old": 7, "older": 3, "finest": 9, "lowest": 4}

LIBRARY_END = "\ue000"  # one character, so that the library too has the end marker as a symbol

# Three letters: pairs overlap, repeat ("aaaa") and tie.
corpora = st.dictionaries(
    st.text("abc", min_size=1, max_size=7), st.integers(1, 40), min_size=1, max_size=8
)


def split(counts):
    return {(*word, END): count for word, count in counts.items()}


def joined(words, pair):
    """Every `pair` joined, by way of text: symbols between bars."""
    merged = {}
    for word, count in words.items():
        text = "".join(f"|{symbol}|" for symbol in word)
        text = text.replace("".join(f"|{symbol}|" for symbol in pair), f"|{''.join(pair)}|")
        merged[tuple(text[1:-1].split("||"))] = count
    return merged


def most_frequent(words):
    pairs = pair_counts(words)
    return [pair for pair in pairs if pairs[pair] == max(pairs.values())]


def library(counts, size=500):
    """The library's merges and ids, in our spelling."""
    core = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=1, show_progress=False)
    core.train_from_iterator(
        [word + LIBRARY_END for word, count in counts.items() for _ in range(count)], trainer
    )
    model = json.loads(core.to_str().replace(LIBRARY_END, END))["model"]
    return [tuple(pair) for pair in model["merges"]], model["vocab"]


def test_the_worked_example():
    pairs = pair_counts(split(COUNTS))
    named = {"es": 13, "st": 13, "ol": 10, "ld": 10, "ne": 9, "fi": 9, "in": 9}
    assert {pair: pairs[tuple(pair)] for pair in named} == named
    assert pairs["t", END] == 13
    assert train_bpe(COUNTS, 3) == [("e", "s"), ("es", "t"), ("est", END)]


def test_the_vocabulary_is_characters_then_merges():
    merges = train_bpe(COUNTS, 3)
    tokens = ["o", "l", "d", END, *"erfinstw", "es", "est", "est</w>"]
    assert vocabulary(COUNTS, merges) == {token: index for index, token in enumerate(tokens)}


def test_an_unknown_word_is_cut_into_known_parts():
    assert apply_merges("newest", train_bpe(COUNTS, 3)) == ["n", "e", "w", "est</w>"]
    assert apply_merges("estx", train_bpe(COUNTS, 3)) == ["est", "x", END]


def test_enough_merges_make_every_word_one_token():
    merges = train_bpe(COUNTS, 1000)
    assert len(merges) < 1000
    assert [apply_merges(word, merges) for word in COUNTS] == [[word + END] for word in COUNTS]


def test_words_count_as_often_as_they_occur():
    assert train_bpe({"ab": 1, "cd": 2}, 1) == [("c", "d")]
    assert pair_counts({("a", "a", "a"): 5}) == {("a", "a"): 10}


def test_of_equal_pairs_the_first_in_the_corpus_wins():
    assert train_bpe({"xy": 1, "ab": 1}, 1) == [("x", "y")]
    assert train_bpe({"ab": 1, "xy": 1}, 1) == [("a", "b")]


def test_the_library_gives_a_tie_to_the_smallest_ids():
    """Here "t</w>" before "est", which has a larger id; the token "est</w>" comes of it all the
    same.
    """
    assert library(COUNTS)[0][:3] == [("e", "s"), ("t", END), ("es", "t" + END)]


@settings(deadline=None, max_examples=200)
@given(corpora)
def test_every_merge_is_the_first_most_frequent_pair(counts):
    words = split(counts)
    for pair in train_bpe(counts, 30):
        assert pair == most_frequent(words)[0]
        words = joined(words, pair)
    assert train_bpe(counts, 5) == train_bpe(counts, 30)[:5]


@settings(deadline=None, max_examples=200)
@given(corpora)
def test_the_library_learns_the_same_but_for_its_tie_rule(counts):
    """Each of its merges is a most frequent pair too: of several, that with the smallest ids."""
    merges, ids = library(counts)
    words = split(counts)
    for pair in merges:
        assert pair == min(most_frequent(words), key=lambda tie: (ids[tie[0]], ids[tie[1]]))
        words = joined(words, pair)
    assert all(len(word) == 1 for word in words)


@settings(deadline=None, max_examples=200)
@given(corpora)
def test_where_nothing_ties_the_library_learns_the_same_merges(counts):
    theirs, _ = library(counts)
    words = split(counts)
    for ours, its in zip(train_bpe(counts, 30), theirs, strict=False):
        if len(most_frequent(words)) > 1:
            break
        assert ours == its
        words = joined(words, ours)


def test_a_generated_corpus_without_ties_gives_the_library_s_merges():
    draw = random.Random(9)
    counts = {
        "".join(draw.choices("aeionst", k=draw.randint(3, 8))): draw.randint(1, 500)
        for _ in range(200)
    }
    merges = train_bpe(counts, 80)
    words = split(counts)
    for pair in merges:
        assert most_frequent(words) == [pair]
        words = joined(words, pair)
    assert library(counts)[0][:80] == merges


@settings(deadline=None, max_examples=200)
@given(corpora, st.text("abcd", max_size=9))
def test_the_library_cuts_words_with_our_merges_as_we_do(counts, word):
    merges = list(dict.fromkeys(train_bpe(counts, 20)))
    ids = vocabulary(counts | {"abcd": 1}, merges)
    library_ids = {token.replace(END, LIBRARY_END): index for token, index in ids.items()}
    library_merges = [tuple(part.replace(END, LIBRARY_END) for part in pair) for pair in merges]
    core = tokenizers.Tokenizer(models.BPE(library_ids, library_merges))
    tokens = core.encode(word + LIBRARY_END).tokens
    assert apply_merges(word, merges) == [token.replace(LIBRARY_END, END) for token in tokens]


@settings(deadline=None)
@given(corpora)
def test_tokens_spell_the_word_and_are_in_the_vocabulary(counts):
    merges = train_bpe(counts, 12)
    tokens = vocabulary(counts, merges)
    for word in counts:
        cut = apply_merges(word, merges)
        assert "".join(cut) == word + END
        assert set(cut) <= set(tokens)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: train_bpe(COUNTS, -1), "num_merges must be 0 or more, got -1"),
        (lambda: train_bpe({"a": 1, "b": 0}, 1), "counts must be 1 or more, got 0"),
        (lambda: train_bpe({"a</w>b": 1}, 1), "must not contain '</w>'"),
        (lambda: apply_merges("</w>", []), "must not contain '</w>'"),
    ],
)
def test_what_cannot_be_trained_on_says_why(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_nothing_to_learn_gives_no_merges():
    assert train_bpe({}, 5) == []
    assert train_bpe(COUNTS, 0) == []
    assert apply_merges("old", []) == ["o", "l", "d", END]
