"""Every tokenizer has the same interface, and its files give it back."""

from pathlib import Path

import numpy as np
import pytest

from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.tokenizer_formats import TOKENIZER_FORMATS, as_published
from transformer_jax.text.tokenizer_protocol import TextTokenizer, special_id

FOLDER = Path(__file__).parents[1] / "data" / "tokenizers"
TEXTS = ["the film was good", "the sea is a good place, and the film is long"]
LEARNED = ("word:40", "bpe:300", "char")
PUBLISHED = ("wordpiece", "gpt2", "roberta", "unigram", "llama")


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, TextTokenizer]:
    learned = {spec: train_tokenizer(spec, TEXTS, lossless=spec == "bpe:300") for spec in LEARNED}
    types = {"wordpiece": "bert"}
    published = {
        kind: load_pretrained_tokenizer(FOLDER / kind, types.get(kind, kind)) for kind in PUBLISHED
    }
    return learned | published | {"as published": as_published(learned["bpe:300"])}


@pytest.mark.parametrize("kind", [*LEARNED, *PUBLISHED, "as published"])
def test_a_tokenizer_has_the_interface(tokenizers, kind):
    assert isinstance(tokenizers[kind], TextTokenizer)


@pytest.mark.parametrize("kind", [*LEARNED, *PUBLISHED, "as published"])
def test_its_files_give_the_tokenizer_back(tokenizers, kind, tmp_path):
    tokenizer = tokenizers[kind]
    for name, content in tokenizer.to_files().items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    again = TOKENIZER_FORMATS["learned" if kind in LEARNED else "published"].load(tmp_path)
    assert again.spec == tokenizer.spec
    assert again.to_files() == tokenizer.to_files()
    for one, other in zip(again.encode(TEXTS, 9), tokenizer.encode(TEXTS, 9), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["bpe:300", "char", "gpt2", "llama"])
def test_a_continuation_is_what_the_text_has_behind_its_prompt(tokenizers, kind):
    tokenizer = tokenizers[kind]
    prompt = tokenizer.prompt("the film", framed=True)
    (ids,) = tokenizer.pieces(["the film was good"])
    frame = {tokenizer.cls_id, getattr(tokenizer, "bos_id", None)}
    known = sum(token_id not in frame for token_id in prompt.tolist())
    assert tokenizer.continuation(prompt, ids[known:].tolist()) == " was good"


@pytest.mark.parametrize("kind", LEARNED)
def test_the_frame_of_a_prompt_is_that_of_the_training_texts(tokenizers, kind):
    tokenizer = tokenizers[kind]
    (bare,) = tokenizer.pieces(["the film"])
    np.testing.assert_array_equal(tokenizer.prompt("the film", framed=False), bare)
    framed = tokenizer.prompt("the film", framed=True)
    np.testing.assert_array_equal(framed, [tokenizer.cls_id, *bare])


def test_a_spare_row_of_a_published_table_is_spelled_by_its_number(tokenizers):
    tokenizer = tokenizers["gpt2"]
    assert tokenizer.spell(tokenizer.vocab_size + 3) == f"<{tokenizer.vocab_size + 3}>"
    assert tokenizer.spell(tokenizer.id_of("Ġthe")) == " the"


def test_a_special_token_that_is_needed_and_not_there_is_one_line(tokenizers):
    assert special_id(tokenizers["llama"], "pad") == tokenizers["llama"].eos_id
    with pytest.raises(TokenizerError, match=r"^the vocabulary of bpe:\d+ has no mask token$"):
        special_id(tokenizers["gpt2"], "mask")
