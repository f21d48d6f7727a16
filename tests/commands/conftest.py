"""Processes, data and trained models for the tests of documented commands."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from string import Formatter

import numpy as np
import pandas as pd
import pytest

from tests.pretrained.test_export import make_run

ROOT = Path(__file__).parents[2]
TINY = ["--max-steps", "2", "--layers", "1", "--embed-dim", "16", "--batch-tokens", "512"]


@pytest.fixture(scope="session")
def call():
    """Run a command in a folder and return its standard output; it must exit with 0."""

    def run(words: list, folder: Path) -> str:
        paths = [str(folder), str(ROOT)]  # a copy of docs/ in the folder comes first
        done = subprocess.run(
            [str(word) for word in words],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def python(call):
    """Run `python -m WORDS` in a folder."""
    return lambda words, folder: call([sys.executable, "-m", *words], folder)


@pytest.fixture(scope="session")
def make(call):
    """Run `make WORDS` with the interpreter of the tests, which has everything installed."""

    def run(words: list) -> str:
        here = [f"VENV={sys.prefix}", "--assume-old", f"{sys.prefix}/.installed"]
        ours = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
        with pytest.MonkeyPatch.context() as patch:
            for name in ours:  # not as a part of the make that runs the tests
                patch.delenv(name, raising=False)
            return call(["make", *words, *here], ROOT)

    return run


@pytest.fixture(scope="session")
def root():
    """The folder of the project."""
    return ROOT


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder for data and runs."""
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="session")
def texts(folder):
    """Sentences of random words, and whether each holds the word "good"."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(40)])
    labels = rng.integers(0, 2, 400)
    return [
        (" ".join([*rng.choice(words, 12), "good" if label else "bad"]), label) for label in labels
    ]


@pytest.fixture(scope="session")
def reviews(folder, texts):
    """A data set as `train.imdb --data` reads it, with texts without labels."""
    reviews = folder / "reviews"
    reviews.mkdir()
    table = pd.DataFrame(texts, columns=["text", "label"])
    table[:160].to_parquet(reviews / "train.parquet")
    table[160:240].to_parquet(reviews / "test.parquet")
    table[240:].assign(label=-1).to_parquet(reviews / "unsupervised.parquet")
    return reviews


@pytest.fixture(scope="session")
def book(folder, texts):
    """A text file, one sentence a line."""
    (folder / "book.txt").write_text("\n".join(text for text, _ in texts) + "\n")
    return folder / "book.txt"


@pytest.fixture(scope="session")
def classifier(python, folder):
    """A run of `python -m train.imdb` on the built-in sample."""
    words = ["train.imdb", "--data", "sample", "--max-steps", "2", "--batch-tokens", "512"]
    python([*words, "--out", "classifier"], folder)
    return folder / "classifier"


@pytest.fixture(scope="session")
def writer(python, folder, book):
    """A run of `python -m train.lm`."""
    python(["train.lm", "--data", book, "--length", "32", *TINY, "--out", "writer"], folder)
    return folder / "writer"


@pytest.fixture(scope="session")
def encoder(python, folder, reviews):
    """A run of `python -m train.mlm`."""
    python(["train.mlm", "--data", reviews, "--length", "32", *TINY, "--out", "encoder"], folder)
    return folder / "encoder"


@pytest.fixture(scope="session")
def finetuned(folder):
    """A run folder of a classifier with BERT's layers and random weights."""
    return make_run(folder / "finetuned")


@pytest.fixture(scope="session")
def translator(python, folder, texts):
    """A run of `python -m train.translate`."""
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"{text}\t{text[::-1]}\n" for text, _ in texts))
    words = ["train.translate", "--data", pairs, "--tokenizer", "char", *TINY]
    python([*words, "--out", "translator"], folder)
    return folder / "translator"


@pytest.fixture(scope="session")
def words_of():
    """Replace {NAME} in a command by the fixture of that name, and cut it into words."""

    def words(command: str, request) -> list[str]:
        names = {name for _, name, _, _ in Formatter().parse(command) if name}
        return shlex.split(
            command.format(**{name: request.getfixturevalue(name) for name in names})
        )

    return words


@pytest.fixture
def copy(tmp_path):
    """A folder with copies of docs/ and README.md, for commands that write there."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path
