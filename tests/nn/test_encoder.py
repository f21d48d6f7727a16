"""The encoder: the equations of its two norms, depth, attention maps, dropout, symmetry, and
float64 NumPy.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.arrays import jax_normal
from transformer_jax.attention.masks import padding
from transformer_jax.functional.pooling import mean_pool
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.encoder import Encoder, EncoderLayer
from transformer_jax.nn.parameters import AbstractRngs

pytestmark = pytest.mark.usefixtures("strict")

B, T, N, K, D, F = 2, 5, 6, 2, 30, 17
RATE = 0.25
IS_TOKEN = np.array([[True] * 5, [False, True, True, True, False]])


def config(norm, **changes):
    return StackConfig(
        **{
            "num_layers": 2,
            "embed_dim": D,
            "num_heads": N,
            "num_kv_heads": K,
            "hidden_dim": F,
            "norm": norm,
            "final_norm": norm == "pre",
            "norm_epsilon": 1e-3,
            "activation": "gelu",
            "dropout_rate": RATE,
            "attention_dropout_rate": RATE,
        }
        | changes
    )


def drawn(make):
    """(structure, parameters) with parameters from NumPy, none of them at its initial 0 or 1."""
    graph, abstract = nnx.split(nnx.eval_shape(make))
    leaves, structure = jax.tree.flatten(abstract)
    leaves = [jax_normal(i, *leaf.shape) / 3 for i, leaf in enumerate(leaves)]
    return graph, jax.tree.unflatten(structure, leaves)


class Built:
    def __init__(self, norm):
        self.norm = norm
        self.graph, self.parameters = drawn(lambda: Encoder(config(norm), rngs=nnx.Rngs(0)))

        def run(x, is_token, key):
            rngs = None if key is None else nnx.Rngs(dropout=key)
            module = nnx.merge(self.graph, self.parameters)
            return module(x, LayerContext(mask=padding(is_token), return_weights=True), rngs=rngs)

        self.run = jax.jit(run)

    def __call__(self, x, is_token=IS_TOKEN, key=None):
        return self.run(x, jnp.array(is_token), key)


@pytest.fixture(scope="module")
def post():
    return Built("post")


@pytest.fixture(scope="module")
def pre():
    return Built("pre")


@pytest.fixture(scope="module", params=["post", "pre"])
def encoder(request):
    return request.getfixturevalue(request.param)


def numpy_encoder(module, x, is_token, norm):
    """The equations in float64: attention over heads, then the network, each in a residual
    connection.
    """

    def value(parameter):
        return np.asarray(parameter[...], np.float64)

    def normed(x, module):
        centred = x - x.mean(-1, keepdims=True)
        root = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
        return centred / root * value(module.scale) + value(module.bias)

    def attend(x, module):
        total, maps = value(module.out_bias), []
        for n in range(N):
            k = n // (N // K)
            query = x @ value(module.query_kernel)[:, n] + value(module.query_bias)[n]
            key = x @ value(module.key_kernel)[:, k] + value(module.key_bias)[k]
            values = x @ value(module.value_kernel)[:, k] + value(module.value_bias)[k]
            logits = query @ key.swapaxes(1, 2) / math.sqrt(D // N)
            weights = np.exp(logits - logits.max(-1, keepdims=True)) * is_token[:, None]
            maps.append(weights / weights.sum(-1, keepdims=True))
            total = total + maps[-1] @ values @ value(module.out_kernel)[n]
        return total, np.stack(maps, axis=1)

    def transform(x, module):
        hidden = x @ value(module.in_kernel) + value(module.in_bias)
        hidden = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
        return hidden @ value(module.out_kernel) + value(module.out_bias)

    all_maps = []
    for layer in module.layers:
        if norm == "post":
            attended, maps = attend(x, layer.attention)
            x = normed(x + attended, layer.attention_norm)
            x = normed(x + transform(x, layer.feed_forward), layer.feed_forward_norm)
        else:
            attended, maps = attend(normed(x, layer.attention_norm), layer.attention)
            x = x + attended
            x = x + transform(normed(x, layer.feed_forward_norm), layer.feed_forward)
        all_maps.append(maps)
    return (x if norm == "post" else normed(x, module.final_norm)), all_maps


def test_the_encoder_equals_its_equations_in_numpy(encoder):
    x = jax_normal(1, B, T, D)
    output, maps = encoder(x)
    module = nnx.merge(encoder.graph, encoder.parameters)
    expected, expected_maps = numpy_encoder(
        module, np.asarray(x, np.float64), IS_TOKEN, encoder.norm
    )
    size = np.abs(expected).max()
    np.testing.assert_allclose(output / size, expected / size, rtol=0, atol=1e-5)
    assert [weights.shape for weights in maps] == [(B, N, T, T)] * 2
    for ours, theirs in zip(maps, expected_maps, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)


def test_without_positions_the_order_of_the_tokens_is_the_order_of_the_outputs(encoder):
    x, order = jax_normal(2, B, T, D), np.array([3, 0, 4, 1, 2])
    output, _ = encoder(x)
    permuted, _ = encoder(x[:, order], IS_TOKEN[:, order])
    np.testing.assert_allclose(permuted, output[:, order], rtol=1e-4, atol=2e-5)
    # So the mean over the tokens does not know their order.
    pooled = mean_pool(output, jnp.array(IS_TOKEN))
    other = mean_pool(permuted, jnp.array(IS_TOKEN[:, order]))
    np.testing.assert_allclose(pooled, other, rtol=1e-4, atol=2e-5)


def test_examples_do_not_mix(encoder):
    x = jax_normal(3, B, T, D)
    changed = np.asarray(encoder(x)[0] != encoder(x.at[1].multiply(2.0))[0]).any((1, 2))
    np.testing.assert_array_equal(changed, [False, True])


def test_a_key_decides_the_dropout_and_its_absence_is_evaluation(post):
    encoder, x = post, jax_normal(4, B, T, D)
    (one, maps), (again, _), (other, _) = (encoder(x, key=jax.random.key(s)) for s in (0, 0, 1))
    evaluated, _ = encoder(x)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any() and (one != evaluated).any()
    # The two layers draw different masks.
    seen = np.broadcast_to(IS_TOKEN[:, None, None], maps[0].shape)
    first, second = (np.asarray(weights)[seen] == 0 for weights in maps)
    assert (first != second).any() and first.any() and second.any()


def test_attention_weights_and_sublayers_have_rates_of_their_own():
    x, key = jax_normal(5, B, T, D), jax.random.key(0)

    def output(parameters, *three):
        names = "dropout_rate", "attention_dropout_rate", "hidden_dropout_rate"
        rates = dict(zip(names, three, strict=True))
        make = config("post", num_layers=1, **rates)
        graph, _ = nnx.split(nnx.eval_shape(lambda: Encoder(make, rngs=AbstractRngs())))
        module = nnx.merge(graph, parameters)
        return module(x, LayerContext(return_weights=True), rngs=nnx.Rngs(dropout=key))

    _, parameters = drawn(lambda: Encoder(config("post", num_layers=1), rngs=nnx.Rngs(0)))
    rates = ((0.0, 0.0, None), (RATE, 0.0, None), (RATE, 0.0, 0.0), (0.0, RATE, None))
    run = jax.jit(lambda parameters: [output(parameters, *three) for three in rates])
    (none, [maps]), (sublayers, [same]), (not_inside, _), (weights, [dropped]) = run(parameters)
    outputs = none, sublayers, not_inside, weights
    assert all((one != other).any() for one, other in itertools.combinations(outputs, 2))
    np.testing.assert_array_equal(maps, same)
    assert (maps > 0).all() and (dropped == 0).any()


def test_residual_dropout_falls_on_what_is_added_not_on_the_sum():
    """A pre-norm layer whose sublayers give 1 everywhere: each output is x + {0, 1/(1-p)} + {0,
    1/(1-p)}.
    """
    make = config("pre", attention_dropout_rate=0.0)
    graph, abstract = nnx.split(nnx.eval_shape(lambda: EncoderLayer(make, rngs=AbstractRngs())))
    parameters = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full(leaf.shape, float("out_bias" in jax.tree_util.keystr(path))),
        abstract,
    )
    x = jax_normal(6, 11, T, D)
    run = jax.jit(lambda x: nnx.merge(graph, parameters)(x, rngs=nnx.Rngs(dropout=0)))
    added = np.asarray(run(x) - x, np.float64) * (1 - RATE)
    np.testing.assert_allclose(added, np.round(added), rtol=0, atol=1e-5)
    shares = np.bincount(np.round(added).astype(int).ravel(), minlength=3) / added.size
    expected = [RATE**2, 2 * RATE * (1 - RATE), (1 - RATE) ** 2]
    np.testing.assert_allclose(shares, expected, rtol=0, atol=4 * 0.5 / np.sqrt(added.size))


@pytest.mark.parametrize("graph_mode", [True, False], ids=["graph", "tree"])
def test_graph_mode_does_not_matter(graph_mode):
    """Built, split, merged, run and differentiated in either mode."""
    x = jax_normal(7, B, T, D)
    with nnx.set_graph_mode(graph_mode):
        make = config("pre", num_layers=1)
        graph, parameters = drawn(lambda: Encoder(make, rngs=nnx.Rngs(0)))

        @jax.jit
        def run(parameters):
            def loss(parameters):
                return jnp.sin(nnx.merge(graph, parameters)(x)).sum()

            return jax.value_and_grad(loss)(parameters)

        value, grads = run(parameters)
    assert np.isfinite(value)
    assert len(jax.tree.leaves(grads)) == 18


def test_nnx_transforms_take_the_encoder():
    make = config("pre", num_layers=1, dropout_rate=0.0, attention_dropout_rate=0.0)
    module = nnx.merge(*drawn(lambda: Encoder(make, rngs=nnx.Rngs(0))))
    x = jax_normal(8, B, T, D)
    value, grads = nnx.jit(nnx.value_and_grad(lambda m, x: m(x).sum()))(module, x)
    assert np.isfinite(value)
    assert jax.tree.structure(grads) == jax.tree.structure(nnx.state(module))


def test_no_layers_is_the_identity():
    x = jax_normal(9, B, T, D)
    output, maps = Encoder(config("post", num_layers=0), rngs=nnx.Rngs(0))(
        x, LayerContext(return_weights=True)
    )
    np.testing.assert_array_equal(output, x)
    assert maps == []


@pytest.mark.usefixtures("mixed_dtypes")
def test_bfloat16_in_bfloat16_out_near_float32(post):
    x = jax_normal(10, B, T, D).astype(jnp.bfloat16)
    parameters = jax.tree.map(lambda p: p.astype(jnp.bfloat16), post.parameters)
    low = jax.jit(lambda p, x: nnx.merge(post.graph, p)(x, LayerContext(mask=padding(IS_TOKEN))))(
        parameters, x
    )
    high, _ = post(x.astype(jnp.float32))
    assert low.dtype == jnp.bfloat16
    assert np.abs(low.astype(jnp.float32) - high).max() < 0.1 * np.abs(high).max()
