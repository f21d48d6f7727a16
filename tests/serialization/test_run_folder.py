"""A run folder gives back the model, tokenizer and specification that it was written from."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

import transformer_jax as tj
from tests.helpers.run_folders import save_run
from train.trainer.folder_lock import held
from transformer_jax.__main__ import main
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.runtime.errors import RunFolderError, UnfinishedWarning
from transformer_jax.serialization.run_folder import (
    KINDS,
    load_model,
    save_weights,
    steps_taken,
)
from transformer_jax.serialization.specification import (
    ClassifierSpec,
    EncoderClassifierSpec,
    LanguageModelSpec,
    MaskedLanguageModelSpec,
    TranslatorSpec,
)
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.tokenizer_formats import as_published

TEXTS = ["the film was good", "the sea is a good place, and the film is long"]
STACK = StackConfig(1, 4, 2, 8, dropout_rate=0.0)
CLASSES = ("bad", "good")


def text(size):
    return TextEncoderConfig(size, 16, STACK)


SPECS = {
    "TextClassifier": lambda size: ClassifierSpec(
        ClassifierConfig(size, 16, encoder=STACK), CLASSES, "head-tail", "reviews.csv"
    ),
    "EncoderClassifier": lambda size: EncoderClassifierSpec(
        EncoderClassifierConfig(text(size)), CLASSES, "head", "reviews.csv", 16
    ),
    "MaskedLanguageModel": lambda size: MaskedLanguageModelSpec(text(size), "reviews.csv", 0),
    "LanguageModel": lambda size: LanguageModelSpec(
        LanguageModelConfig(size, 16, STACK), "reviews.csv", True
    ),
    "SequenceToSequence": lambda size: TranslatorSpec(
        SequenceToSequenceConfig(size, 16, STACK, STACK), "en", "de", "pairs.csv"
    ),
}
MODELS = {
    "TextClassifier": TextClassifier,
    "EncoderClassifier": EncoderClassifier,
    "MaskedLanguageModel": MaskedLanguageModel,
    "LanguageModel": LanguageModel,
    "SequenceToSequence": SequenceToSequence,
}


def tokenizer_of(kind):
    learned = train_tokenizer("bpe:270", TEXTS)
    return as_published(learned) if KINDS[kind].tokenizer == "published" else learned


def write(folder, kind, spare=0):
    """A run folder of random weights, whose table has `spare` rows that are no tokens."""
    folder.mkdir()
    tokenizer = tokenizer_of(kind)
    spec = SPECS[kind](tokenizer.vocab_size + spare)
    shapes = nnx.state(nnx.eval_shape(lambda: MODELS[kind](spec.config, rngs=AbstractRngs())))
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), shapes)
    save_run(folder, params, tokenizer, spec)
    return params, tokenizer, spec


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_comes_back(kind, tmp_path):
    params, tokenizer, spec = write(tmp_path / "run", kind)
    found = load_model(tmp_path / "run", kind)
    assert (type(found.model), found.spec, found.published) == (MODELS[kind], spec, None)
    assert found.tokenizer.to_files() == tokenizer.to_files()
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found.model, nnx.Param), params)


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_published_table_may_have_rows_that_are_no_tokens(kind, tmp_path):
    write(tmp_path / "run", kind, spare=3)
    if KINDS[kind].tokenizer == "published":
        assert load_model(tmp_path / "run", kind)
        return
    with pytest.raises(RunFolderError, match="they are of different runs"):
        load_model(tmp_path / "run", kind)


def test_a_folder_of_another_kind_says_which_command_uses_it(tmp_path):
    write(tmp_path / "run", "LanguageModel")
    with pytest.raises(RunFolderError, match=r"holds a LanguageModel.*transformer_jax generate"):
        load_model(tmp_path / "run", "TextClassifier", "EncoderClassifier")


def test_a_configuration_without_a_model_is_a_classifier(tmp_path):
    """A run folder as the first version wrote it."""
    write(tmp_path / "run", "TextClassifier")
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    del content["model"]
    path.write_text(json.dumps(content))
    assert isinstance(load_model(tmp_path / "run", "TextClassifier").model, TextClassifier)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_a_stopped_training_is_loaded_with_a_warning(kind, tmp_path):
    run = tmp_path / "run"
    params, _, _ = write(run, kind)
    assert steps_taken(run / "model.safetensors") is None
    save_weights(run / "model.safetensors", params, (120, 2000))
    with pytest.warns(UnfinishedWarning, match=r"stopped after step 120 of 2,000; --resume"):
        load_model(run)
    if kind == "MaskedLanguageModel":
        with pytest.warns(UnfinishedWarning):
            tj.load(run, "encoder")


def test_a_command_says_that_training_was_stopped(tmp_path, capsys):
    shutil.copytree(Path(__file__).parents[1] / "data/run_folders/imdb", tmp_path / "run")
    weights = tmp_path / "run" / "model.safetensors"
    save_file(load_file(weights), weights, {"step": "120", "steps": "2000"})
    assert main(["explain", str(tmp_path / "run"), "a fine film"]) == 0
    said = f"note: training of {tmp_path}/run stopped after step 120 of 2,000; --resume"
    assert capsys.readouterr().err.startswith(f"{said} continues it\n")
    training = pytest.warns(UnfinishedWarning, match=r"is training, .* after step 120 of 2,000")
    with held(tmp_path / "run", new=False), training:
        load_model(tmp_path / "run")
