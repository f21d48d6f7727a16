"""Each module stores parameters and calls one function with them, with and without dropout, in both
NNX modes.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.arrays import jax_normal, normal
from tests.helpers.compiled import compiled
from transformer_jax.attention.masks import causal
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.feed_forward import feed_forward
from transformer_jax.functional.linear import linear
from transformer_jax.functional.ngrams import ngram_evidence, ngram_rows, ngram_shares
from transformer_jax.functional.normalization import layer_norm
from transformer_jax.functional.positions import count_positions, lookup, sinusoidal_positions
from transformer_jax.functional.regions import region_embedding
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.ngram_evidence import NgramEvidence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.embeddings import (
    BertEmbedding,
    PatchEmbedding,
    RegionEmbedding,
    RegionFeatures,
    TokenEmbedding,
)
from transformer_jax.nn.layers import Embedding, FeedForward, LayerNorm, Linear, MultiHeadAttention
from transformer_jax.nn.parameters import AbstractRngs, dropout_key, kernel

pytestmark = pytest.mark.usefixtures("strict")

B, T, S, N, K, D, F, V, L = 2, 5, 7, 6, 3, 30, 17, 13, 11
H = D // N
RATE = 0.4


def drawn(make):
    """A module with parameters from NumPy, none of them at its initial 0 or 1."""
    graph, abstract = nnx.split(nnx.eval_shape(make))
    leaves, structure = jax.tree.flatten(abstract)
    leaves = [
        jax.device_put(np.float32(normal(i, *leaf.shape) / 3)) for i, leaf in enumerate(leaves)
    ]
    return nnx.merge(graph, jax.tree.unflatten(structure, leaves))


X, Y = jax_normal(1, B, T, D), jax_normal(2, B, S, D)
TOKENS = jnp.array(np.random.default_rng(0).integers(0, V, (B, T)))
IS_TOKEN = jnp.array([[False, True, True, True, True], [True, True, True, False, False]])


def embed(m, tokens, key):
    places = m.position.embedding[...][count_positions(IS_TOKEN)]
    x = tokens + places + m.segment.embedding[...][0]
    return dropout(layer_norm(x, m.norm.scale[...], m.norm.bias[...], epsilon=0.1), RATE, key)


def rows_and_shares():
    rows, there = ngram_rows(TOKENS, IS_TOKEN, 2, 4)
    return rows, ngram_shares(rows, there)


# Each module: how it is made, how it is called, and the pure function of its parameters that it
# stands for.
SHELLS = {
    "Linear": (
        lambda rngs: Linear(D, F, rngs=rngs),
        lambda m, rngs: m(X),
        lambda m, key: linear(X, m.kernel[...], m.bias[...]),
    ),
    "LayerNorm": (
        lambda rngs: LayerNorm(D, epsilon=0.1),
        lambda m, rngs: m(X),
        lambda m, key: layer_norm(X, m.scale[...], m.bias[...], epsilon=0.1),
    ),
    "FeedForward": (
        lambda rngs: FeedForward(D, F, activation="relu", dropout_rate=RATE, rngs=rngs),
        lambda m, rngs: m(X, rngs=rngs),
        lambda m, key: feed_forward(
            X,
            *(p[...] for p in (m.in_kernel, m.in_bias, m.out_kernel, m.out_bias)),
            activation="relu",
            dropout_rate=RATE,
            dropout_rng=key,
        ),
    ),
    "MultiHeadAttention": (
        lambda rngs: MultiHeadAttention(D, N, num_kv_heads=K, dropout_rate=RATE, rngs=rngs),
        lambda m, rngs: m(X, Y, LayerContext(mask=causal(), return_weights=True), rngs=rngs),
        lambda m, key: multi_head_attention(
            X,
            Y,
            *(p[...] for p in (m.query_kernel, m.key_kernel, m.value_kernel, m.out_kernel)),
            query_bias=m.query_bias[...],
            key_bias=m.key_bias[...],
            value_bias=m.value_bias[...],
            out_bias=m.out_bias[...],
            mask=causal(),
            dropout_rate=RATE,
            dropout_rng=key,
            return_weights=True,
        ),
    ),
    "Embedding": (
        lambda rngs: Embedding(V, D, rngs=rngs),
        lambda m, rngs: m(TOKENS),
        lambda m, key: lookup(m.embedding[...], TOKENS),
    ),
    "BertEmbedding": (
        lambda rngs: BertEmbedding(V, L, D, dropout_rate=RATE, norm_epsilon=0.1, rngs=rngs),
        lambda m, rngs: m(TOKENS, IS_TOKEN, rngs=rngs),
        lambda m, key: embed(m, m.token.embedding[...][TOKENS], key),
    ),
    "BertEmbedding of regions": (
        lambda rngs: BertEmbedding(
            V, L, D, region_width=3, dropout_rate=RATE, norm_epsilon=0.1, rngs=rngs
        ),
        lambda m, rngs: m(TOKENS, IS_TOKEN, rngs=rngs),
        lambda m, key: embed(m, region_embedding(m.token.embedding[...], TOKENS, IS_TOKEN), key),
    ),
    "RegionEmbedding": (
        lambda rngs: RegionEmbedding(V, F, width=3, rngs=rngs),
        lambda m, rngs: m(TOKENS, IS_TOKEN),
        lambda m, key: region_embedding(m.embedding[...], TOKENS, IS_TOKEN),
    ),
    "RegionFeatures": (
        lambda rngs: RegionFeatures(V, F, width=3, rngs=rngs),
        lambda m, rngs: m(TOKENS, IS_TOKEN),
        lambda m, key: jax.nn.relu(
            region_embedding(m.region.embedding[...], TOKENS, IS_TOKEN) + m.bias[...]
        ),
    ),
    "NgramEvidence": (
        lambda rngs: NgramEvidence(3, longest=2, bits=4),
        lambda m, rngs: m(TOKENS, IS_TOKEN),
        lambda m, key: (
            ngram_evidence(m.weight[...], m.square[...], *rows_and_shares()) + m.bias[...]
        ),
    ),
    "PatchEmbedding": (
        lambda rngs: PatchEmbedding(D, T, D, dropout_rate=RATE, norm_epsilon=0.1, rngs=rngs),
        lambda m, rngs: m(X, IS_TOKEN, rngs=rngs),
        lambda m, key: layer_norm(
            linear(
                X if key is None else dropout(X, RATE, key),
                m.projection.kernel[...],
                m.projection.bias[...],
            )
            + m.position.embedding[...][count_positions(IS_TOKEN)],
            m.norm.scale[...],
            m.norm.bias[...],
            epsilon=0.1,
        ),
    ),
}


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("graph_mode", [True, False], ids=["graph", "tree"])
def test_a_module_is_its_function_of_its_parameters(name, graph_mode):
    make, call, function = SHELLS[name]
    with nnx.set_graph_mode(graph_mode):
        structure, parameters = nnx.split(drawn(lambda: make(nnx.Rngs(0))))

        @jax.jit
        def both(parameters, key):
            module = nnx.merge(structure, parameters)
            the_same = nnx.Rngs(dropout=key).dropout()
            return (
                (call(module, None), call(module, nnx.Rngs(dropout=key))),
                (function(module, None), function(module, the_same)),
            )

        ours, expected = both(parameters, jax.random.key(5))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    evaluated, trained = map(jax.tree.leaves, ours)
    drops = name.startswith(
        ("FeedForward", "MultiHeadAttention", "BertEmbedding", "PatchEmbedding")
    )
    assert all((a != b).any() == drops for a, b in zip(evaluated, trained, strict=True))


def test_multi_head_attention_equals_nnx():
    """The same kernels in nnx.MultiHeadAttention, which has no grouped keys: K = N."""
    ours = drawn(lambda: MultiHeadAttention(D, N, rngs=nnx.Rngs(0)))
    theirs = nnx.eval_shape(lambda: nnx.MultiHeadAttention(N, D, decode=False, rngs=nnx.Rngs(0)))
    graph, _ = nnx.split(theirs)
    mask = causal().to_array(T, S)

    def value_and_gradient(loss):
        names = ("query", "key", "value", "out")
        parameters = {
            n: {k: getattr(ours, f"{n}_{k}")[...] for k in ("kernel", "bias")} for n in names
        }
        return jax.jit(jax.value_and_grad(loss))(parameters)

    def peer(parameters):
        state = nnx.State(jax.tree.map(nnx.Param, parameters))
        y = nnx.merge(graph, state)(X, Y, Y, mask=mask, deterministic=True)
        return jnp.sum(jnp.sin(y))

    def shell(parameters):
        structure, _ = nnx.split(ours)
        flat = {f"{n}_{k}": v for n, both in parameters.items() for k, v in both.items()}
        state = nnx.State(jax.tree.map(nnx.Param, flat))
        return jnp.sum(jnp.sin(nnx.merge(structure, state)(X, Y, LayerContext(mask=causal()))))

    with jax.numpy_dtype_promotion("standard"):
        (value, grads), (expected, expected_grads) = map(value_and_gradient, (shell, peer))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-5)


def shapes(make):
    state = nnx.state(nnx.eval_shape(lambda: make(AbstractRngs())))
    return {".".join(map(str, path)): leaf.shape for path, leaf in nnx.to_flat_state(state)}


def test_parameters_have_the_axes_of_the_equations():
    assert shapes(SHELLS["MultiHeadAttention"][0]) == {
        "query_kernel": (D, N, H),
        "query_bias": (N, H),
        "key_kernel": (D, K, H),
        "key_bias": (K, H),
        "value_kernel": (D, K, H),
        "value_bias": (K, H),
        "out_kernel": (N, H, D),
        "out_bias": (D,),
    }
    assert shapes(SHELLS["FeedForward"][0]) == {
        "in_kernel": (D, F),
        "in_bias": (F,),
        "out_kernel": (F, D),
        "out_bias": (D,),
    }


def test_ffn_parameters():
    """worked_examples.json: weights without biases of FFN 512-2048-512 and of attention at 512."""

    def weights(make):
        return sum(
            int(np.prod(shape)) for name, shape in shapes(make).items() if name.endswith("kernel")
        )

    assert weights(lambda rngs: FeedForward(512, 2048, rngs=rngs)) == 2_097_152
    assert weights(lambda rngs: MultiHeadAttention(512, 8, rngs=rngs)) == 1_048_576


def test_kernels_start_with_the_variance_of_their_inputs():
    """LeCun: variance 1 / fan-in, where the fan-in of W^O is heads times features."""

    @jax.jit
    def make(key):
        rngs = nnx.Rngs(params=key)
        return [kernel(rngs, 96, 6, 16)[...], kernel(rngs, 6, 16, 96, inputs=2)[...]]

    one, again, other = (make(jax.random.key(seed)) for seed in (1, 1, 2))
    one, again, other = jax.tree.map(np.asarray, (one, again, other))
    for values in one:
        assert values.dtype == jnp.float32
        assert abs(float(values.var()) * 96 - 1) < 6 * np.sqrt(2 / values.size)
        assert abs(float(values.mean())) < 4 / np.sqrt(96 * values.size)
    np.testing.assert_array_equal(one[0], again[0])
    assert (one[0] != other[0]).all()


def test_modules_hold_parameters_and_no_random_state():
    for make, _, _ in SHELLS.values():
        state = nnx.state(nnx.eval_shape(lambda make=make: make(AbstractRngs())))
        kinds = {
            type(leaf)
            for leaf in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
        }
        assert kinds == {nnx.Param}


def test_every_dropout_draws_its_own_key_and_a_rate_of_zero_none():
    rngs = nnx.Rngs(dropout=0)
    assert dropout_key(None, 0.5) is None
    assert dropout_key(rngs, 0.0) is None
    first, second = dropout_key(rngs, 0.5), dropout_key(rngs, 0.5)
    assert (jax.random.key_data(first) != jax.random.key_data(second)).any()
    np.testing.assert_array_equal(
        jax.random.key_data(first), jax.random.key_data(nnx.Rngs(dropout=0).dropout())
    )


def test_segments_add_their_row():
    module = drawn(lambda: BertEmbedding(V, L, D, rngs=nnx.Rngs(0)))
    structure, parameters = nnx.split(module)
    run = jax.jit(lambda p, ids: nnx.merge(structure, p)(TOKENS, IS_TOKEN, segments=ids))
    zeros, ids = jnp.zeros((B, T), int), jnp.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    by_default = jax.jit(lambda p: nnx.merge(structure, p)(TOKENS, IS_TOKEN))(parameters)
    np.testing.assert_allclose(run(parameters, zeros), by_default, rtol=0, atol=1e-6)
    changed = np.abs(run(parameters, ids) - by_default).max(-1) > 0.01
    np.testing.assert_array_equal(changed, ids == 1)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_a_token_embedding_is_its_equation_and_its_table_is_the_head(positions):
    module = drawn(lambda: TokenEmbedding(11, 7, 6, positions=positions, rngs=nnx.Rngs(0)))
    tokens, where = jnp.array([[3, 10, 0]]), jnp.array([[4, 0, 6]])

    @nnx.jit
    def both(module):
        x = module(tokens, where)
        return x, module.logits(x), sinusoidal_positions(where, 6)

    x, logits, sinusoids = map(np.asarray, both(module))
    table = np.asarray(module.token.embedding[...], np.float64)
    expected = table[np.asarray(tokens)]
    if positions == "learned":
        expected = expected + np.asarray(module.position.embedding[...])[np.asarray(where)]
    if positions == "sinusoidal":
        expected = expected * np.sqrt(6) + sinusoids
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logits, x @ table.T, rtol=1e-4, atol=1e-6)


MANY = jnp.array(np.random.default_rng(1).integers(0, 2, (64, 64)))  # 4,096 tokens of two kinds
EVERY = jnp.ones(MANY.shape, bool)
SHARED_BY_MANY = {
    "token": (lambda r: Embedding(2, D, rngs=r), lambda m, x: m(MANY)),
    "bert": (
        lambda r: BertEmbedding(2, 64, D, rngs=r),
        lambda m, x: m(MANY, EVERY),
    ),
    "learned positions": (
        lambda r: TokenEmbedding(2, 1, D, positions="learned", rngs=r),
        lambda m, x: m(MANY.reshape(-1, 1), jnp.zeros((1, 1), int)),
    ),
    "regions": (
        lambda r: RegionFeatures(2, D, width=3, rngs=r),
        lambda m, x: m(MANY, EVERY),
    ),
    "linear": (lambda r: Linear(D, D, rngs=r), lambda m, x: m(x)),
    "norm": (lambda r: LayerNorm(D), lambda m, x: m(x)),
    "feed-forward": (lambda r: FeedForward(D, F, rngs=r), lambda m, x: m(x)),
}


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("name", SHARED_BY_MANY)
def test_bfloat16_loses_no_gradient_of_what_many_tokens_share(name):
    """Summed in bfloat16, 4,096 equal terms come to 256 of them."""
    make, call = SHARED_BY_MANY[name]
    graph, params = nnx.split(drawn(lambda: make(nnx.Rngs(0))))
    cast = lambda tree, dtype: jax.tree.map(  # noqa: E731
        lambda leaf: jax.device_put(np.asarray(leaf).astype(dtype)), tree
    )
    params = cast(params, jnp.bfloat16)
    x = cast(1 + normal(3, *MANY.shape, D) / 10, jnp.bfloat16)
    cotangent = jax_normal(4, D)

    @jax.jit
    def gradient(params, x):
        def loss(params):
            return jnp.sum(call(nnx.merge(graph, params), x).astype(jnp.float32) * cotangent)

        return jax.grad(loss)(params)

    short, exact = gradient(params, x), gradient(*cast((params, x), np.float32))
    for one, other in zip(jax.tree.leaves(short), jax.tree.leaves(exact), strict=True):
        one, other = (np.asarray(leaf, np.float64) for leaf in (one, other))
        assert np.linalg.norm(one - other) < 0.05 * np.linalg.norm(other)


def test_the_head_hears_the_encoder_as_loud_as_asked_for():
    """A quarter as loud equals a quarter of the head's weights on what the encoder gives."""
    stack = StackConfig(1, 6, 2, 8, norm="pre")
    config = ClassifierConfig(V, T, encoder=stack, region_features=F, pooling=("mean", "max"))
    tokens = jnp.arange(1, T + 1)[None]
    quiet, plain = (
        drawn(lambda config=config: TextClassifier(config, rngs=nnx.Rngs(0)))
        for config in (replace(config, encoder_scale=0.25), config)
    )
    loud = compiled(plain)(tokens, tokens > 0)
    weights = np.array(plain.head.kernel[...])
    weights[F:] *= 0.25
    plain.head.kernel[...] = jax.device_put(weights)
    logits, expected = (compiled(model)(tokens, tokens > 0) for model in (quiet, plain))
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-7)
    assert not np.allclose(logits, loud, rtol=1e-2)


@pytest.mark.parametrize("patch_width", [0, 2])
def test_without_attention_no_place_moves_another(patch_width):
    stack = StackConfig(1, 6, 2, 8, norm="pre")
    config = ClassifierConfig(
        V, 6, encoder=stack, region_features=F * bool(patch_width), patch_width=patch_width
    )
    tokens = jnp.arange(1, 7)[None]
    for attends in (True, False):
        one = replace(config, attends=attends)
        model = drawn(lambda one=one: TextClassifier(one, rngs=nnx.Rngs(0)))
        maps = nnx.jit(lambda model, *text: model(*text, return_weights=True)[1])
        (weights,) = maps(model, tokens, tokens > 0)
        itself = np.broadcast_to(np.eye(weights.shape[-1]), weights.shape)
        assert np.allclose(weights, itself, atol=1e-6) == (not attends)
