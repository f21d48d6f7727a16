"""Every reader gets thousands of damaged files: it answers, or says in one line why it cannot;
nothing else.

The files are made from whole ones by a few mutations each (bytes of any file, values of a JSON
tree, the tar inside its compression), so that most faults lie deep enough to pass the first
check."""

import copy
import functools
import gzip
import io
import json
import resource
import tarfile
from collections.abc import Callable

import jax
import numpy as np
import pandas as pd
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.run_folders import save_run
from train.data.dataset import DataError
from train.data.imdb_archive import read_archive
from train.data.table_files import Reading, read_tables
from train.recipes.classify_options import ImdbOptions
from train.trainer.options import OptionError
from train.trainer.run import OPTIONS, Run, RunError, resumed_options
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.runtime.errors import RunFolderError, TokenizerError
from transformer_jax.serialization.folder_files import CONFIG, TOKENIZER, WEIGHTS
from transformer_jax.serialization.run_folder import load_classifier, load_weights
from transformer_jax.serialization.specification import ClassifierSpec
from transformer_jax.text.tokenizer import load_tokenizer, train_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_users_run_it")]

EXAMPLES, SECONDS, MEMORY = 2000, 10, 1 << 30
PROGRAM = "train.imdb"

# What a reader may trip over: ends, signs, sizes, quotes, and the words of the formats.
PIECES = [
    *(b"\x00 \xff \xff\xfe \xef\xbb\xbf \xc3 \xed\xa0\x80 \x85 \r \n \r\n \t".split(b" ")),
    *(b'" \' "" , ; : [ ] { } [[[[ {" \\ \\u \\ud800 \\u0000 null true NaN -Infinity'.split(b" ")),
    *(b"0 -1 1e308 1e999 0.5 99999999999999999999 \xff\xff\xff\x7f \x00\x00\x00\x80".split(b" ")),
    *(b"text label movie PAR1 ustar 00000000000 77777777777 size= path= F32 I64 shape".split(b" ")),
    *(b'"type" "vocab" [UNK] [PAD] <br /> (?: )* {1,999}'.split(b" ")),
    b"9" * 5000, b"[" * 3000, b"\x00" * 600,
]  # fmt: skip
VALUES = [
    None, True, False, -1, 0, 1, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"), "",
    "x", "a\nb", "\ud800", "0", [], {}, [[]], [[[]]], ["cls"], [1, "x"], {"x": 1}, "x" * 10_000,
]  # fmt: skip


# Damage to bytes.


@st.composite
def damage(draw, seed: bytes) -> bytes:
    """`seed` after one to eight changes."""
    content = seed
    for kind in draw(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=8)):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(1, 40)))
        content = kind(draw, content, start, end)
    return content


def overwrite(draw, content, start, end):
    piece = draw(st.sampled_from(PIECES))
    return content[:start] + piece + content[start + len(piece) :]


CHANGES = [
    lambda draw, content, start, end: (
        content[:start]
        + bytes(byte ^ draw(st.integers(1, 255)) for byte in content[start : start + 1])
        + content[start + 1 :]
    ),
    lambda draw, content, start, end: (
        content[:start] + draw(st.binary(max_size=20)) + content[start:]
    ),
    lambda draw, content, start, end: content[:start] + content[end:],
    lambda draw, content, start, end: content[:end] + content[start:],
    lambda draw, content, start, end: (
        content[:start] + draw(st.sampled_from(PIECES)) + content[start:]
    ),
    lambda draw, content, start, end: (
        content[:start] + draw(st.sampled_from(PIECES)) + content[end:]
    ),
    overwrite,
    lambda draw, content, start, end: content[:start],
]


# Damage to the tree of a JSON file.


@st.composite
def damage_tree(draw, seed: bytes) -> bytes:
    """`seed` after one to four values, keys or items became others."""
    tree = [json.loads(seed)]
    for _ in range(draw(st.integers(1, 4))):
        holder, key = draw(st.sampled_from(list(places(tree))))
        change = draw(st.sampled_from(["replace", "remove", "double", "rename"]))
        if change == "replace":
            holder[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        elif change == "remove" and holder is not tree:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, holder[key])
        elif change == "double":
            holder[f"{key}2"] = holder[key]
        else:
            holder[draw(st.sampled_from([*holder, "", "x"]))] = holder.pop(key)
    return json.dumps(tree[0] if tree else None).encode()


def places(tree):
    """Every (list or object, index or key) of a tree."""
    for key in range(len(tree)) if isinstance(tree, list) else list(tree):
        yield tree, key
        if isinstance(tree[key], list | dict):
            yield from places(tree[key])


def json_damage(seed: bytes):
    return damage(seed) | damage_tree(seed)


def archive_damage(seed: bytes):
    return damage(seed) | damage(gzip.decompress(seed)).map(
        functools.partial(gzip.compress, compresslevel=1, mtime=0)
    )


# The rule.


def fuzz(
    read: Callable[[bytes], object], mutants: st.SearchStrategy[bytes], *errors: type[Exception]
) -> None:
    """`read` answers every mutant or raises one of `errors` in one line, in time and in memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {"answered": 0, "refused": 0}

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=SECONDS * 1000,
        suppress_health_check=list(HealthCheck),
    )
    @given(mutants)
    def holds(content):
        try:
            read(content)
            outcomes["answered"] += 1
        except errors as error:
            assert str(error).strip() and len(str(error).splitlines()) == 1, repr(str(error))
            assert len(str(error)) < 1000
            outcomes["refused"] += 1

    holds()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MEMORY, f"{grown:,} bytes"
    assert sum(outcomes.values()) >= EXAMPLES
    # Both happen, or the mutants are too tame or too wild to try anything.
    assert all(outcomes.values()), outcomes


# Whole files.

TEXTS = [f"review {i} of this film, {'good' if i % 2 else 'bad'}" for i in range(6)]
FRAME = pd.DataFrame(
    {"text": TEXTS, "label": [i % 2 for i in range(6)], "movie": [f"tt{i // 2}" for i in range(6)]}
)


def to_bytes(write) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def release(form: int) -> bytes:
    """A small aclImdb.tar.gz, with long names and attributes in the manner of `form`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=form, compresslevel=1) as tar:
        for name, text in {
            "train/pos/0_9.txt": "Lovely.",
            "train/neg/0_2.txt": "Dull.",
            "train/urls_pos.txt": "http://www.imdb.com/title/tt0000003/usercomments\n",
            "test/pos/0_7.txt": "Strong",
            "test/neg/0_3.txt": "Weak",
            "x" * 120: "a long name",
        }.items():
            member = tarfile.TarInfo(f"aclImdb/{name}")
            member.size = len(text)
            member.pax_headers = {"comment": "café"} if form == tarfile.PAX_FORMAT else {}
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


TABLES = {
    "csv": FRAME.to_csv(index=False).encode(),
    "tsv": FRAME.to_csv(index=False, sep="\t").encode(),
    "jsonl": FRAME.to_json(orient="records", lines=True).encode(),
    "parquet": to_bytes(FRAME.to_parquet),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_damaged_table_is_read_or_refused(kind, tmp_path):
    path = tmp_path / f"reviews.{kind}"

    def read(content):
        path.write_bytes(content)
        data = read_tables(path, Reading())
        assert len(data.train.texts) == len(data.train.labels)

    fuzz(read, damage(TABLES[kind]), DataError)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_a_damaged_archive_is_read_or_refused(form, tmp_path):
    path = tmp_path / "a.tar.gz"

    def read(content):
        path.write_bytes(content)
        read_archive(path)

    fuzz(read, archive_damage(release(form)), DataError)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.tar.gz"]


# Run folders.


@pytest.fixture(scope="module", autouse=True)
def no_backtrace():
    """Without the backtrace of a Rust panic, which takes a hundred times as long as the panic."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUST_BACKTRACE", "0")
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tokenizer = train_tokenizer("word:30", TEXTS)
    encoder = StackConfig(num_layers=1, embed_dim=4, num_heads=2, hidden_dim=4)
    config = ClassifierConfig(tokenizer.vocab_size, 16, encoder=encoder)
    params = nnx.state(TextClassifier(config, rngs=nnx.Rngs(0)), nnx.Param)
    spec = ClassifierSpec(config, ("bad", "good"), "head", "reviews.csv")
    save_run(folder, params, tokenizer, spec)
    Run(PROGRAM, folder, ImdbOptions()).begin("sum")
    return folder


@pytest.mark.parametrize("name", [CONFIG, TOKENIZER, WEIGHTS])
def test_a_run_folder_with_a_damaged_file_is_read_or_refused(name, run):
    whole = (run / name).read_bytes()

    def read(content):
        (run / name).write_bytes(content)
        classifier = load_classifier(run)
        classifier.tokenizer.encode(["A zyzzyva <br />\x00😀 ", ""], 9)

    mutants = damage(whole) if name == WEIGHTS else json_damage(whole)
    try:
        fuzz(read, mutants, RunFolderError, TokenizerError)
    finally:
        (run / name).write_bytes(whole)


@pytest.mark.parametrize("spec", ["word:30", "bpe:280"])
def test_a_damaged_tokenizer_is_read_or_refused(spec, tmp_path):
    path = tmp_path / TOKENIZER
    train_tokenizer(spec, TEXTS).save(path)

    def read(content):
        path.write_bytes(content)
        tokenizer = load_tokenizer(path)
        for ids in tokenizer.encode(["A zyzzyva <br />\x00😀 ", ""], 9):
            assert ids.max() < tokenizer.vocab_size
            tokenizer.decode(ids)

    fuzz(read, json_damage(path.read_bytes()), TokenizerError)


def test_damaged_weights_are_read_or_refused(run, tmp_path):
    path = tmp_path / WEIGHTS
    whole = (run / WEIGHTS).read_bytes()
    shapes = nnx.state(load_classifier(run).model, nnx.Param)

    def read(content):
        path.write_bytes(content)
        loaded = load_weights(path, shapes)
        assert jax.tree.map(np.shape, loaded) == jax.tree.map(np.shape, shapes)

    fuzz(read, damage(whole), RunFolderError)


def test_damaged_options_are_read_or_refused(run, tmp_path):
    def read(content):
        (tmp_path / OPTIONS).write_bytes(content)
        resumed_options(tmp_path, PROGRAM, ImdbOptions, ["--resume", "x"])

    fuzz(read, json_damage((run / OPTIONS).read_bytes()), RunError, OptionError)


def test_most_damage_differs():
    seen = set()

    @settings(max_examples=200, derandomize=True, database=None)
    @given(json_damage(json.dumps({"a": [1, {"b": None}], "c": list(range(9))}).encode()))
    def look(content):
        seen.add(content)

    look()
    assert len(seen) > 120
