"""Claims about transformer_jax/text/tokenizer.py."""

import hashlib
import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizers
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import r50k_pat_str

from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.text import encoding
from transformer_jax.text import gpt2_vocabulary as published
from transformer_jax.text import tokenizer as ours
from transformer_jax.text.tokenizer import load_tokenizer, train_tokenizer

TEXTS = [
    "The film was great, the actors were great and the story wasn't dull.",
    "A dull film.<br /><br />The story didn't move me: 3/10!",
    "Great story, great film. It wasn't the best, it was the film of the year...",
    "Café scenes in Zürich; the rest is a dull, dull mess.",
    "",
]
HOSTILE = [
    "",
    " ",
    "[PAD][UNK][CLS][SEP][MASK]",
    "<|endoftext|>",
    "a <|endoftext|>[PAD] [SEP]b",
    "don't DON'T don’t 'tis rock'n'roll",
    "  three   spaces\t\ttabs\n\nlines \r\n end ",
    "naïve Ünïcödé Ωμέγα 中文字 にほん العربية ١٢٣ ½²",
    "😀👩‍👩‍👧🇫🇷 e\u0301 \u200b\ufeff\xa0\x85\x96\x00\x7f \U0010ffff",
    "x" * 300 + "!" * 300,
]
SPECS = ["bpe:300", "word:40", "gpt2"]


@pytest.fixture(scope="module")
def gpt2_files(tmp_path_factory) -> Path:
    """A folder in GPT-2's format with a dozen merges in place of its 50,000."""
    folder = tmp_path_factory.mktemp("gpt2")
    shown = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    alphabet = [chr(b) for b in shown] + [chr(256 + n) for n in range(256 - len(shown))]
    merges = ["h e", "Ġ t", "Ġt he", "l l", "o n", "' t", "e n", "d o", "< |", "Ġ Ġ", "Ã ©", "d on"]
    tokens = alphabet + [merge.replace(" ", "") for merge in merges] + ["<|endoftext|>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    (folder / "encoder.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *merges, ""]
    (folder / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(gpt2_files) -> dict[str, ours.Tokenizer]:
    return {spec: train_tokenizer(spec, TEXTS, gpt2_files=gpt2_files) for spec in SPECS}


@pytest.fixture
def without_network(monkeypatch, tmp_path) -> Path:
    """An empty cache for tiktoken, and no way out."""

    def refuse(url):
        raise ConnectionError(f"no route to {url}")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tiktoken.load, "read_file", refuse)
    return tmp_path / "cache"


def words(tokenizer: ours.Tokenizer, text: str) -> list[str]:
    return tokenizer.decode(tokenizer.encode([text], 999)[0]).split(" ")


@pytest.mark.parametrize("spec", SPECS)
def test_a_text_is_framed_by_cls_and_sep_and_never_padded(trained, spec):
    tokenizer = trained[spec]
    encoded = tokenizer.encode(HOSTILE, 50)
    assert [ids.dtype for ids in encoded] == [np.int32] * len(HOSTILE)
    for ids in encoded:
        assert ids[0] == tokenizer.cls_id and ids[-1] == tokenizer.sep_id
        assert 2 <= len(ids) <= 50
        assert tokenizer.pad_id not in ids
        assert ids.min() >= 0 and ids.max() < tokenizer.vocab_size
    assert len(encoded[0]) == 2  # an empty text is no mistake


@pytest.mark.parametrize("spec", SPECS)
def test_special_tokens_in_a_text_are_ordinary_text(trained, spec):
    tokenizer = trained[spec]
    special = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    for text in ("[PAD] [CLS] [SEP] [MASK]", "a[PAD]b", "<|endoftext|>", "[pad][UNK]"):
        inner = tokenizer.encode([text], 99)[0][1:-1]
        assert len(inner) and not special & set(inner.tolist())
        if spec == "gpt2":
            assert tokenizer.decode(inner) == text
            assert tokenizer.vocab_size - 4 not in inner  # <|endoftext|>
        if spec.startswith("bpe"):
            assert tokenizer.unk_id not in inner


def test_ids_of_the_special_tokens(trained):
    for spec in ("bpe:300", "word:40"):
        t = trained[spec]
        assert (t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id) == (0, 1, 2, 3, 4)
    gpt2 = trained["gpt2"]
    assert (gpt2.pad_id, gpt2.cls_id, gpt2.sep_id) == tuple(gpt2.vocab_size - n for n in (3, 2, 1))
    assert gpt2.unk_id is None and gpt2.mask_id is None


def test_gpt2_gives_the_ids_of_tiktoken(trained, gpt2_files, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    ranks = data_gym_to_mergeable_bpe_ranks(
        str(gpt2_files / "vocab.bpe"), str(gpt2_files / "encoder.json")
    )
    reference = tiktoken.Encoding(
        "gpt2",
        pat_str=r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": len(ranks)},
    )
    rng = random.Random(0)
    pool = "".join(HOSTILE) + " \t\n'the then don't"
    texts = HOSTILE + ["".join(rng.choices(pool, k=rng.randint(1, 30))) for _ in range(2000)]
    encoded = trained["gpt2"].encode(texts, 10_000)
    for text, ids in zip(texts, encoded, strict=True):
        assert ids[1:-1].tolist() == reference.encode_ordinary(text), repr(text)


def test_gpt2_files_come_from_the_cache_of_tiktoken(gpt2_files, without_network, monkeypatch):
    without_network.mkdir()
    for name in published.FILES:
        content = (gpt2_files / name).read_bytes()
        key = hashlib.sha1((published.URL + name).encode()).hexdigest()
        (without_network / key).write_bytes(content)
        monkeypatch.setitem(published.FILES, name, hashlib.sha256(content).hexdigest())
    assert train_tokenizer("gpt2", []).spec == "gpt2"


def test_gpt2_without_network_or_cache_names_the_way_out(without_network):
    with pytest.raises(TokenizerError, match="--gpt2-files DIR") as error:
        train_tokenizer("gpt2", [])
    assert "\n" not in str(error.value)


def test_a_network_that_never_answers_is_given_up(without_network, monkeypatch):
    monkeypatch.setattr(tiktoken.load, "read_file", lambda url: time.sleep(20))
    monkeypatch.setattr(published, "FETCH_SECONDS", 0.2)
    since = time.perf_counter()
    with pytest.raises(TokenizerError, match="TimeoutError"):
        train_tokenizer("gpt2", [])
    assert time.perf_counter() - since < 10


def test_gpt2_files_that_are_missing_or_damaged_are_refused_in_one_line(gpt2_files, tmp_path):
    with pytest.raises(TokenizerError, match=r"encoder\.json") as missing:
        train_tokenizer("gpt2", [], gpt2_files=tmp_path)
    (tmp_path / "encoder.json").write_bytes((gpt2_files / "encoder.json").read_bytes())
    (tmp_path / "vocab.bpe").write_text("#version\nq q\n")
    with pytest.raises(TokenizerError, match="damaged") as damaged:
        train_tokenizer("gpt2", [], gpt2_files=tmp_path)
    assert "\n" not in str(missing.value) + str(damaged.value)


@pytest.mark.parametrize("spec", SPECS)
def test_head_keeps_the_start_and_head_tail_both_ends(trained, spec):
    tokenizer = trained[spec]
    text = " ".join(TEXTS)
    inner = tokenizer.encode([text], 9999)[0][1:-1]
    (head,), cut = tokenizer.encode_with_cuts([text], 9, "head")
    assert head[1:-1].tolist() == inner[:7].tolist()
    assert cut.tolist() == [len(inner) - 7]
    (both,), cut = tokenizer.encode_with_cuts([text], 9, "head-tail")
    assert both[1:-1].tolist() == [*inner[:4], *inner[-3:]]
    assert both[-1] == tokenizer.sep_id and (both == tokenizer.sep_id).sum() == 1
    assert cut.tolist() == [len(inner) - 7]


@pytest.mark.parametrize("truncate", ["head", "head-tail"])
def test_nothing_is_cut_where_the_text_just_fits(trained, truncate):
    for tokenizer in trained.values():
        (whole,) = tokenizer.encode(TEXTS[:1], 9999)
        (ids,), cut = tokenizer.encode_with_cuts(TEXTS[:1], len(whole), truncate)
        assert ids.tolist() == whole.tolist() and cut.tolist() == [0]
        (ids,), cut = tokenizer.encode_with_cuts(TEXTS[:1], len(whole) - 1, truncate)
        assert len(ids) == len(whole) - 1 and cut.tolist() == [1]
        (shortest,) = tokenizer.encode(TEXTS[:1], 3, truncate)
        assert shortest.tolist() == [tokenizer.cls_id, whole[1], tokenizer.sep_id]


@pytest.mark.parametrize("spec", SPECS)
def test_encoding_in_chunks_is_encoding_one_by_one(trained, spec, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 3)
    texts = HOSTILE + TEXTS
    together, cuts = trained[spec].encode_with_cuts(texts, 12)
    for i, text in enumerate(texts):
        (alone,), cut = trained[spec].encode_with_cuts([text], 12)
        assert together[i].tolist() == alone.tolist() and cuts[i] == cut[0]


@pytest.mark.parametrize("spec", SPECS)
def test_line_break_markup_is_one_space(trained, spec):
    tokenizer = trained[spec]
    (expected,) = tokenizer.encode(["the film the story"], 99)
    for tags in ("<br />", "<br>", "<br/><BR />", "<br /> <br />\n"):
        (ids,) = tokenizer.encode([f"the film{tags}the story"], 99)
        assert ids.tolist() == expected.tolist(), tags


def test_words_keep_their_negation_and_marks_stand_alone(trained):
    assert words(trained["word:40"], "It WASN’T great...the film!") == [
        "it", "wasn't", "great", ".", ".", ".", "the", "film", "!",
    ]  # fmt: skip


def test_an_unknown_word_is_one_unknown_token(trained):
    assert words(trained["word:40"], "the zyzzyva film") == ["the", "[UNK]", "film"]


def test_word_vocabulary_is_the_most_frequent_then_the_first_in_the_alphabet():
    tokenizer = train_tokenizer("word:8", ["d c b a", "d c", "zz d a2 B"])
    assert [tokenizer.decode([i]) for i in range(5, 8)] == ["d", "b", "c"]
    assert tokenizer.vocab_size == 8


@pytest.mark.parametrize("spec", ["bpe:320", "word:30"])
def test_training_twice_in_any_order_gives_the_same_file(spec, tmp_path):
    for name, texts in (("a", TEXTS), ("b", TEXTS), ("c", reversed(TEXTS))):
        train_tokenizer(spec, texts).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes()


def test_small_texts_give_a_smaller_bpe_vocabulary():
    once = train_tokenizer("bpe:1000", ["film"])
    assert (once.spec, once.vocab_size) == ("bpe:261", 261)  # no pair occurs twice
    twice = train_tokenizer("bpe:1000", ["film", "film"])
    assert len(twice.encode(["film"], 9)[0]) == 3


def test_bpe_spells_any_text_and_gives_it_back():
    tokenizer = train_tokenizer("bpe:400", TEXTS, lowercase=False)
    for text in HOSTILE:
        (ids,) = tokenizer.encode([text], 9999)
        assert tokenizer.decode(ids) == text.replace("’", "'")
        assert tokenizer.unk_id not in ids


@pytest.mark.parametrize("kind", ["bpe:300", "word:40"])
def test_case_is_lost_unless_it_is_asked_for(kind):
    folded, cased = (train_tokenizer(kind, TEXTS, lowercase=on) for on in (True, False))
    assert folded.lowercase and not cased.lowercase
    for tokenizer, same in ((folded, True), (cased, False)):
        upper, lower = tokenizer.encode(["The film", "the film"], 99)
        assert (upper.tolist() == lower.tolist()) is same


@pytest.mark.parametrize("spec", SPECS)
def test_a_saved_tokenizer_is_the_same_without_network(trained, spec, tmp_path, without_network):
    tokenizer = trained[spec]
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    for name in (
        "spec",
        "vocab_size",
        "pad_id",
        "cls_id",
        "sep_id",
        "unk_id",
        "mask_id",
        "lowercase",
    ):
        assert getattr(loaded, name) == getattr(tokenizer, name), name
    for a, b in zip(
        loaded.encode(HOSTILE, 60, "head-tail"),
        tokenizer.encode(HOSTILE, 60, "head-tail"),
        strict=True,
    ):
        assert a.tolist() == b.tolist()
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["tokenizer.json"]


@pytest.mark.parametrize("spec", SPECS)
def test_the_file_is_that_of_the_tokenizers_library(trained, spec, tmp_path):
    trained[spec].save(tmp_path / "tokenizer.json")
    native = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert native.encode(text).ids == trained[spec].encode([text], 9999)[0].tolist()


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"[1]", b"\xff\xfe", b'{"model": 1}'])
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json") as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", SPECS)
def test_a_truncated_file_is_refused(trained, spec, tmp_path):
    path = tmp_path / "tokenizer.json"
    trained[spec].save(path)
    content = path.read_bytes()
    for part in (1, 2, 3):
        path.write_bytes(content[: len(content) * part // 4])
        with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
            load_tokenizer(path)
    with pytest.raises(TokenizerError, match="absent"):
        load_tokenizer(tmp_path / "absent")
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path)


def test_a_tokenizer_of_another_kind_is_refused(trained, tmp_path):
    path = tmp_path / "tokenizer.json"
    other = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    path.write_text(other.to_str())
    with pytest.raises(TokenizerError, match="WordPiece"):
        load_tokenizer(path)
    trained["word:40"].save(path)
    data = json.loads(path.read_text())
    data["model"]["vocab"]["film"] = 999  # beyond any embedding
    path.write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match="ids"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "spec", ["", "bpe:", "bpe:x", "bpe:-1", "bpe:260", "word:5", "gpt2:3", "words", "bpe:٣٠٠٠"]
)
def test_a_wrong_spec_names_what_it_should_be(spec):
    with pytest.raises(TokenizerError, match=r"word:N|needs N >="):
        train_tokenizer(spec, TEXTS)


def test_words_cannot_be_learned_from_empty_texts():
    with pytest.raises(TokenizerError, match="empty"):
        train_tokenizer("word:100", ["", " <br />"])


@pytest.mark.usefixtures("as_users_run_it")
def test_wrong_arguments_are_said(trained):
    tokenizer = trained["word:40"]
    with pytest.raises(ValueError, match="max_length"):
        tokenizer.encode(TEXTS, 2)
    with pytest.raises(ValueError, match="truncate"):
        tokenizer.encode(TEXTS, 9, "middle")
    with pytest.raises(TypeError, match="one string"):
        tokenizer.encode("one text", 9)
    with pytest.raises(TypeError, match="a text must be a string, got NoneType: None"):
        tokenizer.encode([None], 9)


def test_half_a_character_is_no_crash(trained):
    for tokenizer in trained.values():
        broken, whole = tokenizer.encode(["film \ud83d film", "film \ufffd film"], 99)
        assert broken.tolist() == whole.tolist()
