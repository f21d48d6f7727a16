"""The loops of bench/naive.py and the library say the same: float64 loops, float32 library."""

import ast
import inspect
from functools import partial

import jax
import numpy as np
import pytest

from bench import naive
from tests.helpers.arrays import float32
from transformer_jax.attention import masks
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.functional.feed_forward import feed_forward
from transformer_jax.functional.normalization import layer_norm

B, T, S, N, H, D, F = 2, 5, 7, 6, 11, 13, 17
VALUE_FEATURES = 3
TOLERANCE = {"rtol": 0, "atol": 1e-5}

IS_TOKEN = np.arange(S) < np.array([[7], [4]])
EMPTY_EXAMPLE = np.arange(S) < np.array([[0], [4]])
SOME_ROWS_EMPTY = np.random.default_rng(1).random((B, N, T, S)) < 0.4
SOME_ROWS_EMPTY[:, :, 2] = False
SOME_ROWS_EMPTY[1, 3] = False

MASKS = {
    "none": None,
    "causal": masks.causal(),
    "padding": masks.padding(IS_TOKEN),
    "causal and padding": masks.causal() & masks.padding(IS_TOKEN[:, ::-1]),
    "an example without tokens": masks.padding(EMPTY_EXAMPLE),
    "per head, some rows empty": SOME_ROWS_EMPTY,
    "all false": np.zeros((1, 1, 1, S), bool),
}


attend = jax.jit(dot_product_attention, static_argnames=("scale", "return_logsumexp"))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def rendered(mask, T: int, S: int) -> np.ndarray | None:
    return np.asarray(mask.to_array(T, S)) if isinstance(mask, masks.Mask) else mask


def query_key_value(queries: int, K: int) -> tuple[np.ndarray, ...]:
    return (
        normal(B, queries, N, H, seed=1),
        normal(B, S, K, H, seed=2),
        normal(B, S, K, VALUE_FEATURES, seed=3),
    )


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(("queries", "K"), [(T, 2), (T, 3), (S, 6), (1, 1)])
def test_loops_equal_dot_product_attention(mask, K, queries):
    if mask is SOME_ROWS_EMPTY:
        mask = np.concatenate([mask, mask], axis=2)[:, :, :queries]
    args = query_key_value(queries, K)
    bias = normal(1, N, queries, S)

    loops = naive.attention(*args, mask=rendered(mask, queries, S), bias=bias)
    library = attend(*float32(*args), bias=float32(bias)[0], mask=mask)
    np.testing.assert_allclose(library, loops, **TOLERANCE)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("K", [2, 3])
def test_loops_equal_numpy_attention(mask, K):
    args = query_key_value(T, K)
    options = {"mask": rendered(mask, T, S), "bias": normal(B, 1, T, S), "scale": 0.7}

    loops = naive.attention(*args, **options)
    np.testing.assert_allclose(naive.numpy_attention(*args, **options), loops, atol=1e-13)


def test_numpy_attention_keeps_float32():
    args = [x.astype(np.float32) for x in query_key_value(T, 2)]
    output = naive.numpy_attention(*args, mask=SOME_ROWS_EMPTY)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, naive.attention(*args, mask=SOME_ROWS_EMPTY), **TOLERANCE)


def test_scale_replaces_the_root_of_the_features():
    args = query_key_value(T, 2)
    loops = naive.attention(*args, scale=0.7)
    np.testing.assert_allclose(attend(*float32(*args), scale=0.7), loops, **TOLERANCE)


@pytest.mark.parametrize("attention", [naive.attention, naive.numpy_attention])
def test_query_without_keys_gets_zeros(attention):
    output = attention(*query_key_value(T, 2), mask=SOME_ROWS_EMPTY)
    assert not output[:, 2].any()
    assert not output[1, :, 3].any()
    assert output[0, 0].all()


def test_unseen_keys_and_blind_queries_are_never_read():
    query, key, value = query_key_value(T, 2)
    mask = np.ones((1, 1, T, S), bool)
    mask[..., 4] = mask[:, :, 2] = False
    clean = naive.attention(query, key, value, mask=mask)

    query[:, 2], key[:, 4], value[:, 4] = np.nan, np.inf, np.nan
    np.testing.assert_array_equal(naive.attention(query, key, value, mask=mask), clean)
    library = attend(*float32(query, key, value), mask=mask)
    np.testing.assert_allclose(library, clean, **TOLERANCE)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_loops_equal_multi_head_attention(mask, K, biased):
    args = (
        normal(B, T, D, seed=1),
        normal(B, S, D, seed=2),
        normal(D, N, H, seed=3) / D**0.5,
        normal(D, K, H, seed=4) / D**0.5,
        normal(D, K, VALUE_FEATURES, seed=5) / D**0.5,
        normal(N, VALUE_FEATURES, D, seed=6) / N**0.5,
    )
    biases = {
        "query_bias": normal(N, H, seed=7),
        "key_bias": normal(K, H, seed=8),
        "value_bias": normal(K, VALUE_FEATURES, seed=9),
        "out_bias": normal(D, seed=10),
    }
    biases = biases if biased else {}

    loops = naive.multi_head_attention(*args, **biases, mask=rendered(mask, T, S))
    library = multi_head_attention(*float32(*args), **float32(biases)[0], mask=mask)
    np.testing.assert_allclose(library, loops, **TOLERANCE)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
@pytest.mark.parametrize("bias", [normal(D, seed=2), None], ids=["biased", "unbiased"])
def test_loops_equal_layer_norm(bias, epsilon):
    # Small numbers: epsilon only shows beside a variance of its own size.
    x, scale = normal(B, T, D) * 1e-2, normal(D, seed=1)
    loops = naive.layer_norm(x, scale, bias, epsilon=epsilon)
    library = jax.jit(partial(layer_norm, epsilon=epsilon))(*float32(x, scale, bias))
    np.testing.assert_allclose(library, loops, **TOLERANCE)


def test_layer_norm_epsilon_defaults_agree():
    x, scale = normal(B, T, D) * 1e-2, normal(D, seed=1)
    loops = naive.layer_norm(x, scale)
    np.testing.assert_allclose(jax.jit(layer_norm)(*float32(x, scale)), loops, **TOLERANCE)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("biased", [False, True])
def test_loops_equal_feed_forward(activation, biased):
    x, in_kernel, out_kernel = normal(B, T, D), normal(D, F) / D**0.5, normal(F, D) / F**0.5
    in_bias, out_bias = (normal(F), normal(D)) if biased else (None, None)
    args = (x, in_kernel, in_bias, out_kernel, out_bias)

    loops = naive.feed_forward(*args, activation=activation)
    library = jax.jit(partial(feed_forward, activation=activation))(*float32(*args))
    np.testing.assert_allclose(library, loops, **TOLERANCE)


def test_exact_and_tanh_gelu_differ_by_more_than_the_tolerance():
    assert naive.gelu(1.0) == pytest.approx(0.8413447460685429)  # Phi(1)
    assert abs(naive.gelu(2.0) - naive.gelu_tanh(2.0)) > 5 * TOLERANCE["atol"]


# The softmax, its masks, and the dot product
# -----------------------------------------------------------------

LOGITS = normal(97, 5, seed=1) * 3
SEEN = np.random.default_rng(2).random((97, 5)) < 0.6


def each(function):
    return np.array([function(*row) for row in zip(LOGITS.tolist(), SEEN.tolist(), strict=True)])


def test_masking_before_the_softmax_is_zeroing_and_renormalising():
    before = each(naive.mask_before_softmax)
    np.testing.assert_allclose(before, each(naive.zero_and_renormalise), rtol=0, atol=1e-12)
    np.testing.assert_allclose(before.sum(1), SEEN.any(1), atol=1e-12)
    library = jax.jit(partial(attention_weights, scale=1.0))(
        *float32(LOGITS[:, None, None], np.eye(5)[None, :, None].repeat(97, 0)),
        mask=SEEN[:, None, None],
    )
    np.testing.assert_allclose(np.asarray(library)[:, 0, 0], before, **TOLERANCE)


def test_zeroing_a_hidden_weight_that_took_everything_leaves_nothing_to_renormalise():
    logits, mask = [0.0, 1.0, 900.0], [True, True, False]
    assert naive.zero_and_renormalise(logits, mask) == [0.0, 0.0, 0.0]
    assert sum(naive.mask_before_softmax(logits, mask)) == pytest.approx(1)


def test_masking_after_the_softmax_leaks_what_is_hidden():
    """A hidden logit moves the weights that are seen: the future tells how much it matters."""
    mask = [True, True, False]
    calm, loud = ([1.0, 2.0, hidden] for hidden in (0.0, 5.0))
    assert naive.mask_before_softmax(calm, mask) == naive.mask_before_softmax(loud, mask)
    leaked = naive.mask_after_softmax(calm, mask)[0] - naive.mask_after_softmax(loud, mask)[0]
    assert leaked > 0.2
    assert sum(naive.mask_after_softmax(loud, mask)) < 0.1


def test_a_softmax_of_nothing_is_nothing():
    assert naive.softmax([]) == []
    assert naive.log_sum_exp([]) == -np.inf
    assert naive.mask_before_softmax([1.0, 2.0], [False, False]) == [0.0, 0.0]


def test_a_dot_product_is_length_times_length_times_cosine():
    query, key = normal(1, 31, 1, H, seed=1), normal(1, 31, 1, H, seed=2)
    key[0, 3], key[0, 4], key[0, 5] = 2 * query[0, 3], -query[0, 4], 0
    angles = [
        naive.dot_by_angle(q.tolist(), k.tolist())
        for q, k in zip(query[0, :, 0], key[0, :, 0], strict=True)
    ]
    np.testing.assert_allclose(angles, np.sum(query * key, axis=-1)[0, :, 0], rtol=0, atol=1e-12)
    # The logsumexp of one key is its logit.
    _, logits = attend(
        *float32(query[0, :, None], key[0, :, None], key[0, :, None]),
        scale=1.0,
        return_logsumexp=True,
    )
    np.testing.assert_allclose(np.asarray(logits)[:, 0, 0], angles, **TOLERANCE)
    assert naive.cosine(query[0, 3, 0].tolist(), key[0, 3, 0].tolist()) == pytest.approx(1)
    assert naive.cosine(query[0, 4, 0].tolist(), key[0, 4, 0].tolist()) == pytest.approx(-1)


def test_the_weights_that_the_loops_return_make_their_output():
    args = query_key_value(T, 2)
    output, weights = naive.attention(*args, mask=SOME_ROWS_EMPTY, return_weights=True)
    value = args[2].repeat(N // 2, axis=2)
    np.testing.assert_allclose(np.einsum("bnts,bsnh->btnh", weights, value), output, atol=1e-13)
    assert not weights[~SOME_ROWS_EMPTY].any()


def test_kept_weights_are_scaled_up_and_dropped_ones_are_not_read():
    args = query_key_value(T, 2)
    kept = np.random.default_rng(3).random((B, N, T, S)) < 0.5
    options = {"mask": SOME_ROWS_EMPTY, "return_weights": True}
    _, weights = naive.attention(*args, **options)
    _, dropped = naive.attention(*args, **options, kept=kept, dropout_rate=0.5)
    np.testing.assert_allclose(dropped, weights * kept * 2, atol=1e-15)


def test_the_loops_import_numpy_alone():
    tree = ast.parse(inspect.getsource(naive))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported == {"math", "numpy"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))
