"""Claims about token ids outside the embedding table: one line wherever a model would give NaN."""

import json
import shutil
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.checkpoint_files import FOLDER
from tests.helpers.modules import drawn
from tests.inference.test_embed import tiny  # noqa: F401 (a fixture)
from tests.nn.test_kv_cache import model_of
from tests.serialization.test_run_folder import write
from transformer_jax.__main__ import main
from transformer_jax.generation.generate import generate, generate_target, next_tokens, stream
from transformer_jax.inference.classify import predict
from transformer_jax.inference.embed import SentenceEncoder
from transformer_jax.inference.fill_mask import fill_masks
from transformer_jax.inference.load import load
from transformer_jax.inference.sentence_files import Pooling
from transformer_jax.interpret.explain import explain
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained import from_pretrained, save_pretrained, tokenizer_of
from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.serialization.run_folder import load_model
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer

SAYS = r"the token '\[NEW\]' of a text has the id 97, but the model embeds 97 of the 98 tokens"
STACK = StackConfig(1, 8, 2, 12)


@pytest.fixture
def spare(tiny, tmp_path):  # noqa: F811
    """Folders of an encoder, a masked model and a classifier: a token beyond the table of each."""
    for name in ("bert-old", "bert", "bert-classifier"):
        shutil.copytree(tiny, tmp_path / name)
        for file in ("config.json", "model.safetensors"):
            shutil.copy(FOLDER / name / file, tmp_path / name)
        settings = {"extra_special_tokens": ["[NEW]"]}
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_commands_refuse_a_text_with_such_a_token(spare, capsys):
    (spare / "plain.txt").write_text("a man eats\n")
    (spare / "texts.txt").write_text("a man eats\na [NEW] film\n")
    encoder, out = str(spare / "bert-old"), spare / "x.npy"
    assert main(["embed", encoder, str(spare / "plain.txt"), "-o", str(out)]) == 0
    assert np.isfinite(np.load(out)).all()
    out.unlink()
    for arguments in (
        ["embed", encoder, str(spare / "texts.txt"), "-o", str(out)],
        ["similar", encoder, "a man", str(spare / "texts.txt")],
        ["fill", str(spare / "bert"), "a [NEW] [MASK]"],
    ):
        capsys.readouterr()
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "'[NEW]'" in line and "97 of the 98" in line
    assert not out.exists()


def test_python_calls_refuse_a_text_with_such_a_token(spare):
    classifier = load(spare / "bert-classifier", "classifier")
    assert np.isfinite(predict(classifier, ["a man"])[0].probability)
    model = from_pretrained(spare / "bert-old", kind="encoder")
    masked = from_pretrained(spare / "bert", kind="masked")
    whole = load_pretrained_tokenizer(spare / "bert-old")
    for call in (
        lambda: predict(classifier, ["a man", "a [NEW]"]),
        lambda: explain(classifier, "a [NEW]"),
        lambda: tokenizer_of(spare / "bert-old")(["a [NEW]"]),
        lambda: SentenceEncoder.load(spare / "bert-old")(["a [NEW]"]),
        lambda: SentenceEncoder(model, whole, Pooling())(["a [NEW]"]),
        lambda: fill_masks(masked, whole, "a [NEW] [MASK]"),
    ):
        with pytest.raises(TokenizerError, match=SAYS):
            call()


def test_a_language_model_refuses_such_a_prompt(tmp_path, capsys):
    source = FOLDER.parent / "tokenizers" / "gpt2"
    tokenizer = load_pretrained_tokenizer(source, "gpt2")
    stack = StackConfig(1, 8, 2, 16, norm="pre", final_norm=True, activation="gelu_tanh")
    config = LanguageModelConfig(tokenizer.vocab_size, 30, stack)
    model = drawn(lambda rngs: LanguageModel(config, rngs=rngs))
    save_pretrained(model, tmp_path, tokenizer=tokenizer)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {
        "pad_token": "[PAD]",
        "extra_special_tokens": ["<n>"],
    }
    path.write_text(json.dumps(settings))
    size = tokenizer.vocab_size
    # The padding token is beyond the table too; the end of a text pads instead.
    assert main(["generate", str(tmp_path), "Hello", "--tokens", "2"]) == 0
    for arguments in (["generate", str(tmp_path), "Hi <n>", "--tokens", "2"],
                      ["next", str(tmp_path), "Hi <n>"]):  # fmt: skip
        capsys.readouterr()
        assert main(arguments) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"has the id {size + 1}, but the model embeds {size} of the {size + 2}" in line


def test_a_run_folder_with_such_a_token_is_used(tmp_path):
    _, tokenizer, spec = write(tmp_path / "run", "EncoderClassifier")
    path = tmp_path / "run" / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"extra_special_tokens": ["[NEW]"]}
    path.write_text(json.dumps(settings))
    found = load_model(tmp_path / "run")
    assert found.tokenizer.vocab_size == tokenizer.vocab_size + 1
    assert np.isfinite(predict(found, ["good"])[0].probability)
    with pytest.raises(TokenizerError, match=r"the token '\[NEW\]' of a text has the id"):
        predict(found, ["good [NEW]"])
    with pytest.raises(TokenizerError, match=r"the token '\[NEW\]' of a text has the id"):
        tokenizer_of(tmp_path / "run")(["good [NEW]"])
    assert spec.config.vocab_size == tokenizer.vocab_size


# Raw ids
# ----------------------------------------------------------------------------------------------

ROWS = 11
TEXT = TextEncoderConfig(ROWS, 6, STACK)


def made(kind, config):
    return drawn(lambda rngs: kind(config, rngs=rngs))


@cache
def calls():
    """Return a call of each model with ids [1, 3], by the name of the argument and the model."""
    real = jnp.array([[True, True, False]])
    seq2seq = made(SequenceToSequence, SequenceToSequenceConfig(ROWS, 6, STACK, STACK))
    encoder = made(TextEncoder, TEXT)
    classifier = made(EncoderClassifier, EncoderClassifierConfig(TEXT))
    scratch = made(TextClassifier, ClassifierConfig(ROWS, 6, encoder=STACK))
    language = made(LanguageModel, LanguageModelConfig(ROWS, 6, STACK))
    good = jnp.array([[1, 2, 3]])
    return {
        "tokens of an encoder": lambda ids: encoder(ids, real),
        "segments": lambda ids: encoder(good, real, segments=ids),
        "tokens of a classifier": lambda ids: classifier(ids, real),
        "tokens of a classifier from scratch": lambda ids: scratch(ids, real),
        "tokens of a language model": lambda ids: language(ids, real),
        "source": lambda ids: seq2seq(ids, real, good, real),
        "target": lambda ids: seq2seq(good, real, ids, real),
    }


@pytest.mark.parametrize("name", calls())
def test_a_model_refuses_concrete_ids_and_ignores_padding(name):
    call = calls()[name]
    rows = 2 if name == "segments" else ROWS
    for wrong in (rows, -1, 10**6):
        says = rf"{name.split()[0]} must be ids from 0 to {rows - 1}, .* got {wrong}"
        with pytest.raises(ValueError, match=says):
            call(jnp.array([[0, wrong, 0]]))
    assert jax.eval_shape(call, jnp.array([[0, 1, 10**6]]))


@pytest.mark.usefixtures("as_users_run_it")
def test_ids_that_are_no_integers_are_named():
    for name, call in calls().items():
        with pytest.raises(TypeError, match=rf"{name.split()[0]} must be integers; got float32"):
            call(jnp.array([[0.0, 1.0, 0.0]]))


def test_padding_may_hold_any_id():
    """Ids that are known when a call is compiled are looked at."""
    encoder = made(TextEncoder, TEXT)
    padded = jnp.array([[3, 4, -100]]), jnp.array([[True, True, False]])
    found = jax.jit(lambda: encoder(*padded))()
    alone = jax.jit(encoder)(np.array([[3, 4]]), np.array([[True, True]]))
    np.testing.assert_allclose(found[0, :2], alone[0], atol=1e-6)


def test_traced_ids_give_nan():
    encoder = made(TextEncoder, TEXT)
    real = jnp.array([[True, True]])
    found = jax.jit(lambda ids: encoder(ids, real))(jnp.array([[3, ROWS]]))
    assert np.isnan(np.asarray(found)[0, 1]).all()


def test_generation_refuses_ids_outside_the_vocabulary():
    model = model_of("learned")
    V = model.config.vocab_size
    prompt = np.array([[1, 2]])
    for wrong in (V, -1):
        for call in (
            lambda wrong=wrong: generate(model, np.array([[1, wrong]]), max_tokens=2),
            lambda wrong=wrong: next(stream(model, np.array([[1, wrong]]), max_tokens=2)),
            lambda wrong=wrong: next_tokens(model, jnp.array([[1, wrong]])),
        ):
            with pytest.raises(ValueError, match=f"tokens must be ids from 0 to {V - 1}.*{wrong}"):
                call()
        with pytest.raises(ValueError, match=f"there is no token {wrong} to pad with"):
            generate(model, prompt, max_tokens=2, pad_id=wrong)
        with pytest.raises(ValueError, match=f"there is no token {wrong} to stop at"):
            generate(model, prompt, max_tokens=2, stop=(wrong,))
    seq2seq = made(SequenceToSequence, SequenceToSequenceConfig(ROWS, 6, STACK, STACK))
    source, real = np.array([[1, ROWS]]), np.ones((1, 2), bool)
    with pytest.raises(ValueError, match=f"source must be ids from 0 to {ROWS - 1}.*{ROWS}"):
        generate_target(seq2seq, source, real, begin=1, max_tokens=2)
    with pytest.raises(ValueError, match="there is no token -1 to pad with"):
        generate_target(seq2seq, source[:, :1], real[:, :1], begin=1, max_tokens=2, pad_id=-1)
