"""Mistakes and odd input at the command line: a mistake is one line, exit code 2, and nothing
written; what is only odd works.

Each row of `MISTAKES` is what is wrong, how it is made, the command, and what the message says."""

import gzip
import io
import json
import resource
import shutil
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from tests.helpers.run_folders import save_run
from train.data.load import load
from train.imdb import main as train
from train.recipes.classify_options import ImdbOptions
from train.trainer.run import Run
from transformer_jax.__main__ import main as use
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.serialization.specification import ClassifierSpec
from transformer_jax.text.tokenizer import train_tokenizer

TEXTS = [f"review {i} of this film" for i in range(20)]
CSV = "text,label\n" + "".join(f"{text},{i % 2}\n" for i, text in enumerate(TEXTS))
SECONDS, MEMORY = 20, 1 << 30  # of the processor; 8 s is the most that was measured

pytestmark = pytest.mark.usefixtures("as_users_run_it")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sound file of reviews, a run that is too small to be any good, and a folder with other
    things in it.
    """
    folder = tmp_path_factory.mktemp("whole")
    (folder / "good.csv").write_text(CSV)
    tokenizer = train_tokenizer("word:30", TEXTS)
    encoder = StackConfig(num_layers=1, embed_dim=4, num_heads=2, hidden_dim=4)
    config = ClassifierConfig(tokenizer.vocab_size, 16, encoder=encoder)
    params = nnx.state(TextClassifier(config, rngs=nnx.Rngs(0)), nnx.Param)
    (folder / "run").mkdir()
    spec = ClassifierSpec(config, ("negative", "positive"), "head", "reviews.csv")
    save_run(folder / "run", params, tokenizer, spec)
    Run("train.imdb", folder / "run", ImdbOptions()).begin("sum")
    (folder / "taken").mkdir()
    (folder / "taken" / "precious").write_text("mine")
    return folder


@pytest.fixture
def place(whole, tmp_path, monkeypatch):
    """A copy of it to work in, with room around it for what might escape."""
    monkeypatch.chdir(shutil.copytree(whole, tmp_path / "place"))
    return Path()


# How mistakes are made: each gives a function that makes one in the folder it is called with.


def nothing(folder):
    pass


def wrote(name, content):
    def make(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def cut(name, share=0.5):
    def make(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return make


def removed(name):
    return lambda folder: (folder / name).unlink()


def made(*makes):
    return lambda folder: [make(folder) for make in makes]


def csv(*labels):
    return wrote("a.csv", "text,label\n" + "".join(f"t {i},{x}\n" for i, x in enumerate(labels)))


def parquet(name, **columns):
    return lambda folder: pd.DataFrame(columns).to_parquet(folder / name)


def edited(name, change):
    """A JSON file after `change` of its tree."""

    def make(folder):
        tree = json.loads((folder / name).read_text())
        change(tree)
        (folder / name).write_text(json.dumps(tree))

    return make


def config(path, *value):
    """config.json with another value at a dotted path of its `config`, or without that key."""

    def change(tree):
        *parents, key = ["config", *path.split(".")]
        for parent in parents:
            tree = tree[parent]
        if value:
            tree[key] = value[0]
        else:
            del tree[key]

    return edited("run/config.json", change)


def options(**changes):
    return edited("run/options.json", lambda tree: tree.update(changes))


def weights(change):
    def make(folder):
        arrays = load_file(folder / "run/model.safetensors")
        change(arrays)
        save_file(arrays, folder / "run/model.safetensors")

    return make


def other_tokenizer(folder):
    train_tokenizer("word:30", ["other words"]).save(folder / "run/tokenizer.json")


def gpt2(folder):
    """GPT-2's files with two merges in place of fifty thousand."""
    shown = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    alphabet = [chr(b) for b in shown] + [chr(256 + n) for n in range(256 - len(shown))]
    tokens = [*alphabet, "th", "the", "<|endoftext|>"]
    vocabulary = json.dumps({token: i for i, token in enumerate(tokens)})
    made(
        wrote("gpt2/encoder.json", vocabulary),
        wrote("gpt2/vocab.bpe", "#version: 0.2\nt h\nth e\n"),
    )(folder)


# Archives.

REVIEW = "aclImdb/train/pos/0_9.txt"


def member(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def archive(*parts):
    return wrote("a.tar.gz", gzip.compress(b"".join(parts)))


def zeros(gigabytes):
    """Gzip members of 64 MB of zeros each, which gzip reads one after the other as one stream."""
    return gzip.compress(bytes(1 << 26)) * (gigabytes << 4)


def bomb(*parts, gigabytes=10):
    return lambda folder: (folder / "a.tar.gz").write_bytes(
        gzip.compress(b"".join(parts)) + zeros(gigabytes)
    )


def with_absolute_name(folder):
    """A review whose name is an absolute path beside the folder we work in."""
    name = str(folder.resolve().parent / "escaped/train/pos/0_9.txt")
    archive(member(name, b"Out!"))(folder)


def many_files(folder):
    (folder / "a.tar.gz").write_bytes(gzip.compress(member("aclImdb/empty") * 100_000, 1) * 10)


PREDICT = "predict run fine"
DATA = "train --data "
ARCHIVE = "train --data a.tar.gz"

MISTAKES = {
    # The path.
    "no such file": (nothing, DATA + "nowhere.csv", "no file or folder nowhere.csv"),
    "a name too long for a file": (nothing, DATA + "x" * 300, "cannot be read"),
    "a folder without data": (nothing, DATA + "taken", "holds no file named train"),
    "a file of another kind": (wrote("a.doc", "x"), DATA + "a.doc", "none of the accepted formats"),
    # Columns and labels.
    "no text column": (wrote("a.csv", "a,label\nx,1\n"), DATA + "a.csv", "no column 'text'"),
    "no label column": (nothing, DATA + "good.csv --label-column stars", "no column 'stars'"),
    "a column of long names": (wrote("a.csv", "x" * 9999), DATA + "a.csv", "--text-column"),
    "three labels": (csv(0, 1, 2), DATA + "a.csv --classes 2", "pass --classes 3"),
    "texts as labels": (csv(*("long " * 99 + str(i) for i in range(30))), DATA + "a.csv", "..."),
    "two labels, three asked for": (nothing, DATA + "good.csv --classes 3", "3 different labels"),
    "one label": (csv(1, 1), DATA + "a.csv", "two or more different labels, got 1: 1"),
    "no rows": (csv(), DATA + "a.csv", "it has no rows"),
    "labels between classes": (
        parquet("a.parquet", text=["a", "b"], label=[0.5, 1.0]),
        DATA + "a.parquet",
        "row 0: the label must be an integer or a word, got 0.5",
    ),
    "labels between classes in JSON": (
        wrote("a.jsonl", '{"text": "a", "label": 0.5}'),
        DATA + "a.jsonl",
        "line 1: the label must be an integer or a word, got 0.5",
    ),
    "half a character as label": (
        wrote("a.jsonl", r'{"text": "a", "label": "\ud800"}'),
        DATA + "a.jsonl",
        r"got '\ud800'",
    ),
    "an integer of 5000 digits": (
        wrote("a.jsonl", '{"text": "a", "label": ' + "9" * 5000 + "}"),
        DATA + "a.jsonl",
        "line 1: not JSON",
    ),
    "a folder of one label": (
        made(
            parquet("train.parquet", text=["a", "b"], label=[0, 0]),
            parquet("test.parquet", text=["c"], label=[1]),
        ),
        DATA + ".",
        "all training texts have one label, 0",
    ),
    "blank texts": (
        wrote("a.csv", "text,label\n,0\na,1\n ,0\n"),
        DATA + "a.csv",
        "a.csv: 2 rows cannot be used: 2 with a blank text (lines 2, 4); drop them with --skip-bad",
    ),
    "no such encoding": (nothing, DATA + "good.csv --encoding utf-9", "no such encoding"),
    "another encoding": (nothing, DATA + "good.csv --encoding utf-16", "is not utf-16"),
    # Content.
    "not UTF-8": (wrote("a.csv", b"text,label\nb\xe4d,0\n"), DATA + "a.csv", "line 2: byte 0xe4"),
    "gzip": (wrote("a.csv", gzip.compress(b"a")), DATA + "a.csv", "a.csv is compressed by gzip"),
    "half a gzip": (wrote("a.csv.gz", b"\x1f\x8b"), DATA + "a.csv.gz", "not a whole gzip file"),
    "NUL in CSV": (wrote("a.csv", "text,label\na\0,1\n"), DATA + "a.csv", "line 2: a NUL byte"),
    "NUL in JSONL": (wrote("a.jsonl", '{"text": "\0"}'), DATA + "a.jsonl", "line 1: a NUL byte"),
    "an unclosed quote": (wrote("a.csv", 'text,label\n"a,1\n'), DATA + "a.csv", "unexpected end"),
    "JSONL cut": (wrote("a.jsonl", '{"text": "a", "la'), DATA + "a.jsonl", "line 1: not JSON"),
    "JSON nested deeply": (wrote("a.jsonl", "[" * 10**6), DATA + "a.jsonl", "line 1: not JSON"),
    "Parquet cut": (
        made(parquet("a.parquet", text=TEXTS, label=[0, 1] * 10), cut("a.parquet")),
        DATA + "a.parquet",
        "a.parquet: not a sound Parquet file",
    ),
    # Archives.
    "only a review outside": (archive(member("../../x/train/pos/0_9.txt", b"!")), ARCHIVE, "no train/pos"),
    "only an absolute review": (with_absolute_name, ARCHIVE, "no train/pos"),
    "only a symbolic link": (
        archive(member(REVIEW, type=tarfile.SYMTYPE, linkname="/etc/passwd")),
        ARCHIVE,
        "no train/pos",
    ),
    "only a hard link": (
        archive(member(REVIEW, type=tarfile.LNKTYPE, linkname="/etc/passwd")),
        ARCHIVE,
        "no train/pos",
    ),
    "only a device": (archive(member(REVIEW, type=tarfile.CHRTYPE)), ARCHIVE, "no train/pos"),
    "a review that claims 10 GB": (archive(member(REVIEW, size=10**10)), ARCHIVE, "10,000,000,000"),
    "a file that claims 10 GB": (archive(member("film", size=10**10)), ARCHIVE, "'film' claims 10,000,000,000"),
    "10 GB in a file": (bomb(*(member(f"film {i}", bytes(1 << 20)) for i in range(9)), member("film", size=10**9)), ARCHIVE, "more than 1,000,000,000 bytes"),
    "10 GB behind the end": (bomb(bytes(1024)), ARCHIVE, "more than 1,000,000,000 bytes"),
    "a million files": (many_files, ARCHIVE, "more than 210,000 files"),
    "attributes that claim 3 GB": (
        archive(member("x", type=tarfile.XHDTYPE, size=3 << 30)),
        ARCHIVE,
        "'x' claims 3,221,225,472 bytes",
    ),
    "common attributes that claim 3 GB": (
        archive(member("x", type=tarfile.XGLTYPE, size=3 << 30)),
        ARCHIVE,
        "'x' claims 3,221,225,472 bytes",
    ),
    "a name that claims 3 GB": (
        archive(member("x", type=tarfile.GNUTYPE_LONGNAME, size=3 << 30)),
        ARCHIVE,
        "'x' claims 3,221,225,472 bytes",
    ),
    "a size below zero": (archive(member(REVIEW, size=-512)), ARCHIVE, "'aclImdb/train/pos/0_9.txt' claims -512 bytes"),
    "attributes of an absurd size": (
        archive(member("x", b"30 size=999999999999999999999\n", type=tarfile.XHDTYPE)),
        ARCHIVE,
        "a file of more than 8 GB",
    ),
    "attributes on attributes": (
        archive(member("x", b"11 path=abc", type=tarfile.XHDTYPE) * 5000),
        ARCHIVE,
        "not a whole .tar.gz",
    ),
    "a cut archive": (
        made(archive(member(REVIEW, b"!")), cut("a.tar.gz")),
        ARCHIVE,
        "not a whole .tar.gz",
    ),
    # Options.
    "--max-length 2": (nothing, DATA + "good.csv --max-length 2", "--max-length must be at least 3"),
    "--epochs -1": (nothing, DATA + "good.csv --epochs -1", "--epochs must be at least 0"),
    "--max-steps -1": (nothing, DATA + "good.csv --max-steps -1", "--max-steps must be at least 0"),
    "--seed -1": (nothing, DATA + "good.csv --seed -1", "--seed must be at least 0"),
    "--classes 1": (nothing, DATA + "good.csv --classes 1", "--classes must be at least 2"),
    "--checkpoint-minutes -1": (nothing, DATA + "good.csv --checkpoint-minutes -1", "at least 0"),
    "--checkpoint-minutes nan": (nothing, DATA + "good.csv --checkpoint-minutes nan", "got nan"),
    "--batch-tokens 0": (nothing, DATA + "good.csv --batch-tokens 0", "--batch-tokens must be"),
    "--batch-tokens 4": (nothing, DATA + "good.csv --batch-tokens 4", "less than one text of 16"),
    "--max-length beyond any array": (
        nothing,
        DATA + "good.csv --max-length 1000000000000",
        "--max-length must be less than 2147483648",
    ),
    "--seed beyond 32 bits": (nothing, DATA + "good.csv --seed 4294967296", "--seed must be less"),
    "gpt2 from nowhere": (
        nothing,
        DATA + "good.csv --tokenizer gpt2 --gpt2-files nowhere",
        "nowhere/encoder.json",
    ),
    "gpt2 with a cut encoder.json": (
        made(gpt2, cut("gpt2/encoder.json")),
        DATA + "good.csv --tokenizer gpt2 --gpt2-files gpt2",
        "files in gpt2 are damaged",
    ),
    "gpt2 with a cut vocab.bpe": (
        made(gpt2, cut("gpt2/vocab.bpe", 0.9)),
        DATA + "good.csv --tokenizer gpt2 --gpt2-files gpt2",
        "files in gpt2 are damaged",
    ),
    "gpt2 with a vocab.bpe cut at a line": (
        made(gpt2, wrote("gpt2/vocab.bpe", "#version: 0.2\nt h\n")),
        DATA + "good.csv --tokenizer gpt2 --gpt2-files gpt2",
        "259 tokens and 1 merges",
    ),
    # Run folders to write to.
    "--out that holds something": (nothing, DATA + "good.csv --out taken", "taken is not empty"),
    "--out that is a run": (nothing, DATA + "good.csv --out run", "or --resume run"),
    "--out that is a file": (nothing, DATA + "good.csv --out good.csv", "good.csv is not a folder"),
    "--out below a file": (nothing, DATA + "good.csv --out good.csv/x", "cannot write to good.csv/x"),
    "--out with a name too long": (nothing, DATA + "good.csv --out " + "x" * 300, "cannot write to"),
    "--resume with a name too long": (nothing, "train --resume " + "x" * 300, "no such folder"),
    "--resume nowhere": (nothing, "train --resume nowhere", "cannot resume nowhere"),
    "--resume of no run": (nothing, "train --resume taken", "cannot resume taken"),
    "--resume of a file": (nothing, "train --resume good.csv", "good.csv is not a folder"),
    "--resume with another seed": (nothing, "train --resume run --seed 5", "--seed cannot change"),
    "--resume to another place": (nothing, "train --resume run --out x", "--out cannot change"),
    "--resume of another program": (
        options(program="train.lm"),
        "train --resume run",
        "not of train.imdb; python -m train.lm --resume run resumes it",
    ),
    "--resume of options of another type": (
        edited("run/options.json", lambda tree: tree["options"].update(epochs="three")),
        "train --resume run",
        "run/options.json: epochs cannot be 'three'",
    ),
    "--resume of options that nobody can choose": (
        edited("run/options.json", lambda tree: tree["options"].update(recipe="best")),
        "train --resume run",
        "run/options.json: recipe cannot be 'best'",
    ),
    "--resume of options out of bounds": (
        edited("run/options.json", lambda tree: tree["options"].update(max_length=1)),
        "train --resume run",
        "--max-length must be at least 3",
    ),
    "--resume without the sum of the data": (
        options(data_sha256=None),
        "train --resume run",
        "no readable options.json",
    ),
    "--resume of another version": (
        edited("run/options.json", lambda tree: tree["options"].pop("recipe")),
        "train --resume run",
        "another version of train.imdb",
    ),
    "--resume of cut options": (cut("run/options.json"), "train --resume run", "no readable options"),
    # Run folders to use.
    "a classifier that is to write": (nothing, "generate run fine", "holds a TextClassifier, not a LanguageModel"),
    "a classifier that is to translate": (nothing, "translate run fine", "a TextClassifier, not a SequenceToSequence"),
    "no run": (nothing, "predict nowhere fine", "nowhere is not a run folder"),
    "a text in place of the run": (nothing, "predict " + "x" * 300 + " fine", "is not a run folder"),
    "config.json missing": (removed("run/config.json"), PREDICT, "has no config.json"),
    "config.json cut": (cut("run/config.json"), PREDICT, "config.json is not the configuration"),
    "config.json garbage": (wrote("run/config.json", b"\0\xff"), PREDICT, "config.json is not the"),
    "config.json a list": (wrote("run/config.json", "[1]"), PREDICT, "must be an object, got [1]"),
    "config.json deep": (wrote("run/config.json", "[" * 10**6), PREDICT, "config.json is not the"),
    "config.json of long integers": (wrote("run/config.json", "9" * 9999), PREDICT, "4300 digits"),
    "an unknown key": (config("layers", 3), PREDICT, "ClassifierConfig has no 'layers'"),
    "a missing key": (config("vocab_size"), PREDICT, "ClassifierConfig needs 'vocab_size'"),
    "an encoder that is none": (config("encoder", 3), PREDICT, "StackConfig must be an object"),
    "a size as a word": (config("max_length", "16"), PREDICT, "max_length must be an integer, got '16'"),
    "a size with a fraction": (config("max_length", 16.5), PREDICT, "max_length must be an integer"),
    "a size that is true": (config("encoder.num_layers", True), PREDICT, "num_layers must be an int"),
    "heads that do not divide": (config("encoder.num_heads", 3), PREDICT, "num_heads must divide"),
    "a rate above one": (config("encoder.dropout_rate", 1.5), PREDICT, "dropout_rate must be in [0, 1)"),
    "a rate below zero": (config("encoder.dropout_rate", -0.1), PREDICT, "must be in [0, 1); got -0.1"),
    "a rate that is a word": (config("head_dropout_rate", "half"), PREDICT, "must be a number, got 'half'"),
    "a rate that is NaN": (config("head_dropout_rate", float("nan")), PREDICT, "[0, 1); got nan"),
    "an epsilon of zero": (config("encoder.norm_epsilon", 0), PREDICT, "norm_epsilon must be"),
    "an unknown pooling": (config("pooling", ["median"]), PREDICT, "got 'median'"),
    "a pooling that is a word": (config("pooling", "cls"), PREDICT, "pooling must be a list, got 'cls'"),
    "no width": (config("encoder.embed_dim", 0), PREDICT, "embed_dim must be 1 or more; got 0"),
    "no tokens": (config("vocab_size", 0), PREDICT, "vocab_size must be 1 or more; got 0"),
    "no room for a text": (config("max_length", 2), PREDICT, "max_length must be 3 or more"),
    "an absurd width": (config("encoder.embed_dim", 10**9), PREDICT, "the model needs F32 of (1000000000,)"),
    "an absurd hidden width": (config("encoder.hidden_dim", 2**30), PREDICT, "1073741824"),
    "an absurd length": (config("max_length", 10**9), PREDICT, "(1000000000, 4)"),
    "a size beyond all": (config("encoder.hidden_dim", 10**400), PREDICT, "must be less than 2147483648"),
    "absurdly many layers": (config("encoder.num_layers", 10**9), PREDICT, "lacks encoder.layers.1"),
    "another number of classes": (config("num_classes", 3), PREDICT, "classes must be 3 different names"),
    "another model": (
        edited("run/config.json", lambda tree: tree.update(model="LanguageModel")),
        PREDICT,
        "run holds a LanguageModel, not a TextClassifier",
    ),
    "another truncation": (
        edited("run/config.json", lambda tree: tree.update(truncate="middle")),
        PREDICT,
        "truncate must be 'head' or 'tail' or 'head-tail', got 'middle'",
    ),
    "weights missing": (removed("run/model.safetensors"), PREDICT, "has no model.safetensors"),
    "weights cut": (cut("run/model.safetensors"), PREDICT, "cannot be read as safetensors"),
    "weights garbage": (wrote("run/model.safetensors", b"\0g"), PREDICT, "cannot be read as safetensors"),
    "weights that claim a header of exabytes": (
        wrote("run/model.safetensors", b"\xff" * 7 + b"\x0f{}"),
        PREDICT,
        "cannot be read as safetensors",
    ),
    "weights without the head": (weights(lambda w: w.pop("head.bias")), PREDICT, "lacks head.bias"),
    "weights with more": (
        weights(lambda w: w.update(extra=w["head.bias"])),
        PREDICT,
        "has unknown extra",
    ),
    "weights of another shape": (
        weights(lambda w: w.update({"head.bias": np.zeros(3, np.float32)})),
        PREDICT,
        "head.bias is F32 of the shape (3,), the model needs F32 of (2,)",
    ),
    "weights of another type": (
        weights(lambda w: w.update({"head.bias": w["head.bias"].astype(np.int64)})),
        PREDICT,
        "head.bias is I64",
    ),
    "weights that are not finite": (
        weights(lambda w: w.update({"head.bias": np.array([0, np.nan], np.float32)})),
        PREDICT,
        "head.bias holds values that are not finite",
    ),
    "tokenizer missing": (removed("run/tokenizer.json"), PREDICT, "has no tokenizer.json"),
    "tokenizer cut": (cut("run/tokenizer.json"), PREDICT, "is not a tokenizer of ours"),
    "tokenizer garbage": (wrote("run/tokenizer.json", b"\0\xff"), PREDICT, "tokenizer.json cannot be read"),
    "tokenizer that is other JSON": (
        wrote("run/tokenizer.json", '{"model": 1}'),
        PREDICT,
        "is not a tokenizer of ours",
    ),
    "tokenizer without its unknown token": (
        edited("run/tokenizer.json", lambda tree: tree["model"].update(unk_token="x")),
        PREDICT,
        "the tokenizer cannot encode a text",
    ),
    "tokenizer of another run": (other_tokenizer, PREDICT, "they are of different runs"),
    "no such class": (nothing, "explain run fine --class good", "no class 'good'; the classes are negative, positive"),
    # Texts to classify.
    "no such texts": (nothing, "predict run --file nowhere", "nowhere cannot be read"),
    "texts that are a folder": (nothing, "predict run --file taken", "taken holds no table named train or test"),
    "texts not in UTF-8": (wrote("a.txt", b"b\xe4d"), "predict run --file a.txt", "a.txt, line 1: byte 0xe4 is not UTF-8; convert"),
    "texts in UTF-16": (wrote("a.txt", "a".encode("utf-16")), "predict run --file a.txt", "a.txt is UTF-16; convert it to UTF-8"),
    "no texts": (wrote("a.txt", ""), "predict run --file a.txt", "a.txt holds no text"),
    "a file without a name": (nothing, "predict run fine --file=", "cannot be read"),
    "a configuration in UTF-16": (wrote("run/config.json", "{}".encode("utf-16")), PREDICT, "config.json is UTF-16; convert it"),
    "a tokenizer in UTF-16": (wrote("run/tokenizer.json", "{}".encode("utf-16")), PREDICT, "tokenizer.json is UTF-16; convert it"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_line_and_exit_code_2_and_writes_nothing(mistake, place, capsys):
    make, command, says = MISTAKES[mistake]
    make(place)
    program, *arguments = command.split()
    if program == "train":
        arguments += ["--dtype", "float32"] if "--resume" not in arguments else []
        arguments += ["--out", "out"] if not {"--out", "--resume"} & set(arguments) else []
    before, began, memory = everything(place), time.process_time(), peak_memory()
    assert (train(arguments) if program == "train" else use([program, *arguments])) == 2
    assert time.process_time() - began < SECONDS
    assert peak_memory() - memory < MEMORY
    error = capsys.readouterr().err
    assert says in error and "error" in error
    assert error.count("\n") == 1 and len(error) < 1000
    assert everything(place) == before


def everything(place: Path) -> dict[Path, bytes | None]:
    """All that stands in the folder and beside it."""
    paths = place.resolve().parent.rglob("*")
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# What is odd and works.

ODD = {
    "empty": "",
    "blank": " \t\n\u2003\u200b",
    "100,000 words": "film " * 100_000,
    "one word of 100,000 letters": "x" * 100_000,
    "beyond the basic plane": "😀👩‍👩‍👧🇫🇷 𝒳 \U0010ffff",
    "half a character": "film \ud83d \udcff",
    "NUL": "a\0b",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
@pytest.mark.parametrize("form", [["--json"], []], ids=["json", "plain"])
def test_odd_text_gets_finite_probabilities(text, form, whole, capsys):
    assert use(["predict", str(whole / "run"), text, *form]) == 0
    printed = capsys.readouterr().out
    assert "nan" not in printed and printed.count("\n") == 1
    if form:
        line = json.loads(printed)
        assert line["text"] == text
        probabilities = list(line["probabilities"].values())
        assert np.isfinite(probabilities).all() and np.isclose(sum(probabilities), 1)


def test_a_byte_order_mark_reaches_no_model(place, capsys, monkeypatch):
    """Texts of a file and of standard input, and the files of a run folder."""
    mark = "\ufeff".encode()
    content = mark + "one\r\ntwo\x85 \ufeff more\n\nfour".encode()
    (place / "a.txt").write_bytes(content)
    for name in ("config.json", "tokenizer.json"):
        (place / "run" / name).write_bytes(mark + (place / "run" / name).read_bytes())
    for arguments in (["--file", "a.txt"], ["--file", "-"], []):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert use(["predict", *arguments, "--json", "run"]) == 0
        texts = [json.loads(line)["text"] for line in capsys.readouterr().out.split("\n")[:-1]]
        assert texts == ["one", "two\x85 \ufeff more", "", "four"]


@pytest.mark.parametrize(
    ("kind", "without"),
    [("csv", {"half a character", "NUL"}), ("jsonl", set()), ("parquet", {"half a character"})],
)
def test_odd_texts_are_read_as_they_are_from_every_format_that_can_hold_them(
    kind, without, tmp_path
):
    texts = [*TEXTS, *(text for name, text in ODD.items() if name not in without)]
    data = load(str(written(tmp_path / f"a.{kind}", texts)), skip_bad=True)
    assert sorted(data.train.texts + data.test.texts) == sorted(filter(str.strip, texts))


@pytest.mark.slow
def test_odd_texts_are_trained_on_without_nan(tmp_path):
    data, run = written(tmp_path / "a.jsonl", [*TEXTS, *ODD.values()]), tmp_path / "run"
    options = (
        "--skip-bad --max-steps 2 --no-baseline --batch-tokens 512 --max-length 16 --dtype float32"
    )
    assert train(["--data", str(data), "--out", str(run), *options.split()]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines and all(np.isfinite(line.get("loss", 0)) for line in lines)
    assert "NaN" not in (run / "report.json").read_text()
    assert all(np.isfinite(x).all() for x in load_file(run / "model.safetensors").values())


@pytest.mark.slow
def test_a_vocabulary_without_a_mask_token_goes_with_the_default_recipe_and_says_so(
    place, tmp_path, capsys
):
    gpt2(place)
    data, run = written(tmp_path / "a.jsonl", TEXTS), tmp_path / "run"
    options = "--max-steps 1 --no-baseline --batch-tokens 512 --max-length 16 --dtype float32"
    options += f" --tokenizer gpt2 --gpt2-files {place / 'gpt2'}"
    assert train(["--data", str(data), "--out", str(run), *options.split()]) == 0
    assert "gpt2 has no mask token: token dropout is off" in capsys.readouterr().out
    assert json.loads((run / "report.json").read_text())["settings"]["token_dropout"] == 0


def written(path: Path, texts: list[str]) -> Path:
    """A file of these texts with labels in turn."""
    columns = {"text": texts, "label": [i % 2 for i in range(len(texts))]}
    if path.suffix == ".jsonl":
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join(json.dumps(dict(zip(columns, row))) for row in rows))  # noqa: B905
    else:
        getattr(pd.DataFrame(columns), f"to_{path.suffix[1:]}")(path, index=False)
    return path
