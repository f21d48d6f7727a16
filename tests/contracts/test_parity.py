"""Value and gradient beside jax.nn and flax.nnx: where they agree, and where they differ by design.

A test with `differs` in its name asserts both sides; docs/research/differences.md is the table of
them. PyTorch is in test_parity_torch.py. The peers mix dtypes, so this file does without strict
promotion.
"""

import ast
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx.nn.attention import dot_product_attention_weights
from jax import lax

from tests.helpers.arrays import normal
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.masks import causal, padding, sliding_window
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.attention.softmax import masked_logsumexp, masked_softmax
from transformer_jax.functional.feed_forward import ACTIVATIONS, gated_feed_forward
from transformer_jax.functional.normalization import (
    BatchStatistics,
    batch_norm,
    layer_norm,
    rms_norm,
    running_statistics,
)
from transformer_jax.functional.positions import lookup
from transformer_jax.functional.rotary import rope, rope_frequencies

B, T, S, N, H, D, E, M, F = 2, 5, 7, 6, 11, 13, 17, 19, 23
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
IS_TOKEN = np.array([[True] * S, [False, True, True, True, True, False, False]])


def drawn(seed, *shape):
    return normal(seed, *shape).astype(np.float32)


def with_gradient(function, *arrays):
    """Return the value of the function, and the gradient of a weighted sum of it by every array."""
    y, pull = jax.vjp(function, *arrays)
    return y, pull(jax.tree.map(lambda leaf: drawn(99, *leaf.shape), y))


def assert_same(ours, theirs, *arrays, **tolerance):
    """Equal values and equal gradients by every array, in one compilation."""
    one, other = jax.jit(
        lambda *arrays: (with_gradient(ours, *arrays), with_gradient(theirs, *arrays))
    )(*arrays)
    assert_close(one, other, **tolerance)


def assert_close(one, other, **tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or CLOSE))


# jax.nn: the same
# ------------------------------------------------------------------------------------------


def qkv(K=N, queries=T, keys=S):
    return (
        drawn(1, B, queries, N, H),
        drawn(2, B, keys, K, H),
        drawn(3, B, keys, K, H),
    )


def seen():
    """A mask by head, in which every query sees something."""
    mask = drawn(4, B, N, T, S) > 0.3
    mask[..., 3] = True
    return mask


# name: (key heads, queries, our arguments, those of jax.nn)
CASES = {
    "plain": (N, T, {}, {}),
    "groups of 3": (2, T, {"mask": seen()}, {"mask": seen()}),
    "groups of 2": (3, T, {"scale": 0.5, "mask": seen()}, {"scale": 0.5, "mask": seen()}),
    "one key head": (1, T, {}, {}),
    "causal": (3, S, {"mask": causal()}, {"is_causal": True}),
    "padding": (
        N,
        T,
        {"mask": padding(np.arange(S) < np.array([[7], [4]]))},
        {"key_value_seq_lengths": np.array([7, 4], np.int32)},
    ),
    "window": (N, S, {"mask": sliding_window(3, 1)}, {"local_window_size": (3, 1)}),
    "causal window": (
        2,
        S,
        {"mask": causal() & sliding_window(2, None)},
        {"is_causal": True, "local_window_size": (2, 0)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_jax_nn(name):
    K, queries, ours, theirs = CASES[name]
    assert_same(
        lambda q, k, v: dot_product_attention(q, k, v, **ours),
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **theirs),
        *qkv(K, queries),
    )


def test_attention_of_one_example_equals_jax_nn():
    arrays = [x[0] for x in qkv()]
    is_token = np.arange(S) % 3 != 1
    assert_same(
        lambda *arrays: dot_product_attention(*arrays, mask=padding(is_token)),
        lambda *arrays: jax.nn.dot_product_attention(*arrays, mask=jnp.asarray(is_token)),
        *arrays,
    )


def test_a_bias_and_its_gradient_equal_jax_nn():
    """Shared by no head, by all queries, by all heads."""
    mask, shapes = seen(), [(B, N, T, S), (1, N, 1, S), (B, 1, T, S)]

    def each(attention):
        return lambda q, k, v, *biases: [attention(q, k, v, b, mask) for b in biases]

    assert_same(
        each(lambda q, k, v, b, m: dot_product_attention(q, k, v, bias=b, mask=m)),
        each(jax.nn.dot_product_attention),
        *qkv(2),
        *(drawn(5, *shape) for shape in shapes),
    )


def test_logsumexp_is_the_residual_of_jax_nn():
    """The value; its gradient is there for the asking here alone (see below)."""
    mask = seen()
    ours, theirs = jax.jit(
        lambda q, k, v: (
            dot_product_attention(q, k, v, mask=mask, return_logsumexp=True),
            jax.nn.dot_product_attention(q, k, v, mask=mask, return_residual=True),
        )
    )(*qkv(2))
    assert_close(ours, theirs)


def test_softmax_and_logsumexp_equal_jax_nn_where_something_is_seen():
    mask = seen()
    assert_same(
        lambda x: (masked_softmax(x, mask), masked_logsumexp(x, mask)),
        lambda x: (
            jax.nn.softmax(x, where=mask),
            jax.nn.logsumexp(x, axis=-1, where=mask),
        ),
        100 * drawn(6, B, N, T, S),  # beyond what exp can take
    )


def test_a_soft_cap_stands_before_the_bias():
    """The composition of jax.nn's softmax and tanh."""
    mask = seen()

    def peer(query, key, value, bias):
        logits = 2 * jnp.tanh(jnp.einsum("BTNH,BSNH->BNTS", query, key) / np.sqrt(H) / 2)
        weights = jax.nn.softmax(logits + bias, where=mask)
        return jnp.einsum("BNTS,BSNH->BTNH", weights, value)

    assert_same(
        lambda q, k, v, bias: dot_product_attention(q, k, v, bias=bias, mask=mask, soft_cap=2.0),
        peer,
        *qkv(),
        drawn(5, B, N, T, S),
    )


def test_gates_equal_jax_nn():
    def peer(x, gate_kernel, in_kernel, out_kernel):
        opened = jax.nn.silu(x @ gate_kernel), jax.nn.gelu(x @ gate_kernel, approximate=False)
        return [(gate * (x @ in_kernel)) @ out_kernel for gate in opened]

    assert_same(
        lambda *arrays: [gated_feed_forward(*arrays, gate=gate) for gate in ("swiglu", "geglu")],
        peer,
        drawn(1, B, T, D),
        drawn(2, D, F) / 4,
        drawn(3, D, F) / 4,
        drawn(4, F, M) / 4,
    )


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_is_a_product_of_complex_numbers(layout):
    """x e^(i p f), as LLaMA's first code has it: pairs side by side if interleaved, half the
    features apart if not.
    """
    positions = jax.device_put(np.array([[0, 1, 2, 3, 9], [5, 4, 9, 0, 2]]))

    def peer(x):
        axis = -1 if layout == "interleaved" else -2
        a, b = jnp.moveaxis(x.reshape(B, T, N, *((7, 2) if axis == -1 else (2, 7))), axis, 0)
        turned = lax.complex(a, b) * jnp.exp(
            1j * positions[:, :, None, None] * rope_frequencies(14)
        )
        return jnp.stack([turned.real, turned.imag], axis=axis).reshape(x.shape)

    assert_same(lambda x: rope(x, positions, layout=layout), peer, drawn(1, B, T, N, 14))


# flax.nnx: the same
# ----------------------------------------------------------------------------------------


def as_function(make, call):
    """An nnx module as a function of its parameters, in the order of their names, and inputs."""
    structure, abstract = nnx.split(nnx.eval_shape(make))
    leaves, tree = jax.tree.flatten(abstract)

    def function(*arrays):
        module = nnx.merge(structure, jax.tree.unflatten(tree, arrays[: len(leaves)]))
        return call(module, *arrays[len(leaves) :])

    return function, [leaf.shape for leaf in leaves]


@pytest.mark.parametrize(("K", "rule"), [(2, "padded"), (3, "causal")])
def test_multi_head_attention_equals_nnx(K, rule):
    mask = {"padded": padding(IS_TOKEN), "causal": causal()}[rule]
    theirs, shapes = as_function(
        lambda: nnx.MultiHeadAttention(
            N, D, N * H, M, K, E, decode=False, keep_rngs=False, rngs=nnx.Rngs(0)
        ),
        lambda module, x, y: module(x, y, mask=mask.to_array(T, S)),
    )
    assert shapes == [(K, H), (E, K, H), (M,), (N, H, M), (N, H), (D, N, H), (K, H), (E, K, H)]

    def ours(bk, wk, bo, wo, bq, wq, bv, wv, x, y):
        biases = {"query_bias": bq, "key_bias": bk, "value_bias": bv, "out_bias": bo}
        return multi_head_attention(x, y, wq, wk, wv, wo, mask=mask, **biases)

    parameters = [drawn(i, *shape) / 4 for i, shape in enumerate(shapes)]
    assert_same(ours, theirs, *parameters, drawn(9, B, T, D), drawn(8, B, S, E))


def test_attention_equals_the_unfused_path_of_nnx():
    """The one that nnx takes with dropout, or where weights are kept."""
    mask = seen()
    assert_same(
        lambda q, k, v, bias: dot_product_attention(q, k, v, bias=bias, mask=mask),
        lambda q, k, v, bias: jnp.einsum(
            "BNTS,BSNH->BTNH",
            dot_product_attention_weights(q, k, bias=bias, mask=mask),
            jnp.repeat(v, N // 2, axis=2),
        ),
        *qkv(2),
        drawn(5, B, N, T, S),
    )


def two_pass(kind, **arguments):
    return as_function(
        lambda: kind(D, use_fast_variance=False, rngs=nnx.Rngs(0), **arguments),
        lambda module, x: module(x),
    )


def test_layer_norm_equals_nnx():
    theirs, shapes = two_pass(nnx.LayerNorm, epsilon=1e-3)
    assert_same(
        lambda bias, scale, x: layer_norm(x, scale, bias, epsilon=1e-3),
        theirs,
        *(drawn(i, *shape) for i, shape in enumerate(shapes)),
        3 * drawn(5, B, T, D),
    )


def test_rms_norm_equals_nnx():
    theirs, shapes = two_pass(nnx.RMSNorm, epsilon=1e-3)
    assert_same(
        lambda scale, x: rms_norm(x, scale, epsilon=1e-3),
        theirs,
        *(drawn(i, *shape) for i, shape in enumerate(shapes)),
        3 * drawn(5, B, T, D),
    )


@pytest.mark.parametrize("running", [False, True], ids=["of the batch", "running"])
def test_batch_norm_equals_nnx(running):
    theirs, shapes = two_pass(nnx.BatchNorm, epsilon=1e-3, use_running_average=running)

    def ours(bias, mean, scale, variance, x):
        statistics = BatchStatistics(mean, variance) if running else None
        return batch_norm(x, scale, bias, statistics=statistics, epsilon=1e-3)

    assert shapes == [(D,)] * 4
    parameters = [drawn(i, D) for i in range(3)] + [np.exp(drawn(4, D))]
    assert_same(ours, theirs, *parameters, 3 * drawn(5, B, T, D))


def test_lookup_equals_nnx_embed():
    tokens = jax.device_put(np.array([[3, 0, 3], [1, 2, 4]], np.int32))
    theirs, _ = as_function(
        lambda: nnx.Embed(T, D, rngs=nnx.Rngs(0)), lambda module: module(tokens)
    )
    assert_same(lambda table: lookup(table, tokens), theirs, drawn(1, T, D))


# jax.nn and flax.nnx: different
# ------------------------------------------------------------------------------


def test_jax_nn_differs_on_a_query_without_keys():
    """The mean of all values there, with a gradient; 0 here, without."""
    mask, (query, key, value) = (np.arange(T)[:, None] != 2) & seen(), qkv()

    def blind(attention):
        function = lambda q, k, v: attention(q, k, v, mask=mask)[:, 2]  # noqa: E731
        return jax.device_get(
            jax.jit(lambda *arrays: with_gradient(function, *arrays))(query, key, value)
        )

    theirs, (*_, their_slope) = blind(jax.nn.dot_product_attention)
    ours, our_slopes = blind(dot_product_attention)
    np.testing.assert_allclose(theirs, value.mean(axis=1), **CLOSE)
    assert np.abs(their_slope).min() > 0
    assert not any(np.any(array) for array in (ours, *our_slopes))


def test_jax_nn_differs_on_nan_in_a_value_that_nobody_sees():
    """0 * NaN is NaN there, everywhere; nothing here."""
    query, key, value = qkv()
    mask = np.arange(S)[None, None, None] != 4
    spoilt, clean = value.copy(), value.copy()
    spoilt[:, 4], clean[:, 4] = np.nan, 0
    theirs = jax.jit(jax.nn.dot_product_attention)(query, key, spoilt, mask=mask)
    attend = jax.jit(dot_product_attention)
    ours, expected = (attend(query, key, value, mask=mask) for value in (spoilt, clean))
    assert np.isnan(theirs).all()
    np.testing.assert_array_equal(ours, expected)


def test_jax_nn_differs_on_causal_with_more_keys_than_queries():
    """Top-left there: the first query sees the first key. Bottom-right here: the last query sees
    the last.
    """

    @jax.jit
    def run(*arrays):
        top_left = causal(query_positions=jnp.arange(T))
        longer = jnp.pad(arrays[0], ((0, 0), (S - T, 0), (0, 0), (0, 0)))
        return (
            jax.nn.dot_product_attention(*arrays, is_causal=True),
            dot_product_attention(*arrays, mask=top_left),
            jax.nn.dot_product_attention(longer, *arrays[1:], is_causal=True)[:, S - T :],
            dot_product_attention(*arrays, mask=causal()),
        )

    theirs, first, theirs_of_the_last, last = jax.device_get(run(*qkv()))
    np.testing.assert_allclose(theirs, first, **CLOSE)
    np.testing.assert_allclose(last, theirs_of_the_last, **CLOSE)
    assert np.abs(last - theirs).max() > 0.1


def test_jax_nn_differs_on_a_window_with_more_keys_than_queries():
    """The same of `local_window_size`, and a single number means both sides there."""

    @jax.jit
    def run(*arrays):
        top_left = sliding_window(1, 1, query_positions=jnp.arange(T))
        return (
            jax.nn.dot_product_attention(*arrays, local_window_size=1),
            dot_product_attention(*arrays, mask=top_left),
            dot_product_attention(*arrays, mask=sliding_window(1, 1)),
        )

    theirs, first, last = jax.device_get(run(*qkv()))
    np.testing.assert_allclose(theirs, first, **CLOSE)
    assert np.abs(last - theirs).max() > 0.1


def test_jax_nn_differs_on_the_logsumexp_of_a_query_without_keys_and_on_its_gradient():
    """A large negative number and no gradient there; -inf and the softmax here."""
    mask, arrays = (np.arange(T)[:, None] != 2) & seen(), qkv()

    def graded(function):
        return jax.jit(lambda q, k, v: with_gradient(lambda q: function(q, k, v), q))(*arrays)

    theirs, (their_slope,) = graded(
        lambda *x: jax.nn.dot_product_attention(*x, mask=mask, return_residual=True)[1]
    )
    ours, (our_slope,) = graded(
        lambda *x: dot_product_attention(*x, mask=mask, return_logsumexp=True)[1]
    )
    assert (np.asarray(theirs)[:, 2] < -1e38).all() and np.isfinite(theirs).all()
    assert (np.asarray(ours)[:, 2] == -np.inf).all()
    assert not np.any(their_slope)
    assert np.any(our_slope, axis=-1).sum() == B * (T - 1) * N and np.isfinite(our_slope).all()


def test_jax_nn_differs_on_float64():
    """The softmax is float32 there whatever comes in."""
    arrays = [np.asarray(x, np.float64) for x in qkv()]
    logits = np.einsum("BTNH,BSNH->BNTS", *arrays[:2]) / np.sqrt(H)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("BNTS,BSNH->BTNH", weights, arrays[2])
    with jax.enable_x64(True):
        ours = np.asarray(jax.jit(dot_product_attention)(*arrays))
        theirs = np.asarray(jax.jit(jax.nn.dot_product_attention)(*arrays))
    assert ours.dtype == theirs.dtype == np.float64
    assert 1e-9 < np.abs(theirs - expected).max() < 1e-5
    assert np.abs(ours - expected).max() < 1e-13


def test_jax_nn_differs_on_values_of_other_features_than_the_keys():
    query, key, _ = qkv()
    value = drawn(3, B, S, N, M)
    with pytest.raises(ValueError, match="value shape should be"):
        jax.nn.dot_product_attention(query, key, value)
    assert jax.eval_shape(dot_product_attention, query, key, value).shape == (B, T, N, M)


def test_jax_nn_differs_on_what_gelu_means():
    """The tanh approximation there unless told otherwise; by name here."""
    x = np.linspace(-4, 4, 101, dtype=np.float32)
    theirs, same, other = jax.device_get(
        jax.jit(lambda x: (jax.nn.gelu(x), ACTIVATIONS["gelu_tanh"](x), ACTIVATIONS["gelu"](x)))(x)
    )
    np.testing.assert_array_equal(theirs, same)
    distance = np.abs(theirs - other)
    assert 4e-4 < distance.max() < 5e-4


@pytest.mark.parametrize("peer", ["nnx.LayerNorm", "jax.nn.standardize"])
def test_nnx_and_jax_nn_differ_on_layer_norm_at_a_large_mean(peer):
    """One pass, E[x^2] - E[x]^2, there by default: no digit is right at a mean of 5000. Two passes
    here.
    """
    x = drawn(1, B, T, D) + 5000
    wide = np.asarray(x, np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    theirs = {
        "nnx.LayerNorm": lambda x: nnx.LayerNorm(D, epsilon=1e-5, rngs=nnx.Rngs(0))(x),
        "jax.nn.standardize": lambda x: jax.nn.standardize(x, epsilon=1e-5),
    }[peer]
    theirs, ours = jax.jit(lambda x: (theirs(x), layer_norm(x, jnp.ones(D), epsilon=1e-5)))(x)
    assert np.abs(theirs - expected).max() > 0.5
    assert np.abs(ours - expected).max() < 5e-3


def test_nnx_differs_on_the_default_epsilons():
    """1e-6 for its layer norm, 1e-5 here, as in PyTorch: it shows where a row hardly varies."""

    @jax.jit
    def run(x):
        scale, rngs = jnp.ones(D), nnx.Rngs(0)
        return (
            (nnx.LayerNorm(D, rngs=rngs)(x), nnx.RMSNorm(D, rngs=rngs)(x)),
            (layer_norm(x, scale, epsilon=1e-6), layer_norm(x, scale), rms_norm(x, scale)),
        )

    (theirs, their_rms), (same, ours, our_rms) = jax.device_get(run(1e-3 * drawn(1, B, T, D)))
    np.testing.assert_allclose(theirs, same, rtol=1e-4, atol=1e-4)
    assert np.abs(theirs - ours).max() > 0.1
    np.testing.assert_allclose(their_rms, our_rms, **CLOSE)


def test_nnx_differs_on_the_running_variance_of_batch_norm():
    """The biased variance goes into the average there; the unbiased one here, as in the paper and
    in PyTorch.
    """

    @jax.jit
    def run(x):
        norm = nnx.BatchNorm(D, momentum=0.9, use_fast_variance=False, rngs=nnx.Rngs(0))
        norm(x)
        start = BatchStatistics(jnp.zeros(D), jnp.ones(D))
        return running_statistics(start, x, momentum=0.9), norm.mean[...], norm.var[...]

    ours, mean, variance = jax.device_get(run(3 * drawn(1, B, T, D)))
    np.testing.assert_allclose(ours.mean, mean, **CLOSE)
    rows = B * T
    np.testing.assert_allclose((ours.variance - 0.9) * (rows - 1) / rows, variance - 0.9, **CLOSE)
    assert np.abs(ours.variance - variance).min() > 1e-3


def test_nnx_differs_on_dropout_across_heads_and_examples():
    """One mask of dropped weights for all of them there by default; each weight for itself here."""
    unit = np.eye(S, dtype=np.float32)[None, :, None]
    value = np.broadcast_to(unit, (B, S, N, S))  # the output is the weights
    query, key = np.zeros((B, T, N, S), np.float32), np.zeros((B, S, N, S), np.float32)
    rng = jax.random.key(0)
    theirs, ours = jax.device_get(
        jax.jit(
            lambda *x: [
                attend(*x, dropout_rng=rng, dropout_rate=0.5)
                for attend in (nnx.dot_product_attention, dot_product_attention)
            ]
        )(query, key, value)
    )
    one = theirs[:1, :, :1] == 0
    assert one.any() and not one.all()
    assert ((theirs == 0) == one).all()
    dropped = np.moveaxis(ours == 0, 1, 2).reshape(B * N, -1)
    assert len(np.unique(dropped, axis=0)) == B * N


def test_nnx_differs_on_dropout_in_a_query_without_keys():
    """nnx gives what is left of the mean of the values, scaled up; this library gives 0."""
    mask, rng = np.zeros((1, 1, T, S), bool), jax.random.key(0)
    theirs, ours = jax.jit(
        lambda *x: [
            attend(*x, mask=mask, dropout_rng=rng, dropout_rate=0.5)
            for attend in (nnx.dot_product_attention, dot_product_attention)
        ]
    )(*qkv())
    assert np.any(theirs)
    assert not np.any(ours)


@pytest.mark.usefixtures("as_users_run_it")
def test_nnx_differs_on_the_dtype_of_masks():
    """Its helpers make masks of float32, which we refuse: a float mask may be a bias."""
    mask = nnx.make_causal_mask(jnp.ones((1, T)))
    assert mask.dtype == jnp.float32
    with pytest.raises(TypeError, match="mask must be boolean"):
        dot_product_attention(*qkv(keys=T), mask=mask)


def test_nnx_differs_on_a_negative_index():
    """Counted from the end there; a mistake here, which shows as NaN."""
    table, tokens = drawn(1, T, D), np.array([-1, T], np.int32)
    embed, _ = as_function(
        lambda: nnx.Embed(T, D, rngs=nnx.Rngs(0)), lambda module, tokens: module(tokens)
    )
    theirs, ours = jax.jit(lambda *arrays: (embed(*arrays), lookup(*arrays)))(table, tokens)
    theirs = np.asarray(theirs)
    np.testing.assert_array_equal(theirs[0], table[-1])
    assert np.isnan(theirs[1]).all() and np.isnan(ours).all()


# The table
# --------------------------------------------------------------------------------------------------


def test_the_table_of_differences_names_every_test_of_one_and_no_other():
    here = Path(__file__).parent
    tests = [
        f"{name}::{node.name}"
        for name in ("test_parity.py", "test_parity_torch.py")
        for node in ast.parse((here / name).read_text()).body
        if isinstance(node, ast.FunctionDef) and re.match("test_.*_differs?_on_", node.name)
    ]
    page = (here.parents[1] / "docs" / "research" / "differences.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| (?!Case )", line)]
    named = [re.findall(r"`(test_\w+\.py::\w+)`", row) for row in rows]
    assert all(len(names) == 1 for names in named), "one test in every row"
    assert sorted(name for (name,) in named) == sorted(tests)
