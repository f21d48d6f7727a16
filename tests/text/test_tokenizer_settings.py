"""Claims about text/tokenizer_settings.py and tokenizer_rules.py: the settings beside a vocabulary.

The ids are those of Transformers: see tests/data/tokenizers/settings_cases.py.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.tokenizers.settings_cases import CASES, HERE, TEXTS, added, token, write_case
from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer

STORED = json.loads((HERE / "settings_ids.json").read_text())


def must_agree(tokenizer, stored):
    def rows(texts, pairs=None, **options):
        tokens, is_token, _ = tokenizer(texts, pairs, **options)
        return [row[real].tolist() for row, real in zip(tokens, is_token, strict=True)]

    assert rows(TEXTS) == stored["ids"]
    assert rows(TEXTS, TEXTS[::-1], max_length=12) == stored["pairs"]
    assert rows(TEXTS, max_length=5) == stored["cut"]
    assert [ids.tolist() for ids in tokenizer.encode(TEXTS, 5)] == stored["cut"]
    assert tokenizer.decode(tokenizer.pieces(TEXTS[7:8])[0]) == stored["decoded"]
    assert tokenizer.vocab_size == stored["size"]


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(case, tmp_path):
    must_agree(load_pretrained_tokenizer(write_case(case, tmp_path / "case")), STORED[case])


@pytest.mark.parametrize("case", CASES)
def test_a_saved_tokenizer_has_the_same_settings(case, tmp_path):
    """Also without the type of the model, as in a run folder."""
    folder = write_case(case, tmp_path / "case")
    load_pretrained_tokenizer(folder).save(tmp_path / "saved")
    must_agree(load_pretrained_tokenizer(tmp_path / "saved"), STORED[case])
    shutil.copy(folder / "config.json", tmp_path / "saved")
    must_agree(load_pretrained_tokenizer(tmp_path / "saved"), STORED[case])


def settled(tmp_path: Path, **settings) -> Path:
    """Write a folder of BERT with further settings."""
    folder = write_case("no settings", tmp_path / "case")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_padding_is_on_the_side_of_the_settings(tmp_path):
    tokenizer = load_pretrained_tokenizer(settled(tmp_path, padding_side="left"))
    assert tokenizer(["the", "the fox"]).is_token[:, 0].tolist() == [False, True]
    assert tokenizer(["the", "the fox"], side="right").is_token[:, 0].all()


def test_head_tail_and_locate_know_both_sides(tmp_path):
    tokenizer = load_pretrained_tokenizer(settled(tmp_path, truncation_side="left"))
    text = "the quick brown fox"
    (inner,) = tokenizer.pieces([text])
    (ids,), (cut,) = tokenizer.encode_with_cuts([text], 4)
    assert (ids[1:-1].tolist(), cut) == (inner[-2:].tolist(), len(inner) - 2)
    (head,) = tokenizer.encode([text], 4, "head")
    assert head[1:-1].tolist() == inner[:2].tolist()
    found = tokenizer.locate(text, 4)
    np.testing.assert_array_equal(found.ids, ids)
    assert found.gap == (0, found.spans[1][0]) and len(found.head) == 0


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"do_lower_case": "yes"}, "do_lower_case must be true or false, got 'yes'"),
        ({"strip_accents": 1}, "strip_accents must be true or false, got 1"),
        ({"split_special_tokens": "no"}, "split_special_tokens must be true or false"),
        ({"truncation_side": "both"}, "truncation_side must be 'right' or 'left', got 'both'"),
        ({"padding_side": None}, "padding_side must be 'right' or 'left', got None"),
        ({"model_max_length": "long"}, "model_max_length must be a number, got 'long'"),
        ({"model_max_length": 0}, "model_max_length must be 1 or more, got 0"),
        ({"tokenizer_class": 5}, "tokenizer_class must be a text, got 5"),
        ({"tokenizer_class": "GPT2Tokenizer"}, "GPT2Tokenizer needs a vocabulary of the kind BPE"),
        ({"tokenizer_class": "MPNetTokenizer", "do_lower_case": True}, "MPNetTokenizer is not"),
        ({"tokenizer_class": "MPNetTokenizer"}, "do_lower_case=True of a MPNetTokenizer is not"),
        (
            {"tokenizer_class": "XTokenizer", "strip_accents": True},
            "strip_accents=True of a XTokenizer is not supported: its tokenizer.json says false",
        ),
        (
            {"tokenizer_class": "XTokenizer", "tokenize_chinese_chars": False},
            "tokenize_chinese_chars=False of a XTokenizer is not supported: .* says true",
        ),
        ({"fast_tokenizer_files": ["tokenizer.4.0.json"]}, "fast_tokenizer_files=.*not supported"),
        ({"mask_token": ["[MASK]"]}, "must be a text, or an object with a content"),
        ({"extra_special_tokens": [3]}, "must be a text, or an object with a content"),
        ({"extra_special_tokens": "[A]"}, "extra_special_tokens must be a list or an object"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder that cannot be used"),
        ({"added_tokens_decoder": {"7": "[A]"}}, "used: a token must be an object with a content"),
        ({"added_tokens_decoder": {"7": {}}}, "used: a token must be an object with a content"),
        ({"added_tokens_decoder": {"9999": token("[A]")}}, r"\[A\] cannot have the id 9999"),
        ({"mask_token": added("[A]", lstrip=3)}, "must be a text, or an object with a content"),
    ],
)
def test_a_setting_that_cannot_be_obeyed_is_one_line(settings, says, tmp_path):
    with pytest.raises(TokenizerError, match=says) as error:
        load_pretrained_tokenizer(settled(tmp_path, **settings))
    assert "\n" not in str(error.value) and "case" in str(error.value)


def test_a_class_that_is_not_known_may_say_what_tokenizer_json_says(tmp_path):
    same = {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": True}
    settings = same | {"tokenizer_class": "MPNetTokenizer", "add_prefix_space": True}
    load_pretrained_tokenizer(settled(tmp_path, **settings))
    folder = write_case("gpt2 with a space", tmp_path / "gpt2")
    for space in (False, None, True):
        settings = {"tokenizer_class": "CodeGenTokenizer", "add_prefix_space": space}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        if space:
            with pytest.raises(TokenizerError, match="add_prefix_space=True of a CodeGenTokenizer"):
                load_pretrained_tokenizer(folder)
        else:
            load_pretrained_tokenizer(folder)


def test_a_token_beyond_the_table_is_refused_where_a_text_uses_it(tmp_path):
    folder = write_case("listed token", tmp_path / "case")
    whole = load_pretrained_tokenizer(folder)
    size = whole.vocab_size
    tokenizer = whole.for_table(size - 1)
    assert tokenizer(["the fox"]).tokens.tolist() == whole(["the fox"]).tokens.tolist()
    says = rf"the token '\[NEW\]' of a text has the id {size - 1}, but the model embeds {size - 1}"
    for call in (
        lambda: tokenizer(["the fox", "a [NEW]"]),
        lambda: tokenizer(["the"], ["[NEW]"]),
        lambda: tokenizer.encode(["a [NEW]"], 9),
        lambda: tokenizer.locate("a [NEW]", 9),
        lambda: tokenizer.pieces(["a [NEW]"]),
        lambda: list(tokenizer.by_word(["a [NEW]"])),
        lambda: tokenizer.prompt("a [NEW]"),
    ):
        with pytest.raises(TokenizerError, match=says):
            call()
    assert whole.encode(["a [NEW]"], 9)[0][2] == size - 1
    # A token that is cut off is not read.
    assert len(tokenizer.encode(["the the the [NEW]"], 4)[0]) == 4


def test_special_tokens_beyond_the_table_count_as_missing(tmp_path):
    tokenizer = load_pretrained_tokenizer(write_case("new padding", tmp_path / "case"))
    assert tokenizer.token(tokenizer.pad_id) == "[NEW]"
    limited = tokenizer.for_table(tokenizer.vocab_size - 1)
    assert limited.pad_id == limited.eos_id == tokenizer.eos_id
    assert limited(["the", "the quick fox"]).tokens.max() < tokenizer.vocab_size - 1
