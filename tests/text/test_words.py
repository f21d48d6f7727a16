"""The pieces of a text are the text, hold each token once, and are the words a reader sees."""

import numpy as np
import pytest

from tests.data.tokenizers.corpus import TEXTS as ODD
from transformer_jax.text.encoding import valid
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.words import pieces_of

TEXTS = [
    "The film was great, the actors were great and the story wasn't dull.",
    "A dull film.<br /><br />The story didn't move me: 3/10!",
    "Café scenes in Zürich; the rest is a dull, dull mess.",
]
KINDS = ["word:40", "bpe:300", "char", "wordpiece", "gpt2", "roberta", "unigram", "llama"]


@pytest.fixture(scope="module")
def tokenizers(request):
    own = {spec: train_tokenizer(spec, TEXTS) for spec in KINDS[:3]}
    folder = request.config.rootpath / "tests" / "data" / "tokenizers"
    return own | {kind: load_pretrained_tokenizer(folder / kind) for kind in KINDS[3:]}


def located_of(tokenizer, text, max_length=10_000, truncate="head-tail"):
    located = tokenizer.locate(text, max_length, truncate)
    (ids,), (cut,) = tokenizer.encode_with_cuts([text], max_length, truncate)
    np.testing.assert_array_equal(located.ids, ids)
    assert located.cut == cut and (located.gap is None) == (cut == 0)
    return located


def pieces(tokenizer, text, *rest, powers=False):
    """The pieces, with values by which every token can be told: the number of the token, or a power
    of 2.
    """
    located = located_of(tokenizer, text, *rest)
    values = np.arange(len(located.ids), dtype=np.float64)
    return pieces_of(located, 2**values if powers else values, tokenizer.unk_id), located


def valued(found):
    return {piece.text: piece.value for piece in found if piece.value is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_the_text_and_hold_every_token_once(kind, tokenizers):
    tokenizer = tokenizers[kind]
    for text in (*TEXTS, *ODD, "film \ud83d \udcff", " \n\u2003", "a\0b"):
        for max_length in (10_000, 12, 5):
            (found, rest), located = pieces(tokenizer, text, max_length)
            sums = [piece.value for piece in found if piece.value is not None]
            rest_sum = sum(float(t) for t in rest)
            assert sum(sums) + rest_sum == sum(range(len(located.ids))), repr(text)
            framed = {t for t, span in enumerate(located.spans) if span is None}
            assert framed <= set(rest)
            assert len(rest) == len(framed) or not located.text.strip() or max_length < 10_000
            if not located.cut:
                assert "".join(piece.text for piece in found) == valid(text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_word_are_one_piece_and_neighbours_are_not(kind, tokenizers):
    """Every token, told by its power of 2, lies in the piece whose characters it stands for."""
    text = "The story didn't  move me:<br /><br />Great, great film!"
    (found, _), located = pieces(tokenizers[kind], text, powers=True)
    names = [piece.text for piece in found if piece.value is not None]
    words = ["The", "story", "didn't", "move", "me", ":", "Great", ",", "great", "film", "!"]
    assert [name for name in names if "<" not in name] == words
    place = 0
    for piece in found:
        end = place + len(piece.text)
        inside = [
            t
            for t, span in enumerate(located.spans)
            if span is not None and text[span[0] : span[1]].strip() and place <= span[1] - 1 < end
        ]
        bits = int(piece.value or 0)
        assert all(bits >> t & 1 for t in inside), piece
        place = end


def test_a_space_counts_for_the_word_behind_it_and_the_last_for_the_one_before(tokenizers):
    (found, rest), _ = pieces(tokenizers["char"], "ab  cd \n")
    # [CLS] a b _ _ c d _ \n [SEP]
    assert valued(found) == {"ab": 1 + 2, "cd": 3 + 4 + 5 + 6 + 7 + 8}
    assert rest == [0, 9]
    assert [piece.text for piece in found] == ["ab", "  ", "cd", " \n"]
    (found, rest), _ = pieces(tokenizers["char"], " \n")
    assert valued(found) == {} and rest == [0, 1, 2, 3]


def test_case_stays_and_unknown_words_are_marked(tokenizers):
    (found, _), _ = pieces(tokenizers["word:40"], "A GREAT zebra, not DULL")
    assert {p.text: p.is_unknown for p in found if p.value is not None} == {
        "A": False,
        "GREAT": False,
        "zebra": True,
        ",": False,
        "not": True,
        "DULL": False,
    }
    (found, _), _ = pieces(tokenizers["bpe:300"], "zebra ☃")  # all bytes are known
    assert not any(piece.is_unknown for piece in found)


def test_a_line_break_in_markup_is_a_piece_of_its_own(tokenizers):
    text = "A dull film.<br /><br />zebra"
    for kind in ("bpe:300", "wordpiece"):
        (found, _), _ = pieces(tokenizers[kind], text)
        names = [piece.text for piece in found if piece.value is not None]
        assert names[2:] == ["film", ".", "<br /><br />", "zebra"]
    (found, _), _ = pieces(tokenizers["bpe:300"], TEXTS[1])  # one token of it is " the"
    assert "The" in valued(found) and "<br /><br />" not in valued(found)
    (found, _), _ = pieces(tokenizers["word:40"], TEXTS[1])  # it forgets them
    assert "<br /><br />" not in valued(found)
    assert TEXTS[1] == "".join(piece.text for piece in found)


def test_what_was_cut_out_is_said_where_it_stood(tokenizers):
    text = "The film was GREAT, the actors were great"  # 9 words
    (found, rest), _ = pieces(tokenizers["word:40"], text, 6, "head-tail")
    shown = "".join(piece.text for piece in found)
    assert shown == "The film [... 5 tokens not read ...] were great"
    assert valued(found) == {"The": 1, "film": 2, "were": 3, "great": 4} and rest == [0, 5]
    (found, rest), _ = pieces(tokenizers["word:40"], text, 6, "head")
    shown = "".join(piece.text for piece in found)
    assert shown == "The film was GREAT [... 5 tokens not read ...] "
    assert valued(found) == {"The": 1, "film": 2, "was": 3, "GREAT": 4} and rest == [0, 5]


def test_a_word_that_is_cut_in_two_has_a_piece_on_either_side(tokenizers):
    (found, rest), _ = pieces(tokenizers["char"], "wasn't dull", 6, "head-tail")
    assert "".join(piece.text for piece in found) == "wa [... 7 tokens not read ...] ll"
    assert valued(found) == {"wa": 3, "ll": 7} and rest == [0, 5]
