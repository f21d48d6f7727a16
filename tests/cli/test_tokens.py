"""`python -m transformer_jax tokens`: three ways to cut one text."""

from collections import Counter

import pytest

from transformer_jax.__main__ import main
from transformer_jax.cli import tokens
from transformer_jax.text.bpe import train_bpe

EXAMPLE = "The unbelievable tokenisation"
COUNTS = Counter(tokens.words(tokens.TEXT))


def strategies(merges=100):
    return tokens.strategies(COUNTS, train_bpe(COUNTS, merges))


def shown(text):
    return list(tokens.report(text, "the text", COUNTS, train_bpe(COUNTS, 100)))


def test_the_three_ways_to_cut_the_example():
    word, character, subword = (way.cut(EXAMPLE) for way in strategies())
    assert word == ["the", "[UNK]", "[UNK]"]
    assert "".join(character) == "the_unbelievable_tokenisation"
    assert subword == ["the</w>", "un", "believ", "able</w>", "token", "isation</w>"]


def test_the_words_of_the_example_are_unknown_to_the_built_in_text():
    assert not COUNTS.keys() & {"unbelievable", "tokenisation"}


def test_the_vocabularies_are_those_of_the_corpus():
    """Each has one token for the unknown; subwords also have the end of a word."""
    word, character, subword = strategies()
    assert word.size == len(set(tokens.words(tokens.TEXT))) + 1
    letters = set(tokens.TEXT.lower().replace("\n", " "))
    assert character.size == len(letters) + 1
    assert subword.size == len(letters - {" "}) + 1 + 100 + 1


def test_subwords_stand_between_words_and_characters():
    for merges in (25, 50, 100):
        word, character, subword = strategies(merges)
        lengths = [len(way.cut(tokens.TEXT)) for way in (word, subword, character)]
        assert lengths == sorted(set(lengths))
    assert character.size < subword.size


def test_more_merges_make_shorter_sequences():
    lengths = [len(strategies(merges)[2].cut(EXAMPLE)) for merges in (0, 50, 100)]
    assert lengths == sorted(set(lengths), reverse=True)
    # Without merges: the characters and, in place of two spaces, three word ends.
    assert lengths[0] == len(EXAMPLE) - 2 + 3


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        (EXAMPLE, "unbelievable"),
        ("reads 1984", "1984"),
        ("The words", "wordsology"),
    ],
)
def test_an_unknown_word_is_found_or_made(text, unknown):
    assert tokens.unknown_word(text, COUNTS) == unknown
    assert unknown not in COUNTS


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("a believable token", ("believable", "believvable")),
        (EXAMPLE, ("organisation", "organissation")),
    ],
)
def test_a_misspelling_is_a_known_word_that_is_no_longer_known(text, pair):
    assert tokens.misspelling(text, COUNTS) == pair
    assert pair[0] in COUNTS and pair[1] not in COUNTS


def test_a_corpus_of_one_letter_has_a_misspelling_too():
    assert tokens.misspelling("a b", {"a": 1}) == ("a", "aa")


def test_a_misspelling_is_unknown_to_words_and_in_parts_known_to_subwords():
    word, _, subword = strategies()
    assert word.cut("organissation") == ["[UNK]"]
    parts = subword.cut("organissation")
    assert "[UNK]" not in parts and 1 < len(parts) < len("organissation")


def test_letters_that_the_corpus_lacks_are_unknown_to_all():
    for way in strategies():
        assert "[UNK]" in way.cut("naïve")


@pytest.mark.parametrize("text", [EXAMPLE, "x", "the writer's naïve text " * 40])
def test_no_line_is_wider_than_a_hundred_columns(text):
    assert max(map(len, shown(text))) <= 100


def test_the_page_shows_sizes_and_lengths():
    lines = shown(EXAMPLE)
    rows = {line.split()[0]: line.split()[1:3] for line in lines[3:6]}
    for way in strategies():
        assert rows[way.name] == [str(way.size), str(len(way.cut(EXAMPLE)))]


def test_the_command_learns_from_a_file(tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("low low low\nlower lower newest\n", encoding="utf-8")
    assert main(["tokens", "Lowest", "--corpus", str(corpus), "--merges", "2"]) == 0
    printed = capsys.readouterr().out
    assert "6 words, 3 of them different; 2 merges" in printed
    assert "low e s t </w>" in printed


def test_only_merges_that_were_learnt_are_counted(tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("ab\n", encoding="utf-8")
    assert main(["tokens", "ab", "--corpus", str(corpus), "--merges", "9"]) == 0
    assert "2 merges" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--merges", "-1"], "--merges must be 0 or more, got -1"),
        (["  "], "no words in the text"),
        (["a", "--corpus", "missing.txt"], "missing.txt cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(["tokens", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_an_empty_corpus_is_refused(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    assert main(["tokens", "a", "--corpus", str(tmp_path / "empty.txt")]) == 2
    assert "holds no words to learn from" in capsys.readouterr().err
