"""Pairs of texts: their sources, the built-in sample, and their batches."""

import datetime
import gzip
import re

import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

from tests.helpers.compiled import compiled
from train.data.dataset import DataError
from train.data.hub import Unreachable
from train.data.pairs import load_pairs
from train.data.sample_pairs import ordinal, sample_pairs, spelled, spelled_year
from train.objectives.seq2seq import make_evaluation, pair_batches, pair_lengths, target_lengths
from transformer_jax.models.config import SequenceToSequenceConfig
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.nn.config import StackConfig
from transformer_jax.text.batching import epoch_plans, evaluation_plans


def write(folder, name, lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


@pytest.fixture
def folder(tmp_path):
    """Multi30k's layout, one file plain, the others packed; a training pair is a test pair too."""
    parts = {"train": 6, "val": 2, "test_2016": 3}
    for part, number in parts.items():
        for language in ("en", "de"):
            write(
                tmp_path, f"{part}.{language}.gz", [f"{part} {language} {i}" for i in range(number)]
            )
    (tmp_path / "train.en.gz").unlink()
    write(tmp_path, "train.en", [*(f"train en {i}" for i in range(5)), "test_2016 en 1"])
    write(tmp_path, "train.de.gz", [*(f"train\u0085 de {i}" for i in range(5)), "test_2016 de 1"])
    return tmp_path


def test_a_folder_is_read_line_by_line(folder):
    pairs = load_pairs(str(folder), "en", "de", 0)
    assert pairs.train[0] == [f"train en {i}" for i in range(5)]
    assert pairs.train[1] == [f"train\u0085 de {i}" for i in range(5)]
    assert pairs.validation == (["val en 0", "val en 1"], ["val de 0", "val de 1"])
    assert len(pairs.test[0]) == len(pairs.test[1]) == 3
    assert pairs.notes == ("dropped 1 training pair, also held out",)


def test_a_table_is_split_without_repeats(tmp_path):
    write(tmp_path, "pairs.tsv", [f"a{i % 100}\tb{i % 100}" for i in range(120)])
    pairs = load_pairs(str(tmp_path / "pairs.tsv"), "en", "de", 0)
    parts = [set(zip(*part, strict=True)) for part in (pairs.train, pairs.validation, pairs.test)]
    assert [len(part) for part in parts] == [90, 5, 5]
    assert len(set.union(*parts)) == 100
    assert all(one[1:] == other[1:] for part in parts for one, other in part)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: write(f, "val.de.gz", ["one"]), r"val\.en has 2 lines, val\.de 1"),
        (lambda f: (f / "val.de.gz").unlink(), r"has no val\.de or val\.de\.gz"),
        (lambda f: (f / "test_2016.en.gz").unlink(), r"has no test\*\.en"),
        (lambda f: (f / "val.de.gz").write_bytes(b"not packed"), "cannot be read"),
        (lambda f: (f / "train.en").write_bytes(b"\xff\xfe"), r"train\.en is UTF-16; convert it"),
        (lambda f: (f / "train.en").write_bytes(b"a\n\xff"), r"train\.en, line 2: byte 0xff"),
    ],
)
def test_what_does_not_fit_together_is_said(folder, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message):
        load_pairs(str(folder), "en", "de", 0)


QUOTED = b'"a\tb"\t1\n"two\nlines"\t2\n"a ""word"""\t3\n' + b"\n".join(
    b"t%d\tz" % i for i in range(9)
)


@pytest.mark.parametrize(
    ("content", "texts", "note"),
    [
        (QUOTED, {"a\tb", "two\nlines", 'a "word"'}, "2 of 12 rows have line breaks or tabs"),
        (b"a\tb\n" * 3 + b"c\td\ne\tf\n", {"a", "c", "e"}, "dropped 2 pairs repeating"),
        (b'"a\tb\nc\td"\ne\tf\n', {'"a', "c", "e"}, "one row per line: 3 rows"),
        (b'"a" b\tb\nc\td\ne\tf\n', {'"a" b', "c", "e"}, "one row per line: 3 rows"),
        (b"a\tb\tCC-BY\nc\td\ne\tf\n", {"a", "c", "e"}, "in 1 row of more than two columns"),
        (b"a\tb\n\nc\td\ne\tf\n\n", {"a", "c", "e"}, "skipped 2 blank lines"),
        (b"\xef\xbb\xbfa\tb\r\nc\td\r\ne\tf", {"a", "c", "e"}, None),
        (gzip.compress(b"a\tb\nc\td\ne\tf"), {"a", "c", "e"}, None),
    ],
    ids=["quoted", "repeats", "stray", "literal", "columns", "blank lines", "mark", "gzip"],
)
def test_a_table_says_what_is_dropped_or_read_in_one_of_two_ways(content, texts, note, tmp_path):
    path = tmp_path / ("pairs.tsv.gz" if content.startswith(b"\x1f") else "pairs.tsv")
    path.write_bytes(content)
    pairs = load_pairs(str(path), "en", "de", 0)
    assert texts <= {*pairs.train[0], *pairs.validation[0], *pairs.test[0]}
    assert len(pairs.notes) == (note is not None) and (note or "") in "".join(pairs.notes)


def test_a_byte_order_mark_of_a_folder_s_files_is_no_text(folder):
    for name in ("train.en", "val.de.gz"):
        content = (folder / name).read_bytes()
        content = gzip.decompress(content) if name.endswith(".gz") else content
        content = b"\xef\xbb\xbf" + content
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    pairs = load_pairs(str(folder), "en", "de", 0)
    assert pairs.train[0][0] == "train en 0" and pairs.validation[1][0] == "val de 0"


def test_a_pair_of_the_hub_without_a_text_is_said(monkeypatch):
    rows = [{"en": "a", "de": "b"}, {"en": None, "de": "c"}]
    parts = {"train": rows, "validation": rows[:1], "test": rows[:1]}
    monkeypatch.setattr("train.data.hub.load_parts", lambda name: (parts, "the cache"))
    with pytest.raises(DataError, match="hub:a/b, row 1: 'en' must be a string, got NoneType"):
        load_pairs("hub:a/b", "en", "de", 0)


def test_a_table_without_tabs_is_said(tmp_path):
    write(tmp_path, "pairs.tsv", ["a\tb", "c"])
    with pytest.raises(DataError, match="line 2: no tab"):
        load_pairs(str(tmp_path / "pairs.tsv"), "en", "de", 0)
    with pytest.raises(DataError, match="no file or folder"):
        load_pairs(str(tmp_path / "none.tsv"), "en", "de", 0)


def test_numbers_and_dates_are_what_they_say():
    """Read back by other code: words by their values, dates by `datetime`."""
    ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    ones += " fifteen sixteen seventeen eighteen nineteen"
    tens = "twenty thirty forty fifty sixty seventy eighty ninety"
    values = {word: n for n, word in enumerate(ones.split())}
    values |= {word: 10 * n for n, word in enumerate(tens.split(), 2)}

    def read(text):
        total = part = 0
        for word in re.findall(r"[a-z]+", text.replace(" and ", " ")):
            if word == "hundred":
                part *= 100
            elif word == "thousand":
                total, part = 1000 * part, 0
            else:
                part += values[word]
        return total + part

    for n in [*range(1200), *range(1000, 999_999, 997), 402_017, 999_999]:
        assert read(spelled(n)) == n
    assert ordinal(20) == "twentieth" and ordinal(12) == "twelfth" and ordinal(4) == "fourth"
    assert spelled_year(1984) == "nineteen eighty-four"
    parts = sample_pairs(0)
    for part in parts:
        for words, digits in zip(*part, strict=True):
            if "-" in digits:
                date = datetime.date.fromisoformat(digits)
                assert date.strftime("%B") in words
            else:
                assert spelled(int(digits)) == words
    every = [target for part in parts for target in part[1]]
    assert len(set(every)) == len(every) == 11_500
    assert sample_pairs(0) == parts != sample_pairs(1)


def test_a_batch_feeds_the_target_and_wants_the_token_behind():
    sources = [np.array([2, 5, 3]), np.array([2, 6, 7, 3])]
    targets = [np.array([2, 8, 9, 10, 3]), np.array([2, 11, 3])]
    lengths = pair_lengths(sources, targets)
    assert lengths == [4, 4]
    plans = epoch_plans(lengths, [4], 8, seed=0, epoch=0)
    (batch,) = pair_batches(plans, sources, targets, {4: 4}, 0)
    assert batch.is_source.sum(axis=1).tolist() == batch.source.astype(bool).sum(axis=1).tolist()
    assert batch.is_target.sum(axis=1).tolist() == batch.wanted.astype(bool).sum(axis=1).tolist()
    ids = zip(batch.source, batch.target, batch.wanted, strict=True)
    rows = {tuple(s.tolist()): (t.tolist(), w.tolist()) for s, t, w in ids}
    assert rows == {
        (2, 5, 3, 0): ([2, 8, 9, 10], [8, 9, 10, 3]),
        (2, 6, 7, 3): ([2, 11, 0, 0], [11, 3, 0, 0]),
    }


def test_targets_take_the_room_that_they_need():
    """Batches of a bucket and of those before it, whose pairs may move to a longer one."""
    targets = [np.zeros(n + 1) for n in (3, 30, 9)]
    found = target_lengths([10, 31, 60], targets, [16, 32, 64])
    assert found == {16: 8, 32: 32, 64: 32}
    assert target_lengths([6], [np.zeros(7)], [6]) == {6: 6}


@pytest.mark.parametrize("layout", ["columns", "translation"])
def test_pairs_of_the_hub_are_rows(monkeypatch, layout):
    datasets = pytest.importorskip("datasets")

    def part(n, held_out=True):
        rows = [{"en": f"en {i}", "de": f"de {i}"} for i in range(n)]
        rows += [] if held_out else [{"en": f"new {i}", "de": f"neu {i}"} for i in range(2)]
        rows = rows if layout == "columns" else [{"translation": row} for row in rows]
        return datasets.Dataset.from_list(rows)

    parts = datasets.DatasetDict({"train": part(1, False), "validation": part(2), "test": part(3)})
    monkeypatch.setattr("train.data.hub.load_parts", lambda name: (parts, "the cache"))
    pairs = load_pairs("hub:some/pairs", "en", "de", 0)
    assert pairs.train == (["new 0", "new 1"], ["neu 0", "neu 1"])
    assert pairs.notes == ("dropped 1 training pair, also held out",)
    assert len(pairs.validation[0]) == 2 and len(pairs.test[1]) == 3
    with pytest.raises(DataError, match="no texts in en and fr"):
        load_pairs("hub:some/pairs", "en", "fr", 0)


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    def unreachable(name):
        raise Unreachable("no answer")

    monkeypatch.setattr("train.data.hub.load_parts", unreachable)
    with pytest.raises(DataError, match=r"hub:a/b is not cached .*no answer.*; pass a folder"):
        load_pairs("hub:a/b", "en", "de", 0)


def test_what_validation_says_is_nats_a_wanted_token_and_the_same_smoothed():
    """The definition, over batches with padded rows and targets."""
    stack = StackConfig(1, 8, 2, 12)
    config = SequenceToSequenceConfig(11, 8, encoder=stack, decoder=stack)
    model = SequenceToSequence(config, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    sources, targets = (
        [rng.integers(1, 11, n) for n in lengths] for lengths in ((3, 6, 2), (5, 2, 4))
    )
    lengths = pair_lengths(sources, targets)
    batches = pair_batches(evaluation_plans(lengths, [8], 16), sources, targets, {8: 8}, 0)
    graph, params = nnx.split(model, nnx.Param)
    found = make_evaluation(graph, batches, 0.2)(params)
    logits_of, sums, number = compiled(model), np.zeros(2), 0
    for source, target in zip(sources, targets, strict=True):
        rows = (
            source[None],
            np.ones((1, len(source)), bool),
            target[None, :-1],
            np.ones((1, len(target) - 1), bool),
        )
        log_p = log_softmax(np.asarray(logits_of(*rows))[0], axis=-1)
        for smoothing, k in ((0.0, 0), (0.2, 1)):
            q = (1 - smoothing) * np.eye(11)[target[1:]] + smoothing / 11
            sums[k] -= (q * log_p).sum()
        number += len(target) - 1
    np.testing.assert_allclose(found, sums / number, rtol=1e-5)


@pytest.mark.parametrize(
    ("data", "languages", "message"),
    [
        ("sample", ("fr", "de"), "sample translates words to digits; got --source fr"),
        ("sample", ("en", "en"), "--source and --target are both 'en'"),
        ("hub:", ("en", "de"), "hub: names no data set; pass a folder"),
        ("hub:/", ("en", "de"), "hub:/ names no data set; pass a folder"),
    ],
)
def test_languages_and_names_that_the_data_cannot_have_are_refused(data, languages, message):
    with pytest.raises(DataError, match=message):
        load_pairs(data, *languages, 0)
