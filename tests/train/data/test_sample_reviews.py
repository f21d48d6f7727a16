"""The guarantees of the built-in sample: only word order tells the label, and training shows no
test pair.
"""

import re
from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from train.data.dataset import DataError
from train.data.load import load, split_validation
from train.data.sample_grammar import (
    BLAME,
    FAR_FIRST,
    FAR_SECOND,
    GRAMMAR,
    NEAR_FIRST,
    NEAR_SECOND,
    PRAISE,
)
from train.data.sample_reviews import held_out, sample

TOKEN = r"\w+|[^\w\s]"


@pytest.fixture(scope="module")
def data():
    return sample()


def tokens(text: str) -> list[str]:
    return re.findall(TOKEN, text.lower())


def pairs(split) -> list[list[int]]:
    rows: dict[str, list[int]] = {}
    for i, group in enumerate(split.groups):
        rows.setdefault(group, []).append(i)
    return list(rows.values())


def test_every_text_has_a_twin_of_the_same_words_and_the_opposite_label(data):
    for split in (data.train, data.test):
        for one, other in pairs(split):
            assert Counter(tokens(split.texts[one])) == Counter(tokens(split.texts[other]))
            assert tokens(split.texts[one]) != tokens(split.texts[other])
            assert {split.labels[one], split.labels[other]} == {0, 1}


def test_twins_never_straddle_a_split(data):
    kept, held, _ = split_validation(data.train, 0.1, 0)
    assert len(held) == 800
    bags = [
        {tuple(sorted(tokens(text))) for text in split.texts} for split in (kept, held, data.test)
    ]
    assert not bags[0] & bags[1] and not bags[0] & bags[2] and not bags[1] & bags[2]


@pytest.mark.parametrize("vectorizer", [CountVectorizer, TfidfVectorizer])
def test_counting_words_is_right_in_half_of_the_texts(data, vectorizer):
    words = vectorizer(token_pattern=TOKEN)
    model = LogisticRegression(C=10, max_iter=200)
    model.fit(words.fit_transform(data.train.texts), data.train.labels)
    assert 0.48 <= model.score(words.transform(data.test.texts), data.test.labels) <= 0.52


def test_counting_pairs_of_neighbouring_words_helps_little(data):
    words = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2))
    model = LogisticRegression(C=10, max_iter=200)
    model.fit(words.fit_transform(data.train.texts), data.train.labels)
    assert model.score(words.transform(data.test.texts), data.test.labels) < 0.6


def test_the_last_opinion_is_not_the_answer(data):
    praise = set(PRAISE)
    words = praise | set(BLAME)
    last = [[w for w in tokens(text) if w in words][-1] in praise for text in data.test.texts]
    assert 0.45 < np.mean(np.array(last) == data.test.labels) < 0.55


def test_test_texts_pair_adjectives_that_training_never_pairs(data):
    def seen(split):
        found = set()
        for text in split.texts:
            words = set(tokens(text))
            found |= {(p, b) for p in words & set(PRAISE) for b in words & set(BLAME)}
        return found

    train, test = seen(data.train), seen(data.test)
    assert train and test and not train & test
    assert all(held_out(*pair) for pair in test) and not any(held_out(*pair) for pair in train)


def test_every_word_of_the_test_split_is_in_training(data):
    train, test = (
        {w for text in split.texts for w in tokens(text)} for split in (data.train, data.test)
    )
    assert test <= train and len(train) > 500


def test_texts_are_distinct_and_as_long_as_promised(data):
    texts = data.train.texts + data.test.texts
    assert len(set(texts)) == len(texts) == 10_000
    assert all(15 <= len(text.split()) <= 60 for text in texts)


def test_labels_are_balanced_and_rows_are_shuffled(data):
    assert data.train.labels.mean() == data.test.labels.mean() == 0.5
    assert 0.45 < np.mean(data.train.labels[1:] == data.train.labels[:-1]) < 0.55


def test_articles_and_capitals_are_right(data):
    for text in data.train.texts:
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiouh]", text), text
        assert all(sentence[0].isupper() for sentence in re.split(r"(?<=\.) ", text)), text
        assert text.endswith(".") and "  " not in text and not re.search(r"[{}\[\]|<>]", text), text


def test_both_opinions_of_a_frame_have_the_same_surroundings():
    for frame in NEAR_FIRST + NEAR_SECOND + FAR_FIRST + FAR_SECOND:
        before = re.findall(r"(\{?\w+\}?) \{[xy]\}", frame)
        after = re.findall(r"\{[xy]\} (\S+?)[,;.]?(?= |$)", frame)
        kind = {"{a}": "aspect", "{b}": "aspect"}
        assert len({kind.get(word, word) for word in before}) == 1 == len(set(after)), frame


def test_the_frames_use_the_names_of_the_grammar_alone():
    text = " ".join(NEAR_FIRST + NEAR_SECOND + FAR_FIRST + FAR_SECOND)
    text += " ".join(entry for entries in GRAMMAR.values() for entry in entries)
    assert set(re.findall(r"\{(\w+)\}", text)) <= {*GRAMMAR, "a", "b", "x", "y"}


def test_the_same_seed_gives_the_same_sample_and_another_seed_another():
    first, again, other = sample(3, 200, 100), sample(3, 200, 100), sample(4, 200, 100)
    assert first.train.texts == again.train.texts and first.test.texts == again.test.texts
    assert (first.train.labels == again.train.labels).all()
    assert not set(first.train.texts) & set(other.train.texts)


def test_a_number_of_texts_that_cannot_be_twins_is_refused():
    with pytest.raises(DataError, match="train must be an even number of texts"):
        sample(train=7)


def test_load_gives_the_sample_whole():
    data = load("sample", seed=5)
    assert data.name == "sample" and "not IMDb" in data.source
    assert (len(data.train), len(data.test)) == (8000, 2000)
