"""Benchmarks of tokenizers: the three vocabularies of the library, and tiktoken.

    pytest --benchmark-only bench/micro/test_tokenizers.py

The length is the number of words of the text, which is made of synthetic reviews
(train/data/sample_reviews.py). The vocabularies are trained on other reviews. Nothing is
downloaded: GPT-2 is skipped unless tiktoken has its files on disk.
"""

import hashlib
import os
import re
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from bench.measure import harness
from bench.measure.harness import Contestant
from train.data.sample_reviews import sample
from transformer_jax.text.gpt2_vocabulary import FILES, URL
from transformer_jax.text.tokenizer import Tokenizer, train_tokenizer

LENGTHS = harness.lengths(100, 1000, 10_000, full=[100_000])
WORDS = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


def gpt2_is_here() -> bool:
    """Return whether tiktoken's cache folder has both files, under the names it gives them."""
    named = (os.environ.get(name) for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"))
    folder = next(filter(None, named), os.path.join(tempfile.gettempdir(), "data-gym-cache"))
    names = (hashlib.sha1((URL + name).encode()).hexdigest() for name in FILES)
    return all((Path(folder) / name).exists() for name in names)


@cache
def texts() -> tuple[list[str], list[str]]:
    """Return the texts to train vocabularies on and the texts to measure."""
    data = sample(seed=0, train=8000, test=2000)
    return list(data.test.texts), list(data.train.texts)


@cache
def tokenizer(spec: str) -> Tokenizer:
    return train_tokenizer(spec, texts()[0])


@cache
def inputs(length: int) -> list[tuple[str]]:
    """Return ROTATION texts of `length` words each."""
    words = " ".join(texts()[1]).split(" ")
    return [
        (" ".join(words[i * length : (i + 1) * length]),) for i in range(harness.ROTATION)
    ]  # fmt: skip


def encode(spec: str, text: str) -> np.ndarray:
    return tokenizer(spec).encode([text], 10**9)[0]


def tiktoken_encode(text: str) -> np.ndarray:
    import tiktoken

    return np.array(tiktoken.get_encoding("gpt2").encode_ordinary(text), np.int32)


def words_in_python(text: str) -> np.ndarray:
    """Tokenize as `word` does, with a regular expression and a dictionary."""
    vocabulary, t = vocabulary_of_words(), tokenizer("word:2000")
    ids = [vocabulary.get(word, t.unk_id) for word in WORDS.findall(text.lower())]
    return np.array([t.cls_id, *ids, t.sep_id], np.int32)


@cache
def vocabulary_of_words() -> dict[str, int]:
    words = {word for text in texts()[0] for word in WORDS.findall(text.lower())}
    t = tokenizer("word:2000")
    ids = {word: t.encode([word], 3)[0] for word in words}
    return {word: int(found[1]) for word, found in ids.items()}


CONTESTANTS = {
    "word, Python": Contestant(words_in_python, "host"),
    "word": Contestant(partial(encode, "word:2000"), "host"),
    "bpe": Contestant(partial(encode, "bpe:4096"), "host"),
    "gpt2": Contestant(partial(encode, "gpt2"), "host"),
    "gpt2, tiktoken": Contestant(tiktoken_encode, "host"),
}


def expected(name: str, length: int) -> list[np.ndarray] | None:
    """Return the ids of another implementation of the same vocabulary.

    bpe has no other implementation here. For it, check that its ids decode to the lower-cased text.
    """
    if name == "bpe":
        for (text,) in inputs(length):
            assert tokenizer("bpe:4096").decode(encode("bpe:4096", text)) == text.lower()
        return None
    if name.startswith("word"):
        return [words_in_python(text) for (text,) in inputs(length)]
    if name == "gpt2":
        t = tokenizer("gpt2")
        found = (tiktoken_encode(text) for (text,) in inputs(length))
        return [np.array([t.cls_id, *ids, t.sep_id]) for ids in found]
    return [encode("gpt2", text)[1:-1] for (text,) in inputs(length)]


@pytest.mark.parametrize(("length", "name"), harness.every(CONTESTANTS, LENGTHS, {}))
def test_encode(benchmark, length, name):
    if name.startswith("gpt2") and not gpt2_is_here():
        pytest.skip("tiktoken has not downloaded GPT-2's files on this machine")
    benchmark.group = f"tokenizers, {length} words"
    harness.run(
        benchmark,
        CONTESTANTS[name],
        inputs(length),
        flops=None,
        expected=expected(name, length),
        subject="tokenizers",
        implementation=name,
        length=length,
        bytes_moved=len(inputs(length)[0][0].encode()),
    )
