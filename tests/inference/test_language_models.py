"""Published language models write by the commands: their own tokens, their own frame, their own
end.
"""

from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from tests.helpers.checkpoint_files import FOLDER
from tests.helpers.compiled import compiled
from transformer_jax.__main__ import main
from transformer_jax.inference import text_generator
from transformer_jax.inference.load import load
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained import hub, save_pretrained
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer

TOKENIZERS = Path(__file__).parents[1] / "data" / "tokenizers"
STACKS = {
    "gpt2": StackConfig(1, 8, 2, 16, norm="pre", final_norm=True, activation="gelu_tanh"),
    "llama": StackConfig(
        1, 8, 2, 16, norm="pre", final_norm=True, norm_kind="rms", activation="swiglu",
        biases=False, dropout_rate=0.0,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=STACKS)
def published(request, tmp_path_factory):
    """(family, folder) of a tiny model of random weights with a real tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = load_pretrained_tokenizer(TOKENIZERS / request.param, request.param)
    positions = "learned" if request.param == "gpt2" else "rotary"
    config = LanguageModelConfig(
        tokenizer.vocab_size, 300, STACKS[request.param], positions=positions
    )
    model = LanguageModel(config, rngs=nnx.Rngs(0))
    save_pretrained(model, folder, tokenizer=tokenizer)
    return request.param, folder


def test_a_prompt_has_the_frame_of_its_family_and_a_text_its_end(published):
    family, folder = published
    trained = load(folder, "language")
    tokenizer = trained.tokenizer
    ids = tokenizer.prompt("Hello there", framed=trained.spec.framed)
    pieces = tokenizer.pieces(["Hello there"])[0]
    right = pieces if family == "gpt2" else [tokenizer.bos_id, *pieces]
    np.testing.assert_array_equal(ids, right)
    assert tokenizer.end_id == tokenizer.eos_id is not None


def test_generate_prints_the_greedy_text(published, capsys):
    _, folder = published
    assert main(["generate", str(folder), "Hello", "--greedy", "--tokens", "3"]) == 0
    trained = load(folder, "language")
    ids = trained.tokenizer.prompt("Hello")
    logits_of, written = compiled(trained.model), []
    for left in (3, 2, 1):  # what stands behind the last token is not seen by it
        row = np.asarray(logits_of(np.array([[*ids, *written, *[0] * left]])))[0, -1 - left]
        written.append(int(row.argmax()))
    # What is no whole character yet is not printed.
    text = trained.tokenizer.decode([*ids.tolist(), *written]).rstrip("\ufffd")
    assert text.startswith("Hello") and text != "Hello"
    assert capsys.readouterr().out == f"{text}\n"


def test_it_writes_256_tokens_unless_told(published, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(text_generator, "stream", lambda *_, **how: asked.append(how) or [])
    assert main(["generate", str(published[1]), "Hello"]) == 0
    assert [how["max_tokens"] for how in asked] == [256]


def test_next_prints_tokens_as_they_stand_in_a_text(published, capsys):
    assert main(["next", str(published[1]), "Hello there", "--count", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and not any("Ġ" in line or "▁" in line for line in lines)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (str(FOLDER / "bert"), "a bert model does not generate text; GPT-2 and Llama do"),
        ("./nowhere", "is not a folder; pass one that holds config.json"),
        ("runs/nowhere", "is not a folder; pass one that holds config.json"),
        ("nobody/nothing", "is not in the local cache and"),
    ],
)
def test_what_does_not_write_is_one_line(source, says, capsys, monkeypatch):
    monkeypatch.setattr(hub, "_silence", lambda name: "no answer")
    assert main(["generate", source, "Hello"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line


def test_rows_of_the_table_that_are_no_tokens_end_nothing(tmp_path, capsys):
    """Published tables are longer than their vocabularies."""
    tokenizer = load_pretrained_tokenizer(TOKENIZERS / "gpt2", "gpt2")
    config = LanguageModelConfig(tokenizer.vocab_size + 3000, 300, STACKS["gpt2"])
    model = LanguageModel(config, rngs=nnx.Rngs(0))
    save_pretrained(model, tmp_path, tokenizer=tokenizer)
    assert main(["next", str(tmp_path), "Hello", "--count", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 50 and any(line.endswith(">'") for line in lines)
    assert main(["generate", str(tmp_path), "Hello", "--tokens", "20", "--temperature", "3"]) == 0
    assert capsys.readouterr().out.startswith("Hello")
