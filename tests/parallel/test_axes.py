"""Every parameter of every model has its axes by exactly one rule."""

import itertools
import re

import pytest
from flax import nnx

from tests.helpers.checkpoint_files import FOLDER, NAMES
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
from transformer_jax.nn.lora import Lora
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.parallel.axes import RULES, axes_of, named_parameters
from transformer_jax.pretrained.family import family_of
from transformer_jax.pretrained.files import Settings, tensors_of
from transformer_jax.pretrained.loading import MODELS

STACK = StackConfig(1, 8, 2, 12)
ROTARY = StackConfig(
    1, 8, 2, 12, num_kv_heads=1, norm="pre", final_norm=True, norm_kind="rms", activation="swiglu",
    qkv_biases=True, head_norm=True,
)  # fmt: skip
REGIONS = {"region_width": 3, "region_features": 4, "patch_width": 2, "ngrams": 2, "ngram_bits": 4}
# Between them they have every parameter that a configuration can ask for.
OWN = [
    (TextClassifier, ClassifierConfig(13, 10, 3, STACK)),
    (TextClassifier, ClassifierConfig(13, 10, 2, STACK, **REGIONS)),
    (LanguageModel, LanguageModelConfig(13, 10, STACK)),
    (LanguageModel, LanguageModelConfig(13, 10, ROTARY, positions="rotary", tied_head=False)),
    (SequenceToSequence, SequenceToSequenceConfig(13, 10, STACK, STACK)),
    (MaskedLanguageModel, TextEncoderConfig(13, 10, STACK)),
    (MaskedLanguageModel, TextEncoderConfig(13, 10, STACK, tied_head=False)),
    (EncoderClassifier, EncoderClassifierConfig(TextEncoderConfig(13, 10, STACK), ngrams=2)),
]


def published(name):
    """The class and the configuration of every kind of model that a checkpoint can be read as."""
    settings = Settings(FOLDER / name / "config.json")
    family, found = family_of(settings), set(tensors_of(FOLDER / name))
    names = {name.removeprefix(family.PREFIX) for name in found}
    for kind in sorted(set(family.ARCHITECTURES.values())):
        yield MODELS[kind], family.read_config(settings, kind, names)


def parameters(model, config):
    """The names and the shapes of the parameters of a model, alone and with LoRA."""

    def both():
        plain = model(config, rngs=AbstractRngs())
        return plain, Lora(model(config, rngs=AbstractRngs()), 2, rngs=AbstractRngs())

    for made in nnx.eval_shape(both):
        for name, leaf in named_parameters(nnx.state(made, nnx.Param)):
            yield name, leaf.shape


@pytest.fixture(scope="module")
def every():
    """Every parameter of every model of this library and of every pretrained family."""
    models = itertools.chain(OWN, *map(published, NAMES))
    return {one for model, config in models for one in parameters(model, config)}


def test_every_parameter_of_every_model_matches_exactly_one_rule(every):
    assert len(every) > 300
    for name, shape in every:
        assert len(axes_of(name, len(shape))) == len(shape)


def test_every_rule_is_for_a_parameter(every):
    for pattern, axes in RULES:
        count = None if axes == "..." else len(axes.split())
        matched = [n for n, s in every if re.fullmatch(pattern, n) and count in (None, len(s))]
        assert matched, pattern


@pytest.mark.parametrize(("name", "ndim"), [("encoder.mystery", 2), ("head.kernel", 3)])
def test_a_parameter_without_a_rule_is_an_error_of_one_line(name, ndim):
    message = rf"{name}, a parameter with {ndim} axes, matches no rules"
    with pytest.raises(ValueError, match=message) as error:
        axes_of(name, ndim)
    assert "\n" not in str(error.value)
