"""The byte order marks of a published model's files: none reaches a name, a token or an id."""

import json
import shutil
from pathlib import Path

import pytest

from transformer_jax.pretrained.files import Settings
from transformer_jax.runtime.errors import PretrainedError, TokenizerError
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import load_tokenizer, train_tokenizer

FOLDER = Path(__file__).parents[1] / "data" / "tokenizers"
TEXTS = ["The film was  fine, not dull!", "[PAD] naïve"]


def copied(kind: str, tmp_path: Path) -> Path:
    folder = tmp_path / kind
    shutil.copytree(FOLDER / kind, folder)
    kinds = {"wordpiece": "bert", "unigram": "xlm-roberta"}
    (folder / "config.json").write_text(json.dumps({"model_type": kinds.get(kind, kind)}))
    return folder


def rewrite(folder: Path, encoding: str) -> None:
    for path in (path for path in folder.iterdir() if path.suffix in (".json", ".txt")):
        path.write_text(path.read_text(encoding="utf-8"), encoding=encoding)


@pytest.mark.parametrize("kind", ["wordpiece", "gpt2", "roberta", "unigram", "llama"])
def test_files_with_a_byte_order_mark_give_the_same_ids(kind, tmp_path):
    folder = copied(kind, tmp_path)
    before = load_pretrained_tokenizer(folder)
    rewrite(folder, "utf-8-sig")
    after = load_pretrained_tokenizer(folder)
    assert after.vocab_size == before.vocab_size
    assert after(TEXTS).tokens.tolist() == before(TEXTS).tokens.tolist()
    assert Settings(folder / "config.json").values["model_type"]


@pytest.mark.parametrize("kind", ["wordpiece", "gpt2", "unigram"])
def test_files_in_utf16_are_one_line_that_says_how_to_convert_them(kind, tmp_path):
    folder = copied(kind, tmp_path)
    rewrite(folder, "utf-16")
    with pytest.raises(TokenizerError, match=r"is UTF-16; convert it to UTF-8"):
        load_pretrained_tokenizer(folder)
    with pytest.raises(PretrainedError, match=r"config.json is UTF-16; convert it to UTF-8"):
        Settings(folder / "config.json")


def test_a_trained_tokenizer_with_a_byte_order_mark_is_the_same(tmp_path):
    tokenizer = train_tokenizer("word:20", TEXTS)
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), encoding="utf-8-sig")
    assert load_tokenizer(path).to_json() == tokenizer.to_json()
