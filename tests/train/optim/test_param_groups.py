"""Every parameter of every model has its group, listed by name: what decays, what Muon moves, what
neither touches.
"""

import jax
import pytest
from flax import nnx

from train.optim.optimizers import decayed, matrices
from train.optim.param_groups import group_of, param_groups
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
from transformer_jax.parallel.axes import parameter_name

STACK = StackConfig(1, 12, 2, 24, norm="pre", final_norm=True)
GATED = StackConfig(
    1,
    12,
    2,
    24,
    norm="pre",
    final_norm=True,
    norm_kind="rms",
    activation="swiglu",
    biases=False,
    head_norm=True,
)


def attention(of="attention"):
    kernels = {f"{of}.{part}_kernel": "matrix" for part in ("query", "key", "value", "out")}
    biases = {f"{of}.{part}_bias": "bias" for part in ("query", "key", "value", "out")}
    return kernels | biases | norm(f"{of}_norm")


def norm(name):
    return {f"{name}.scale": "scale", f"{name}.bias": "bias"}


def under(prefix, names):
    return {f"{prefix}.{name}": group for name, group in names.items()}


LAYER = attention() | {
    "feed_forward.in_kernel": "matrix", "feed_forward.out_kernel": "matrix",
    "feed_forward.in_bias": "bias", "feed_forward.out_bias": "bias",
} | norm("feed_forward_norm")  # fmt: skip
ENCODER = under("layers.0", LAYER) | norm("final_norm")
DECODER = under("layers.0", LAYER | attention("cross_attention")) | norm("final_norm")
LINEAR = {"kernel": "kernel", "bias": "bias"}
HEAD = {"head.kernel": "head", "head.bias": "bias"}
TEXT = (
    {f"embedding.{kind}.embedding": "table" for kind in ("token", "position", "segment")}
    | norm("embedding.norm")
    | under("encoder", ENCODER)
)

MODELS = {
    "classifier": (
        lambda: TextClassifier(ClassifierConfig(11, 8, encoder=STACK), rngs=nnx.Rngs(0)),
        TEXT | HEAD,
    ),
    "classifier of patches": (
        lambda: TextClassifier(
            ClassifierConfig(
                11, 8, encoder=STACK, region_features=5, region_width=3, patch_width=2
            ),
            rngs=nnx.Rngs(0),
        ),
        {"embedding.position.embedding": "table", "regions.region.embedding": "table"}
        | {"regions.bias": "bias"}
        | norm("embedding.norm")
        | under("embedding.projection", LINEAR)
        | under("encoder", ENCODER)
        | HEAD,
    ),
    "classifier with n-grams": (
        lambda: TextClassifier(
            ClassifierConfig(11, 8, encoder=STACK, ngrams=2, ngram_bits=4), rngs=nnx.Rngs(0)
        ),
        TEXT
        | HEAD
        | {f"evidence.{name}": "table" for name in ("weight", "square")}
        | {"evidence.bias": "bias"},
    ),
    "language model": (
        lambda: LanguageModel(LanguageModelConfig(11, 8, STACK, tied_head=False), rngs=nnx.Rngs(0)),
        {"embedding.token.embedding": "table", "embedding.position.embedding": "table"}
        | under("decoder", ENCODER)
        | {"head.kernel": "head"},
    ),
    "gated language model": (
        lambda: LanguageModel(
            LanguageModelConfig(11, 8, GATED, positions="rotary"), rngs=nnx.Rngs(0)
        ),
        {"embedding.token.embedding": "table", "decoder.final_norm.scale": "scale"}
        | under(
            "decoder.layers.0",
            {f"attention.{part}_kernel": "matrix" for part in ("query", "key", "value", "out")}
            | {f"attention.{part}_norm.scale": "scale" for part in ("query", "key")}
            | {f"feed_forward.{part}_kernel": "matrix" for part in ("in", "gate", "out")}
            | {"attention_norm.scale": "scale", "feed_forward_norm.scale": "scale"},
        ),
    ),
    "encoder-decoder": (
        lambda: SequenceToSequence(
            SequenceToSequenceConfig(11, 8, encoder=STACK, decoder=STACK), rngs=nnx.Rngs(0)
        ),
        {"embedding.token.embedding": "table"}
        | under("encoder", ENCODER)
        | under("decoder", DECODER),
    ),
    "masked language model": (
        lambda: MaskedLanguageModel(TextEncoderConfig(11, 8, STACK, pooler=True), rngs=nnx.Rngs(0)),
        under("text", TEXT | under("pooler", LINEAR))
        | under("head", {"bias": "bias"} | under("linear", LINEAR) | norm("norm")),
    ),
    "encoder classifier": (
        lambda: EncoderClassifier(
            EncoderClassifierConfig(TextEncoderConfig(11, 8, STACK)), rngs=nnx.Rngs(0)
        ),
        under("text", TEXT) | under("linear", LINEAR) | HEAD,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_its_group(name):
    make, expected = MODELS[name]
    assert param_groups(nnx.eval_shape(make)) == expected


@pytest.mark.parametrize("name", MODELS)
def test_decay_and_muon_go_by_the_groups(name):
    params = nnx.state(nnx.eval_shape(MODELS[name][0]), nnx.Param)
    expected = MODELS[name][1]
    decays = dict(_named(decayed(params)))
    assert {key for key, value in decays.items() if value} == {
        key for key, group in expected.items() if group in ("matrix", "kernel", "head")
    }
    muon = {key for key, _ in _named(matrices(params))}
    assert muon == {key for key, group in expected.items() if group == "matrix"}


def test_the_factors_of_lora_neither_decay_nor_are_muons():
    model = EncoderClassifier(
        EncoderClassifierConfig(TextEncoderConfig(11, 8, STACK)), rngs=nnx.Rngs(0)
    )
    groups = param_groups(Lora(model, 2, rngs=nnx.Rngs(0)))
    assert {key for key, group in groups.items() if group == "factor"} == {
        f"factors.text.encoder.layers.0.{name}.{side}"
        for name, group in LAYER.items()
        if group == "matrix"
        for side in "ab"
    }


def test_a_parameter_that_no_rule_knows_is_refused():
    with pytest.raises(ValueError, match="no group"):
        group_of("encoder.layers.0.gate")


def _named(tree):
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {parameter_name(path): leaf for path, leaf in flat}.items()
