"""One function loads what a run folder or a published model holds."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.checkpoint_files import FOLDER
from tests.helpers.compiled import compiled
from tests.serialization.test_run_folder import MODELS, write
from transformer_jax.inference.classify import predict
from transformer_jax.inference.load import load
from transformer_jax.models.config import EncoderClassifierConfig, TextEncoderConfig
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained import PretrainedError, save_pretrained
from transformer_jax.runtime.errors import RunFolderError
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.tokenizer_formats import as_published

TEXTS = ["the film was good", "the film was bad"]
RUN_KINDS = {
    "TextClassifier": "classifier",
    "EncoderClassifier": "classifier",
    "MaskedLanguageModel": "masked",
    "LanguageModel": "language",
    "SequenceToSequence": "seq2seq",
}


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(("name", "kind"), RUN_KINDS.items())
def test_a_run_folder_of_every_kind_is_loaded(name, kind, asked, tmp_path):
    _, tokenizer, spec = write(tmp_path / "run", name)
    found = load(tmp_path / "run", kind if asked else None, dtype=jnp.bfloat16)
    assert (type(found.model), found.spec, found.published) == (MODELS[name], spec, None)
    assert found.tokenizer.to_files() == tokenizer.to_files()
    leaves = jax.tree.leaves(nnx.state(found.model, nnx.Param))
    assert {leaf.dtype.name for leaf in leaves} == {"bfloat16"}


@pytest.mark.parametrize("name", ["EncoderClassifier", "MaskedLanguageModel"])
def test_the_encoder_of_a_run_is_loaded_without_its_head(name, tmp_path):
    write(tmp_path / "run", name)
    assert type(load(tmp_path / "run", "encoder").model) is TextEncoder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A published classifier with its tokenizer, of random weights."""
    folder = tmp_path_factory.mktemp("published")
    tokenizer = as_published(train_tokenizer("bpe:270", TEXTS))
    stack = StackConfig(1, 8, 2, 12, norm_epsilon=1e-12, activation="gelu")
    config = EncoderClassifierConfig(TextEncoderConfig(tokenizer.vocab_size, 10, stack))
    model = EncoderClassifier(config, rngs=nnx.Rngs(0))
    save_pretrained(model, folder, tokenizer=tokenizer, classes=("bad", "good"))
    return model, folder


def test_a_published_classifier_predicts_its_own_classes(published):
    model, folder = published
    found = load(folder)
    assert (found.published, found.spec.classes) == (folder, ("bad", "good"))
    (row,) = found.tokenizer.encode(TEXTS[:1], found.spec.max_length)
    logits = np.asarray(compiled(model)(row[None], np.ones((1, len(row)), bool)))[0]
    (one,) = predict(found, TEXTS[:1])
    assert one.label == ("bad", "good")[int(logits.argmax())]
    right = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(list(one.probabilities.values()), right, atol=1e-6)


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_outputs_that_are_no_probabilities_of_classes_are_refused(problem, published, tmp_path):
    folder = shutil.copytree(published[1], tmp_path / "other")
    settings = json.loads((folder / "config.json").read_text()) | {"problem_type": problem}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(PretrainedError, match=f"a {problem} model with 2 outputs has no prob"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"label2id": {"bad": 1, "good": 0}}, "id2label gives 'bad' the number 0, label2id 1"),
        ({"label2id": ["bad", "good"]}, "label2id must be an object"),
        ({"id2label": {"0": "bad", "1": "bad"}}, "id2label must give each class its own name"),
        ({"id2label": {"0": "bad", "1": 3}}, "must be a string, got 3"),
    ],
)
def test_names_of_classes_that_contradict_are_a_line(changes, says, published, tmp_path):
    folder = shutil.copytree(published[1], tmp_path / "other")
    settings = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(PretrainedError, match=says) as told:
        load(folder)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("numbers", [None, {}, {"LABEL_0": 0, "LABEL_1": 1}])
def test_numbers_of_other_names_than_those_of_the_classes_say_nothing(numbers, published, tmp_path):
    """Published files keep the default label2id beside names of their own."""
    folder = shutil.copytree(published[1], tmp_path / "other")
    settings = json.loads((folder / "config.json").read_text()) | {"label2id": numbers}
    (folder / "config.json").write_text(json.dumps(settings))
    assert load(folder).spec.classes == ("bad", "good")


def test_a_published_encoder_has_the_specification_of_one(published):
    found = load(published[1], "encoder")
    assert type(found.model) is TextEncoder
    assert (found.spec.model, found.spec.config) == ("TextEncoder", found.model.config)


@pytest.mark.parametrize(
    ("source", "kind", "error", "says"),
    [
        (FOLDER / "bert", "sentence", ValueError, "kind must be one of classifier, language"),
        (FOLDER / "bert", "language", PretrainedError, "a bert model does not generate text"),
        (FOLDER / "bert", "seq2seq", RunFolderError, "is not a run folder: it has no tokenizer"),
        (FOLDER / "nowhere", "classifier", RunFolderError, "has no config.json"),
        (FOLDER / "nowhere", None, RunFolderError, "has no config.json"),
        (FOLDER / "nowhere", "masked", PretrainedError, "is not a folder"),
    ],
)
def test_what_is_not_there_is_one_line(source, kind, error, says):
    with pytest.raises(error, match=says) as raised:
        load(source, kind)
    assert "\n" not in str(raised.value)


def test_a_masked_model_is_not_another_kind_of_run(tmp_path):
    write(tmp_path / "run", "LanguageModel")
    with pytest.raises(PretrainedError, match="which is not of the kind 'masked'"):
        load(tmp_path / "run", "masked")
