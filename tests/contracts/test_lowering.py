"""Everything lowers for CUDA and TPU from a machine that has neither: no operation is the CPU's
own.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import transformer_jax as tj
from transformer_jax.generation import generate
from transformer_jax.generation.beam_search import BeamSearch
from transformer_jax.generation.options import GenerationOptions
from transformer_jax.generation.sampling import Sampling
from transformer_jax.models.config import (
    ClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.parameters import AbstractRngs

pytestmark = pytest.mark.usefixtures("strict")

B, T, S, N, K, H, D, F, V = 2, 3, 5, 6, 2, 1, 6, 7, 11


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


KEY = jax.random.key(0)
IS_TOKEN = np.ones((B, T), bool)
TOKENS = np.zeros((B, T), np.int32)
QUERY, KEYS = floats(B, T, N, H), floats(B, S, K, H)
TEXT = floats(B, T, D)


def every_mask():
    """The rules of masks.py in one: rendered where attention is lowered."""
    rules = tj.causal() | tj.prefix(jnp.array([1, 2])) | tj.sliding_window(1, 0)
    rules = rules & tj.padding(np.ones((B, S), bool)) & tj.dense(np.ones((N, T, S), bool))
    return rules & tj.segments(np.zeros((B, T), np.int32), np.zeros((B, S), np.int32))


FUNCTIONS = {
    "blockwise": (
        lambda q, k, v: tj.dot_product_attention(
            q,
            k,
            v,
            mask=every_mask(),
            dropout_rate=0.1,
            dropout_rng=KEY,
            implementation="blockwise",
        ),
        *(QUERY, KEYS, KEYS),
    ),
    "attention_plan": (  # as it is computed while another function is traced
        lambda q, k: q * len(tj.attention_plan(q, k, k).reason) * tj.visited_blocks(tj.causal(), T),
        *(QUERY, KEYS),
    ),
    "attention_weights": (lambda q, k: tj.attention_weights(q, k, mask=tj.causal()), QUERY, KEYS),
    "dot_product_attention": (
        lambda q, k, v: tj.dot_product_attention(
            q, k, v, mask=every_mask(), dropout_rate=0.1, dropout_rng=KEY
        ),
        *(QUERY, KEYS, KEYS),
    ),
    "multi_head_attention": (
        lambda x, *kernels: tj.multi_head_attention(x, x, *kernels, mask=tj.padding(IS_TOKEN)),
        *(TEXT, floats(D, N, H), floats(D, K, H), floats(D, K, H), floats(N, H, D)),
    ),
    "biases": (
        lambda q, k, v, table, slopes: tj.dot_product_attention(
            q, k, v, bias=tj.alibi(slopes) + tj.relative_bias(table), soft_cap=5.0
        ),
        *(QUERY, KEYS, KEYS, floats(8, N), floats(N)),
    ),
    "bias parts": (
        lambda x: (
            x
            * tj.alibi_slopes(N).sum()
            * tj.relative_buckets(jnp.array(TOKENS), 8).sum().astype(x.dtype)
        ),
        TEXT,
    ),
    "logsumexp": (
        lambda q, k, v: tj.dot_product_attention(q, k, v, mask=tj.causal(), return_logsumexp=True),
        *(QUERY, KEYS, KEYS),
    ),
    "additive_attention": (
        lambda x, y, w, u: tj.additive_attention(x, y, y, w, w, u, mask=tj.causal()),
        *(TEXT, floats(B, S, D), floats(D, F), floats(F)),
    ),
    "gated_feed_forward": (tj.gated_feed_forward, TEXT, floats(D, F), floats(D, F), floats(F, D)),
    "rms_norm": (tj.rms_norm, TEXT, floats(D)),
    "batch_norm": (
        lambda x, scale: tj.batch_norm(
            x,
            scale,
            statistics=tj.running_statistics(
                tj.BatchStatistics(*tj.batch_statistics(x)), x, momentum=0.5
            ),
        ),
        *(TEXT, floats(D)),
    ),
    "packed positions, turned": (
        lambda x: tj.Rotary(tj.count_in_segments(jnp.array(TOKENS)), tj.rope_frequencies(4)).turn(
            x
        ),
        floats(B, T, N, 4),
    ),
    "rope": (
        lambda x: tj.rope(
            x,
            jnp.arange(T),
            frequencies=tj.rope_frequencies(
                2, scaling="yarn", factor=tj.yarn_temperature(2.0), original_length=8
            ),
        ),
        floats(B, T, N, 4),
    ),
    "layer_weighted_pool": (
        lambda x, logits: tj.layer_weighted_pool(x, jnp.array(IS_TOKEN), logits),
        *(floats(3, B, T, D), floats(3)),
    ),
    "failing positions": (
        lambda x: [
            x.sum() * code.sum()
            for code in (
                tj.integer_positions(jnp.array(TOKENS)),
                tj.normalised_positions(jnp.array(TOKENS), T),
                tj.one_hot_positions(jnp.array(TOKENS), T),
                tj.binary_positions(jnp.array(TOKENS), 4),
            )
        ],
        TEXT,
    ),
    "dropout": (lambda x: tj.dropout(x, 0.1, KEY), TEXT),
    "feed_forward": (tj.feed_forward, TEXT, floats(D, F), floats(F), floats(F, D), floats(D)),
    "gelu": (tj.gelu, TEXT),
    "layer_norm": (tj.layer_norm, TEXT, floats(D), floats(D)),
    "linear": (tj.linear, TEXT, floats(D, F), floats(F)),
    "lookup": (lambda table: tj.lookup(table, jnp.array(TOKENS)), floats(V, D)),
    "region_embedding": (
        lambda table: tj.region_embedding(table, jnp.array(TOKENS), jnp.array(IS_TOKEN)),
        floats(3, V, D),
    ),
    "ngram_rows": (
        lambda x: (
            tj.ngram_rows(jnp.array(TOKENS), jnp.array(IS_TOKEN), 2, 4)[0][..., 0].astype(x.dtype)
            * x
        ),
        floats(B, T),
    ),
    "ngram_evidence": (
        lambda weight: tj.ngram_evidence(
            weight,
            weight**2,
            tj.ngram_rows(jnp.array(TOKENS), jnp.array(IS_TOKEN), 2, 4)[0],
            jnp.ones((B, T, 2)),
        ),
        floats(16, 1),
    ),
    "ngram_shares": (
        lambda x: tj.ngram_shares(jnp.zeros((B, T, 2), int), x > 0),
        floats(B, T, 2),
    ),
    "to_front": (
        lambda x: tj.to_front(jnp.array(TOKENS), jnp.array(IS_TOKEN))[0].astype(x.dtype) * x,
        floats(B, T),
    ),
    "max_patches": (lambda x: tj.max_patches(x, jnp.array(IS_TOKEN), 2)[0], floats(B, T, D)),
    "sinusoidal_positions": (
        lambda x: x + tj.sinusoidal_positions(tj.count_positions(jnp.array(IS_TOKEN)), D),
        TEXT,
    ),
    "poolings": (
        lambda x: [
            pool(x, jnp.array(IS_TOKEN))
            for pool in (tj.cls_pool, tj.last_pool, tj.mean_pool, tj.max_pool)
        ],
        TEXT,
    ),
}


def lower(function, *args):
    """Forward and gradient, for both at once."""

    def loss(*args):
        return sum(jnp.sum(y) for y in jax.tree.leaves(function(*args)))

    both = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(args)))))
    exported = jax.export.export(both, platforms=["cuda", "tpu"])(*args)
    assert exported.platforms == ("cuda", "tpu")
    return exported


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_and_its_gradient_lower(name):
    lower(*FUNCTIONS[name])


def test_every_public_function_is_lowered_here():
    import inspect

    source = inspect.getsource(inspect.getmodule(every_mask))
    names = set(tj.__all__) - {"load"}  # of a model, and no function of arrays
    assert sorted(name for name in names if f"tj.{name}" not in source) == []


def lower_module(make, call):
    graph, abstract = nnx.split(nnx.eval_shape(make))
    lower(lambda parameters: call(nnx.merge(graph, parameters)), abstract)


ENCODER = {"num_layers": 1, "embed_dim": D, "num_heads": N, "num_kv_heads": K, "hidden_dim": F}


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_encoder_lowers(norm):
    config = StackConfig(**ENCODER, norm=norm, final_norm=True, activation="gelu_tanh")
    lower_module(
        lambda: Encoder(config, rngs=AbstractRngs()),
        lambda m: m(
            jnp.ones((B, T, D)),
            LayerContext(mask=tj.padding(IS_TOKEN)),
            rngs=nnx.Rngs(dropout=KEY),
        ),
    )


@pytest.mark.parametrize("key", [None, KEY], ids=["evaluation", "training"])
def test_the_classifier_lowers(key):
    config = ClassifierConfig(
        V,
        T,
        encoder=StackConfig(**ENCODER),
        pooling=("cls", "mean", "max", "last"),
        region_width=3,
        region_features=7,
        patch_width=2,
        ngrams=2,
        ngram_bits=4,
    )
    lower_module(
        lambda: TextClassifier(config, rngs=AbstractRngs()),
        lambda m: m(
            jnp.array(TOKENS),
            jnp.array(IS_TOKEN),
            rngs=None if key is None else nnx.Rngs(dropout=key),
        ),
    )


STACK = StackConfig(**ENCODER, norm="pre", norm_kind="rms", activation="swiglu", biases=False)


@pytest.mark.parametrize("positions", ["learned", "alibi"])
def test_a_language_model_and_its_generation_lower(positions):
    config = LanguageModelConfig(V, 2 * T, decoder=STACK, positions=positions, window=2)
    lower_module(
        lambda: LanguageModel(config, rngs=AbstractRngs()),
        lambda m: m(jnp.array(TOKENS), jnp.array(IS_TOKEN), rngs=nnx.Rngs(dropout=KEY)),
    )
    make = nnx.eval_shape(lambda: LanguageModel(config, rngs=AbstractRngs()))
    graph, params = nnx.split(make, nnx.Param)
    drawn = GenerationOptions(T, Sampling(top_k=3, top_p=0.9), stop=(1,))
    for options in (drawn, replace(drawn, sampling=None, search=BeamSearch(2))):
        write = jax.jit(partial(generate._generate, graph, options=options.static))
        arguments = params, jnp.array(TOKENS), jnp.array(IS_TOKEN), KEY, options.traced
        exported = jax.export.export(write, platforms=["cuda", "tpu"])(*arguments)
        assert exported.platforms == ("cuda", "tpu")


def test_an_encoder_decoder_lowers():
    config = SequenceToSequenceConfig(V, T, encoder=STACK, decoder=STACK)
    lower_module(
        lambda: SequenceToSequence(config, rngs=AbstractRngs()),
        lambda m: m(*(jnp.array(x) for x in (TOKENS, IS_TOKEN) * 2)),
    )


def test_bfloat16_lowers():
    with jax.numpy_dtype_promotion("standard"):
        low = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in (QUERY, KEYS, KEYS)]
        lower(FUNCTIONS["dot_product_attention"][0], *low)
