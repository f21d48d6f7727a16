"""Language-model batches and losses: every token a target once, and no leak between texts of one
row.
"""

import itertools

import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

from tests.helpers.compiled import compiled
from train.data.dataset import DataError
from train.data.hub import Unreachable
from train.data.text_files import load_texts
from train.data.token_file import write_tokens
from train.objectives.language_modeling import (
    epoch_batches,
    every_window,
    make_evaluation,
    make_windows,
    token_losses,
)
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.nn.config import StackConfig
from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.text.tokenizer import train_tokenizer

V, CLS, SEP = 13, 2, 3
STACK = StackConfig(2, 12, 6, 17, num_kv_heads=2, norm="pre", final_norm=True, activation="gelu")


def model_of(positions):
    config = LanguageModelConfig(V, 16, decoder=STACK, positions=positions)
    return LanguageModel(config, rngs=nnx.Rngs(0))


def test_targets_are_the_tokens_behind():
    batch = make_windows(np.arange(10), [0, 7], 4, None)
    assert batch.tokens.tolist() == [[0, 1, 2, 3], [7, 8, 9, 0]]
    assert batch.targets[0].tolist() == [1, 2, 3, 4]
    assert batch.targets[1, :2].tolist() == [8, 9]
    assert batch.is_target.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.segment_ids is None


@pytest.mark.parametrize("n", [9, 16, 17, 40])
def test_every_window_has_every_token_as_a_target_once(n):
    row, found = np.arange(100, 100 + n), []
    for batch in every_window(row, 4, 3, None):
        assert batch.tokens.shape[1] == 4
        found += batch.targets[batch.is_target].tolist()
    assert sorted(found) == row[1:].tolist()


def test_an_epoch_has_every_window_once_in_an_order_of_its_own():
    row = np.arange(200)
    epochs = [epoch_batches(row, 8, 4, None, seed=0, epoch=e) for e in (0, 0, 1)]
    first, again, other = ([b.tokens.tolist() for b in epoch] for epoch in epochs)
    assert first == again != other
    for epoch in (first, other):
        tokens = np.array(epoch).reshape(-1)
        assert len(set(tokens.tolist())) == len(tokens) >= 200 - 8 * 5
    assert [b.tokens.tolist() for b in epochs[0][2:]] == first[2:]


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "sinusoidal"])
def test_packed_texts_do_not_know_of_each_other(positions):
    """Another first text, of other tokens and length, moves no loss of the second; and the second
    is as if alone.
    """
    model = model_of(positions)
    rng = np.random.default_rng(0)
    second = [CLS, *rng.integers(5, V, 5), SEP]
    loss = nnx.jit(token_losses)
    found = []
    for first in ([CLS, 5, 6, 7, 8, SEP], [CLS, 9, 9, 12, 10, SEP]):
        row = np.array([*first, *second, CLS, 5, SEP])
        batch = make_windows(row, [0], 15, CLS)
        losses = np.asarray(loss(model, batch))[0]
        assert losses[5] == 0 and not batch.is_target[0, 5]  # the [CLS] behind the first text
        found.append(losses[6:12])
    np.testing.assert_array_equal(*found)
    alone = make_windows(np.array(second), [0], 15, CLS)
    np.testing.assert_allclose(np.asarray(loss(model, alone))[0, :6], found[0], rtol=1e-5)


def test_an_edit_in_a_text_moves_its_own_losses():
    """So that the test above can fail."""
    model = model_of("learned")
    rows = [np.array([CLS, x, 6, 7, 8, SEP, CLS, 9, 9, SEP]) for x in (5, 10)]
    loss = nnx.jit(token_losses)
    one, other = (np.asarray(loss(model, make_windows(row, [0], 9, CLS)))[0] for row in rows)
    assert (one[1:5] != other[1:5]).all()
    np.testing.assert_array_equal(one[6:], other[6:])


def test_the_evaluation_is_the_sum_over_all_tokens():
    model = model_of("learned")
    row = np.random.default_rng(1).integers(0, V, 41)
    graph, params = nnx.split(model, nnx.Param)
    nats, targets = make_evaluation(graph, every_window(row, 16, 2, None))(params)
    expected, logits_of = 0.0, compiled(model)
    for start in (0, 16, 32):
        part = row[start : start + 17]
        logp = log_softmax(np.asarray(logits_of(part[None, :-1]))[0], axis=-1)
        expected -= logp[np.arange(len(part) - 1), part[1:]].sum()
    assert targets == 40
    assert nats == pytest.approx(expected, rel=1e-5)


TEXT = "Zwölf Boxkämpfer\n jagen  Viktor\u0085 über den Sylter Deich. <br /> ’ENDE’\n" * 40


@pytest.mark.parametrize("spec", ["char", "bpe:300"])
def test_a_file_comes_back_as_it_was(tmp_path, monkeypatch, spec):
    """Read in pieces, cut into tokens, written, mapped, decoded: to the last byte."""
    monkeypatch.setattr("train.data.text_files.PIECE", 100)
    path = tmp_path / "book.txt"
    path.write_bytes(TEXT.encode())
    texts = load_texts(str(path), seed=0)
    tokenizer = train_tokenizer(spec, [TEXT], lossless=True)
    both = ""
    for name, read in (("a", texts.train), ("b", texts.held_out)):
        part = write_tokens(tmp_path / name, read(), tokenizer, framed=False)
        assert part.tokens.dtype == np.uint16 and isinstance(part.tokens, np.memmap)
        both += (text := tokenizer.decode(part.tokens.tolist()))
        assert part.bytes == len(text.encode())
    assert both == TEXT
    assert part.bytes == pytest.approx(0.1 * len(TEXT.encode()), abs=4)


def test_texts_of_a_folder_are_framed_and_held_out_whole(tmp_path):
    for i in range(20):
        (tmp_path / f"{i:02}.txt").write_text(f"text number {i:02} of twenty")
    texts = load_texts(str(tmp_path), seed=1)
    tokenizer = train_tokenizer("char", ["text number of twenty 0123456789"], lossless=True)
    found = []
    for name, read in (("a", texts.train), ("b", texts.held_out)):
        part = write_tokens(tmp_path / name, read(), tokenizer, framed=True)
        ends = np.flatnonzero(part.tokens == tokenizer.sep_id)
        rows = np.split(part.tokens, ends[:-1] + 1)
        assert all(row[0] == tokenizer.cls_id for row in rows)
        found.append({tokenizer.decode(row.tolist()) for row in rows})
        assert part.texts == len(rows)
    assert len(found[0]) == 18 and len(found[1]) == 2 and not found[0] & found[1]
    assert texts.separate


def test_digits_are_tokens_of_their_own():
    """Or a year that no text had would be spelled unlike all others."""
    tokenizer = train_tokenizer("bpe:300", ["in 1984 and 1984, 19841984 times"] * 9, lossless=True)
    (ids,) = tokenizer.pieces(["1984 4891"])
    assert [tokenizer.token(i).strip() for i in ids.tolist() if tokenizer.token(i).strip()] == list(
        "19844891"
    )
    assert tokenizer.decode(ids) == "1984 4891"


def test_what_is_no_text_is_said(tmp_path):
    (tmp_path / "latin").write_bytes("für".encode("latin-1") * 20)
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    tokenizer = train_tokenizer("char", ["a"], lossless=True)
    with pytest.raises(DataError, match="no file or folder"):
        load_texts(str(tmp_path / "none"), 0)
    with pytest.raises(DataError, match="has 0 bytes: too few"):
        load_texts(str(tmp_path / "empty"), 0)
    with pytest.raises(DataError, match=r"holds 0 \.txt files; at least two are needed"):
        load_texts(str(tmp_path / "folder"), 0)
    with pytest.raises(DataError, match="latin, line 1: byte 0xfc is not UTF-8; convert the file"):
        write_tokens(
            tmp_path / "out",
            load_texts(str(tmp_path / "latin"), 0).train(),
            tokenizer,
            framed=False,
        )
    with pytest.raises(TokenizerError, match="drops the spaces between words"):
        train_tokenizer("word:100", ["a b"], lossless=True)


@pytest.mark.parametrize("number", [30, 300_000])
def test_a_byte_order_mark_of_a_file_is_no_text_and_pieces_lose_nothing(number, tmp_path):
    text = "".join(f"\ufeffline {i}\n" for i in range(number))
    (tmp_path / "book.txt").write_text(f"\ufeff{text}", encoding="utf-8")
    found = load_texts(str(tmp_path / "book.txt"), 0)
    parts = ["".join(itertools.chain(*part())) for part in (found.train, found.held_out)]
    assert "".join(parts) == text and len(parts[0]) > 8 * len(parts[1])


def test_every_text_of_a_folder_loses_its_byte_order_mark(tmp_path):
    for i, name in enumerate(["a.txt", "b.TXT", "c/d.txt"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"\ufefftext {i}", encoding="utf-8")
    (tmp_path / "e.txt").mkdir()
    found = load_texts(str(tmp_path), 0)
    texts = ["".join(text) for part in (found.train, found.held_out) for text in part()]
    assert sorted(texts) == ["text 0", "text 1", "text 2"]


def test_what_is_not_utf8_is_said_with_its_line(tmp_path):
    tokenizer = train_tokenizer("char", ["a"], lossless=True)

    def read(content):
        (tmp_path / "f").write_bytes(content)
        found = load_texts(str(tmp_path / "f"), 0)
        for part in (found.train, found.held_out):
            write_tokens(tmp_path / "out", part(), tokenizer, framed=False)

    with pytest.raises(DataError, match="f is UTF-16; convert it to UTF-8"):
        read(("a line\n" * 99).encode("utf-16"))
    with pytest.raises(DataError, match="f, line 98: byte 0xe4 is not UTF-8"):
        read(b"a line\n" * 97 + b"\xe4\n" + b"a line\n")
    with pytest.raises(DataError, match="f, line 3: a NUL byte"):
        read(b"a line\na line\na \0 line\n" + b"a line\n" * 97)


def test_a_row_of_the_hub_without_a_text_is_said(monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a", None, "b", "c"]})
    parts = datasets.DatasetDict({"train": rows})
    monkeypatch.setattr("train.data.hub.load_parts", lambda name: (parts, "the cache"))
    found = load_texts("hub:a/b", 0)
    with pytest.raises(DataError, match="hub:a/b, row 1: 'text' must be a string, got NoneType"):
        [list(text) for part in (found.train, found.held_out) for text in part()]


def test_texts_of_the_hub_are_rows(monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": [f"text {i}" for i in range(30)]})
    parts = datasets.DatasetDict({"train": rows})
    monkeypatch.setattr("train.data.hub.load_parts", lambda name: (parts, "the cache"))
    texts = load_texts("hub:some/texts", seed=0)
    both = [["".join(text) for text in read()] for read in (texts.train, texts.held_out)]
    assert sorted(both[0] + both[1]) == sorted(rows["text"])
    assert len(both[1]) == 3 and texts.separate


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    def unreachable(name):
        raise Unreachable("no answer")

    monkeypatch.setattr("train.data.hub.load_parts", unreachable)
    with pytest.raises(DataError, match=r"hub:a/b is not cached .*no answer.*; pass a UTF-8 text"):
        load_texts("hub:a/b", seed=0)
