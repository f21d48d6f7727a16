"""The dtypes of whole models: any floating dtype in any parameter, any integers as tokens.

All is traced under strict promotion, where a conversion that is not written raises an error.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.generation.beam_search import BeamSearch
from transformer_jax.generation.generate import Generated, generate, generate_target, next_tokens
from transformer_jax.generation.sampling import Sampling
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

# The checks of signatures in tests take no int8.
pytestmark = pytest.mark.usefixtures("as_users_run_it")

B, T, V, LENGTH = 2, 5, 11, 16
DTYPES = ("float16", "bfloat16", "float32", "float64")
STACK = StackConfig(num_layers=1, embed_dim=12, num_heads=2, hidden_dim=16)
TEXTS = TextEncoderConfig(V, LENGTH, encoder=STACK)
MODELS = {
    **{
        positions: (LanguageModel, LanguageModelConfig(V, LENGTH, STACK, positions=positions))
        for positions in ("learned", "sinusoidal", "rotary", "alibi")
    },
    "llama": (
        LanguageModel,
        LanguageModelConfig(
            V, LENGTH, positions="rotary", window=2, tied_head=False,
            decoder=StackConfig(
                num_layers=1, embed_dim=12, num_heads=2, hidden_dim=16, num_kv_heads=1,
                norm_kind="rms", norm="pre", activation="swiglu", head_norm=True,
            ),
        ),
    ),
    "sequence to sequence": (
        SequenceToSequence,
        SequenceToSequenceConfig(V, LENGTH, encoder=STACK, decoder=STACK),
    ),
    "classifier": (
        TextClassifier,
        ClassifierConfig(
            V, LENGTH, encoder=STACK, pooling=("cls", "mean", "max"), region_width=3,
            region_features=5, encoder_scale=0.5, ngrams=2, ngram_bits=6,
        ),
    ),
    "classifier of patches": (
        TextClassifier,
        ClassifierConfig(
            V, LENGTH, encoder=STACK, region_width=3, region_features=5, patch_width=2,
        ),
    ),
    "masked language model": (MaskedLanguageModel, TEXTS),
    "encoder with a head": (
        EncoderClassifier,
        EncoderClassifierConfig(TEXTS, ngrams=2, ngram_bits=6),
    ),
    "low rank": (
        lambda config, rngs: Lora(LanguageModel(config, rngs=rngs), 2, rngs=rngs),
        LanguageModelConfig(V, LENGTH, STACK),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """The graph of a model, and the shapes of its parameters."""
    make, config = MODELS[request.param]
    return nnx.split(nnx.eval_shape(lambda: make(config, rngs=AbstractRngs())), nnx.Param)


def with_dtypes(parameters, start, step):
    """The parameters in dtypes that are `step` apart."""
    leaves, structure = jax.tree.flatten(parameters)
    return structure.unflatten(
        jax.ShapeDtypeStruct(x.shape, DTYPES[(start + i * step) % 4]) for i, x in enumerate(leaves)
    )


def alike(parameters):
    return [with_dtypes(parameters, start, 0) for start in (0, 3)]


def mixed(parameters):
    return [with_dtypes(parameters, start, 1) for start in range(4)]


def texts(dtype="int32"):
    return jax.ShapeDtypeStruct((B, T), dtype), jax.ShapeDtypeStruct((B, T), bool)


def outputs(model, tokens, is_token, rngs=None):
    pair = (tokens, is_token) * (2 if isinstance(model, SequenceToSequence) else 1)
    return model(*pair, rngs=rngs)


def test_parameters_of_any_dtypes_are_traced_and_keep_them(model):
    graph, parameters = model

    def gradient(parameters, key, *text):
        # Stands for nnx.Rngs, whose counters would take a sixth of the time.
        rngs = SimpleNamespace(dropout=lambda: key)

        def loss(parameters):
            return outputs(nnx.merge(graph, parameters), *text, rngs).astype(jnp.float32).sum()

        return jax.grad(loss)(parameters)

    with jax.numpy_dtype_promotion("strict"), jax.enable_x64(True):
        for some in alike(parameters) + mixed(parameters):
            found = jax.eval_shape(gradient, some, jax.random.key(0), *texts())
            for ours, given in zip(jax.tree.leaves(found), jax.tree.leaves(some), strict=True):
                assert ours.dtype == given.dtype


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_tokens_of_any_integers_are_traced(model, dtype):
    graph, parameters = model

    def run(parameters, *text):
        return outputs(nnx.merge(graph, parameters), *text)

    with jax.numpy_dtype_promotion("strict"), jax.enable_x64(True):
        assert jax.eval_shape(run, parameters, *texts(dtype)).dtype == np.float32


@pytest.mark.parametrize("model", ["learned", "llama", "sequence to sequence"], indirect=True)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"search": BeamSearch(2), "stop": (2,)},
        {"sampling": Sampling(0.5, 3, 0.5, 0.1, repetition_penalty=1.3)},
    ],
    ids=lambda options: " ".join(options) or "greedy",
)
def test_parameters_of_any_dtypes_generate(model, options):
    """A search or a draw sees nothing of the parameters but the dtype of the logits: float32 of
    float16, float64 of float64.
    """
    graph, parameters = model

    def run(parameters, key, *text):
        model = nnx.merge(graph, parameters)
        if isinstance(model, SequenceToSequence):
            return generate_target(model, *text, begin=1, max_tokens=3, key=key, **options)
        return generate(model, *text, max_tokens=3, key=key, **options), next_tokens(model, *text)

    with jax.numpy_dtype_promotion("strict"), jax.enable_x64(True):
        for some in alike(parameters) + ([] if options else mixed(parameters)):
            written = jax.eval_shape(run, some, jax.random.key(0), *texts("uint8"))
            written = written if isinstance(written, Generated) else written[0]
            assert written.tokens.dtype == np.int32
            assert written.log_probability.dtype in (np.float32, np.float64)
