"""Attention is softmax(scale Q K^T + bias) V: against loops in float64, jax.nn, other ways to write it, and print."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.attention import (
    attention_weights,
    dot_product_attention,
    multi_head_attention,
)
from transformer_jax.masks import causal

pytestmark = pytest.mark.usefixtures("strict")

B, T, S, N, H, O, D, E, M = 2, 5, 7, 6, 11, 3, 13, 17, 19  # noqa: E741
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
PRINTED = {"rtol": 1e-4, "atol": 1e-5}  # the tolerance of worked_examples.json


def normal(seed, *shape):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def float32(*arrays):
    return [jnp.asarray(x, jnp.float32) for x in arrays]


def numpy_attention(query, key, value, bias, mask, scale, cotangent):
    """Output, weights and the gradient of (output * cotangent).sum() in float64, a query at a time."""
    group = query.shape[2] // key.shape[2]
    weights = np.zeros(mask.shape)
    output = np.zeros((*query.shape[:3], value.shape[3]))
    d_query, d_key, d_value = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    d_bias = np.zeros(mask.shape)
    for b, n, t in np.ndindex(*mask.shape[:3]):
        seen = mask[b, n, t]
        if not seen.any():
            continue
        q, k, v = query[b, t, n], key[b, :, n // group], value[b, :, n // group]
        logits = np.array([scale * (q @ k[s]) + bias[b, n, t, s] for s in range(len(k))])
        w = np.where(seen, np.exp(logits - logits[seen].max()), 0)
        w = w / w.sum()
        weights[b, n, t], output[b, t, n] = w, w @ v
        g = cotangent[b, t, n]
        d_logits = w * (v @ g - g @ (w @ v))
        d_bias[b, n, t] = d_logits
        d_query[b, t, n] += scale * d_logits @ k
        d_key[b, :, n // group] += scale * np.outer(d_logits, q)
        d_value[b, :, n // group] += np.outer(w, g)
    return (output, weights), (d_query, d_key, d_value, d_bias)


@jax.jit
def value_and_gradient(query, key, value, bias, mask, cotangent):
    def loss(query, key, value, bias):
        output, weights = dot_product_attention(
            query, key, value, bias=bias, mask=mask, return_weights=True
        )
        return jnp.sum(output * cotangent), (output, weights)

    grads, out = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(query, key, value, bias)
    return out, grads


def assert_all_close(ours, theirs, **tolerance):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


@pytest.mark.parametrize("K", [2, 3, 6])
def test_value_and_gradient_equal_the_loops(K):
    for seed in range(4):
        query, cotangent = normal(seed, B, T, N, H), normal(seed, B, T, N, O)
        key, value = normal(seed, B, S, K, H), normal(seed, B, S, K, O)
        bias = normal(seed, B, N, T, S)
        mask = normal(seed + 9, B, N, T, S) > 0.6
        mask[0, :, 2] = False
        ours = value_and_gradient(*float32(query, key, value, bias), mask, *float32(cotangent))
        loops = numpy_attention(query, key, value, bias, mask, H**-0.5, cotangent)
        assert_all_close(ours, loops, **CLOSE)


def test_value_and_gradient_equal_jax_nn():
    query, key, value = float32(normal(1, B, T, N, H), normal(2, B, S, 2, H), normal(3, B, S, 2, H))
    bias, cotangent = float32(normal(4, B, N, T, S), normal(5, B, T, N, H))
    mask = normal(6, B, N, T, S) > 0
    mask[..., 3] = True  # jax.nn gives the mean of the values where a query sees nothing

    def peer(query, key, value, bias):
        output = jax.nn.dot_product_attention(query, key, value, bias=bias, mask=mask)
        return jnp.sum(output * cotangent), output

    with jax.numpy_dtype_promotion("standard"):
        grads, output = jax.jit(jax.grad(peer, argnums=(0, 1, 2, 3), has_aux=True))(
            query, key, value, bias
        )
    (ours, _), our_grads = value_and_gradient(query, key, value, bias, mask, cotangent)
    assert_all_close((ours, our_grads), (output, grads), **CLOSE)


@pytest.fixture(scope="module")
def weights_of():
    return jax.jit(attention_weights, static_argnames="scale")


@pytest.fixture(scope="module")
def one_draw():
    return float32(normal(1, B, T, N, H), normal(2, B, S, 3, H), normal(3, B, S, 3, O))


def test_weights_alone_are_the_weights_that_are_returned(weights_of, one_draw):
    query, key, value = one_draw
    bias, mask = jnp.zeros((B, N, T, S)), normal(4, B, N, T, S) > 0
    cotangent = jnp.zeros((B, T, N, O))
    (_, returned), _ = value_and_gradient(query, key, value, bias, mask, cotangent)
    alone = weights_of(query, key, mask=jnp.array(mask))
    assert alone.shape == (B, N, T, S)
    np.testing.assert_allclose(alone, returned, rtol=0, atol=1e-6)


def test_weights_of_a_query_sum_to_one_or_to_zero(weights_of, one_draw):
    for seed in range(8):
        mask = normal(seed, B, N, T, S) > 1
        sums = weights_of(*one_draw[:2], mask=jnp.array(mask)).sum(-1)
        np.testing.assert_allclose(sums, mask.any(-1), rtol=0, atol=1e-6)


def test_scale_is_one_over_the_root_of_the_features(weights_of, one_draw):
    query, key, _ = one_draw
    by_default = weights_of(query, key)
    np.testing.assert_allclose(by_default, weights_of(query, key, scale=H**-0.5), atol=1e-7)
    np.testing.assert_allclose(
        by_default, weights_of(query * H**-0.5, key, scale=1.0), rtol=1e-5, atol=1e-6
    )
    assert np.abs(by_default - weights_of(query, key, scale=1.0)).max() > 0.1


def test_a_bias_shared_by_all_keys_of_a_query_changes_nothing(weights_of, one_draw):
    query, key, _ = one_draw
    bias = jnp.asarray(normal(7, B, N, T, 1) * 10, jnp.float32)
    np.testing.assert_allclose(
        weights_of(query, key, bias=bias), weights_of(query, key), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("mask", [None, np.arange(S) != 3], ids=["all", "masked"])
def test_huge_logits_do_not_overflow(weights_of, one_draw, mask):
    query, key, _ = one_draw
    weights = weights_of(1e15 * query, 1e15 * key, mask=mask)
    logits = np.einsum("BTKGH,BSKH->BKGTS", query.reshape(B, T, 3, 2, H), key)
    logits = np.where(True if mask is None else mask, logits.reshape(B, N, T, S), -np.inf)
    np.testing.assert_array_equal(weights.argmax(-1), logits.argmax(-1))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


def test_keys_and_values_in_another_order_change_nothing(one_draw):
    query, key, value = one_draw
    bias, cotangent = float32(normal(4, B, N, T, S), normal(5, B, T, N, O))
    mask = normal(6, B, N, T, S) > 0
    order = np.random.default_rng(0).permutation(S)
    (output, weights), grads = value_and_gradient(query, key, value, bias, mask, cotangent)
    (other, reordered), other_grads = value_and_gradient(
        query, key[:, order], value[:, order], bias[..., order], mask[..., order], cotangent
    )
    np.testing.assert_allclose(other, output, rtol=0, atol=1e-6)
    np.testing.assert_allclose(reordered, weights[..., order], rtol=0, atol=1e-6)
    np.testing.assert_allclose(other_grads[2], grads[2][:, order], rtol=0, atol=1e-5)


def test_queries_in_another_order_give_outputs_in_that_order(one_draw):
    query, key, value = one_draw
    bias, cotangent = float32(np.zeros((B, N, T, S)), np.zeros((B, T, N, O)))
    mask = np.ones((B, N, T, S), bool)
    order = np.random.default_rng(1).permutation(T)
    (output, _), _ = value_and_gradient(query, key, value, bias, mask, cotangent)
    (other, _), _ = value_and_gradient(query[:, order], key, value, bias, mask, cotangent)
    np.testing.assert_allclose(other, output[:, order], rtol=0, atol=1e-6)


def test_vmap_over_examples_is_the_batch(one_draw):
    query, key, value = one_draw
    together = jax.jit(dot_product_attention)(query, key, value)
    one = jax.vmap(lambda *x: dot_product_attention(*(y[None] for y in x))[0])
    np.testing.assert_allclose(jax.jit(one)(query, key, value), together, rtol=0, atol=1e-6)


# dtype ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mixed_dtypes")
def test_logits_of_bfloat16_are_float32(weights_of):
    # 257 and 256 are one number in bfloat16.
    query = jnp.array([[[[16.0, 1.0]]]], jnp.bfloat16)
    key = jnp.array([[[[16.0, 1.0]], [[16.0, 0.0]]]], jnp.bfloat16)
    weights = weights_of(query, key, scale=1.0)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights[0, 0, 0], [0.731059, 0.268941], atol=1e-5)


@pytest.mark.usefixtures("mixed_dtypes")
def test_bfloat16_in_bfloat16_out_near_the_loops():
    arrays = normal(1, B, T, N, H), normal(2, B, S, 3, H), normal(3, B, S, 3, O)
    rounded = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
    output, weights = jax.jit(dot_product_attention, static_argnames="return_weights")(
        *rounded, return_weights=True
    )
    assert (output.dtype, weights.dtype) == (jnp.bfloat16, jnp.float32)
    nothing, everything = np.zeros((B, N, T, S)), np.ones((B, N, T, S), bool)
    wide = [np.asarray(x, np.float64) for x in rounded]
    (expected, _), _ = numpy_attention(*wide, nothing, everything, H**-0.5, np.zeros((B, T, N, O)))
    np.testing.assert_allclose(output.astype(jnp.float32), expected, rtol=0, atol=2e-2)


@pytest.mark.usefixtures("mixed_dtypes")
def test_values_in_bfloat16_are_summed_in_float32():
    # 1024 equal weights of 1/1024: a running sum in bfloat16 stops growing long before the end.
    query, key = jnp.zeros((1, 1, 1, 2), jnp.bfloat16), jnp.zeros((1, 1024, 1, 2), jnp.bfloat16)
    value = jnp.ones((1, 1024, 1, 3), jnp.bfloat16)
    output = jax.jit(dot_product_attention)(query, key, value)
    np.testing.assert_array_equal(output.astype(jnp.float32), 1)


@pytest.mark.usefixtures("mixed_dtypes")
def test_float64_stays_float64():
    arrays = normal(1, B, T, N, H), normal(2, B, S, 3, H), normal(3, B, S, 3, O)
    with jax.enable_x64(True):
        output, weights = jax.jit(dot_product_attention, static_argnames="return_weights")(
            *arrays, return_weights=True
        )
        assert output.dtype == weights.dtype == jnp.float64
        nothing, everything = np.zeros((B, N, T, S)), np.ones((B, N, T, S), bool)
        expected, _ = numpy_attention(*arrays, nothing, everything, H**-0.5, np.zeros((B, T, N, O)))
        assert_all_close((output, weights), expected, rtol=0, atol=1e-13)


# Multi-head attention --------------------------------------------------------------------------------------


def kernels(K):
    return float32(
        *(normal(1, D, N, H), normal(2, E, K, H), normal(3, E, K, O), normal(4, N, O, M) / 4),
        *(normal(5, N, H), normal(6, K, H), normal(7, K, O), normal(8, M)),
    )


def ours(inputs_q, inputs_kv, mask, parameters, bias):
    *four, query_bias, key_bias, value_bias, out_bias = parameters
    return multi_head_attention(
        inputs_q,
        inputs_kv,
        *four,
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        out_bias=out_bias,
        bias=bias,
        mask=mask,
        return_weights=True,
    )


def softmax(logits, mask):
    return jax.nn.softmax(jnp.where(mask, logits, -1e30), axis=-1)


def one_head_at_a_time(inputs_q, inputs_kv, mask, parameters, bias):
    wq, wk, wv, wo, bq, bk, bv, bo = parameters
    total, maps = bo, []
    for n in range(N):
        k = n // (N // wk.shape[1])
        query = inputs_q @ wq[:, n] + bq[n]
        key, value = inputs_kv @ wk[:, k] + bk[k], inputs_kv @ wv[:, k] + bv[k]
        logits = query @ key.swapaxes(1, 2) / np.float32(H) ** 0.5 + bias[:, n]
        maps.append(softmax(logits, mask[:, n]))
        total = total + maps[-1] @ value @ wo[n]
    return total, jnp.stack(maps, axis=1)


def concatenated_heads(inputs_q, inputs_kv, mask, parameters, bias):
    """As most books write it: one wide projection, split into heads, concatenated, and W^O [N O, M]."""
    wq, wk, wv, wo, bq, bk, bv, bo = parameters
    K = wk.shape[1]

    def split(x, kernel, offset):
        flat = x @ kernel.reshape(kernel.shape[0], -1) + offset.reshape(-1)
        return jnp.split(flat, kernel.shape[1], axis=-1)

    query, key, value = split(inputs_q, wq, bq), split(inputs_kv, wk, bk), split(inputs_kv, wv, bv)
    heads, maps = [], []
    for n in range(N):
        logits = jnp.einsum("btx,bsx->bts", query[n], key[n * K // N]) / np.float32(H) ** 0.5
        maps.append(softmax(logits + bias[:, n], mask[:, n]))
        heads.append(jnp.einsum("bts,bsx->btx", maps[-1], value[n * K // N]))
    return jnp.concatenate(heads, axis=-1) @ wo.reshape(-1, M) + bo, jnp.stack(maps, axis=1)


def repeated_keys(inputs_q, inputs_kv, mask, parameters, bias):
    """No reshape anywhere: the keys and values of a group are repeated for each of its heads."""
    wq, wk, wv, wo, bq, bk, bv, bo = parameters
    group = N // wk.shape[1]
    wk, bk, wv, bv = (jnp.repeat(x, group, axis=a) for x, a in ((wk, 1), (bk, 0), (wv, 1), (bv, 0)))
    query = jnp.einsum("BTD,DNH->BNTH", inputs_q, wq) + bq[:, None]
    key = jnp.einsum("BSE,ENH->BNSH", inputs_kv, wk) + bk[:, None]
    value = jnp.einsum("BSE,ENO->BNSO", inputs_kv, wv) + bv[:, None]
    logits = jnp.einsum("BNTH,BNSH->BNTS", query, key) / np.float32(H) ** 0.5 + bias
    weights = softmax(logits, mask)
    return jnp.einsum("BNTS,BNSO,NOM->BTM", weights, value, wo) + bo, weights


def test_multi_head_attention_three_other_ways():
    inputs_q, inputs_kv = float32(normal(1, B, T, D) / 4, normal(2, B, S, E) / 4)
    (bias,) = float32(normal(4, B, N, T, S))
    mask = normal(3, B, N, T, S) > 0
    mask[..., 0] = True
    mask = jnp.array(mask)

    @jax.jit
    def run(*args):
        ways = (ours, one_head_at_a_time, concatenated_heads, repeated_keys)
        return [way(*args, bias) for way in ways]

    (output, weights), *others = run(inputs_q, inputs_kv, mask, kernels(2))
    assert output.shape == (B, T, M)
    assert weights.shape == (B, N, T, S)
    for other, other_weights in others:
        size = np.abs(other).max()
        np.testing.assert_allclose(output / size, other / size, rtol=0, atol=1e-6)
        np.testing.assert_allclose(weights, other_weights, rtol=0, atol=1e-6)


# The numbers of the sources (shared/spec/worked_examples.json, recomputed) ------------------------------------


@pytest.fixture(scope="module")
def attend():
    """One head, no batch: rows in, (output, weights) out."""

    @partial(jax.jit, static_argnames="scale")
    def run(query, key, value, scale=None):
        rows = (x[None, :, None] for x in (query, key, value))
        output, weights = dot_product_attention(*rows, scale=scale, return_weights=True)
        return output[0, :, 0], weights[0, 0]

    return lambda *arrays, **scale: run(*float32(*map(np.array, arrays)), **scale)


def test_cat_sat(attend):
    x = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]]
    output, weights = attend(x, x, x)
    np.testing.assert_allclose(
        weights,
        [
            [0.50648, 0.186324, 0.307196],
            [0.186324, 0.50648, 0.307196],
            [0.274069, 0.274069, 0.451863],
        ],
        **PRINTED,
    )
    np.testing.assert_allclose(
        output,
        [
            [0.813676, 0.49352, 0.50648, 0.186324],
            [0.49352, 0.813676, 0.186324, 0.50648],
            [0.725931, 0.725931, 0.274069, 0.274069],
        ],
        **PRINTED,
    )


def test_bread_table(attend):
    x = np.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
    query = x @ [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
    key = x @ [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
    value = x @ [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]
    output, weights = attend(query, key, value)
    np.testing.assert_allclose(
        weights,
        [
            [0.136126, 0.431937, 0.431937],
            [0.00089, 0.908843, 0.090267],
            [0.007445, 0.754708, 0.237848],
        ],
        **PRINTED,
    )
    np.testing.assert_allclose(
        output,
        [
            [1.863874, 6.319371, 1.704189],
            [1.99911, 7.814124, 0.273472],
            [1.992555, 7.479636, 0.735877],
        ],
        **PRINTED,
    )


def test_bright_qkv():
    x = [
        [0.32, 0.21, 0.43, 0.21, 0.86, 0.67, 0.98, 0.23],
        [0.43, 0.56, 0.43, 0.56, 0.69, 0.21, 0.56, 0.21],
        [0.56, 0.21, 0.43, 0.21, 0.54, 0.12, 0.89, 0.98],
        [0.87, 0.34, 0.18, 0.32, 0.75, 0.12, 0.54, 0.92],
        [0.76, 0.21, 0.85, 0.34, 0.98, 0.23, 0.68, 0.34],
    ]
    query_kernel = [
        [0.2961, 0.5166, -0.0973, 0.234],
        [0.2517, 0.6886, 0.0451, -0.4128],
        [0.074, 0.8665, 0.321, 0.0185],
        [0.1366, 0.1025, -0.2314, 0.5642],
        [0.1841, 0.7264, -0.1035, 0.3399],
        [0.3153, 0.6871, 0.2478, -0.152],
        [0.0756, 0.1966, 0.5142, 0.0813],
        [0.3164, 0.4017, -0.0879, 0.2904],
    ]
    key_kernel = [
        [0.1186, 0.8274, 0.104, -0.3055],
        [0.3821, 0.6605, -0.2103, 0.1428],
        [0.8536, 0.5932, -0.1449, 0.317],
        [0.6367, 0.9826, 0.2553, -0.0872],
        [0.2745, 0.6584, 0.0342, 0.5051],
        [0.2775, 0.8573, -0.2984, 0.1907],
        [0.8993, 0.039, 0.1206, 0.2843],
        [0.9268, 0.7388, -0.0721, 0.3419],
    ]
    value_kernel = [
        [0.7179, 0.7058, -0.163, 0.331],
        [0.9156, 0.434, 0.0982, -0.2753],
        [0.0772, 0.3565, 0.2056, 0.1468],
        [0.1479, 0.5331, -0.0925, 0.2391],
        [0.4066, 0.2318, 0.0194, 0.1844],
        [0.4545, 0.9737, -0.3086, -0.0417],
        [0.4606, 0.5159, 0.1274, 0.0219],
        [0.422, 0.5786, -0.0853, 0.364],
    ]
    x, *projections = float32(*map(np.array, (x, query_kernel, key_kernel, value_kernel)))
    # One head; W^O is the identity, as in the text.
    output, weights = jax.jit(multi_head_attention, static_argnames="return_weights")(
        x[None],
        x[None],
        *(kernel[:, None] for kernel in projections),
        jnp.eye(4)[None],
        return_weights=True,
    )
    np.testing.assert_allclose(
        weights[0, 0],
        [
            [0.148253, 0.151874, 0.185865, 0.234961, 0.279047],
            [0.156469, 0.154443, 0.188386, 0.228566, 0.272136],
            [0.15669, 0.14952, 0.192642, 0.225306, 0.275841],
            [0.157218, 0.144338, 0.193761, 0.222877, 0.281805],
            [0.144964, 0.14231, 0.181485, 0.235647, 0.295595],
        ],
        **PRINTED,
    )
    np.testing.assert_allclose(
        output[0],
        [
            [1.803357, 2.033852, -0.021699, 0.631407],
            [1.800643, 2.032526, -0.021488, 0.627598],
            [1.80054, 2.033833, -0.021005, 0.628878],
            [1.800768, 2.03549, -0.020554, 0.630195],
            [1.805609, 2.037591, -0.02111, 0.635505],
        ],
        **PRINTED,
    )


def test_artist_attention(attend):
    x = np.array(
        [
            [1.0, 0.2, 0.3, 0.1],
            [0.3, 0.9, 0.2, 0.4],
            [0.2, 0.1, 0.8, 0.3],
            [0.4, 0.3, 0.2, 0.9],
            [0.1, 0.7, 0.4, 0.2],
            [0.5, 0.2, 0.6, 0.3],
            [0.8, 0.1, 0.2, 0.5],
        ]
    )
    kernels = np.arange(1, 17).reshape(4, 4) / 10  # W_Q; W_K and W_V are 0.1 and 0.2 larger
    query, key, value = x @ kernels, x @ (kernels + 0.1), x @ (kernels + 0.2)
    output, weights = attend(query[3:4], key, value)
    np.testing.assert_allclose(
        weights,
        [[0.015016, 0.148225, 0.101366, 0.545626, 0.049143, 0.085348, 0.055276]],
        **PRINTED,
    )
    np.testing.assert_allclose(output, [[1.678926, 1.849793, 2.020659, 2.191526]], **PRINTED)


@pytest.mark.parametrize(
    ("scores", "scale", "weights"),
    [
        pytest.param(
            [[15.2, 12.8, 8.3], [18.7, 22.1, 14.5], [9.4, 11.6, 16.8]],
            64**-0.5,
            [
                [0.462337, 0.342508, 0.195155],
                [0.320395, 0.490073, 0.189531],
                [0.20668, 0.2721, 0.52122],
            ],
            id="bank_scaled",
        ),
        pytest.param(
            [[5.432, 6.123, 9.23, 10.156, 6.891, 8.745, 5.678]],
            0.5,
            [[0.035524, 0.050185, 0.237273, 0.376987, 0.073678, 0.186179, 0.040174]],
            id="artist_softmax",
        ),
        pytest.param([[2.0, 1.0, 0.1]], 1.0, [[0.659001, 0.242433, 0.098566]], id="softmax_money"),
        pytest.param(
            [[-45.0, 52.0, -38.0, 61.0]],
            1.0,
            [[0.0, 0.000123, 0.0, 0.999877]],
            id="softmax_saturation",
        ),
        pytest.param(
            [[1.0, 2.0, 3.0, 6.0]],
            1.0,
            [[0.006269, 0.01704, 0.04632, 0.93037]],
            id="softmax_vs_sum",
        ),
    ],
)
def test_printed_scores_become_weights(attend, scores, scale, weights):
    # Keys that are unit vectors hand the scores through.
    unit = np.eye(len(scores[0]))
    _, ours = attend(scores, unit, unit, scale=scale)
    np.testing.assert_allclose(ours, weights, rtol=1e-4, atol=1e-5 if scale != 1 else 1e-6)


def test_causal_weights(weights_of):
    scaled = 0.5 + 0.25 * np.arange(5)[:, None] + 0.5 * np.arange(5)
    scaled = jnp.asarray(scaled[None, :, None], jnp.float32)
    weights = weights_of(scaled, jnp.eye(5)[None, :, None], mask=causal(), scale=1.0)
    np.testing.assert_allclose(
        weights[0, 0],
        [
            [1, 0, 0, 0, 0],
            [0.377541, 0.622459, 0, 0, 0],
            [0.186324, 0.307196, 0.50648, 0, 0],
            [0.101536, 0.167405, 0.276004, 0.455054, 0],
            [0.058012, 0.095646, 0.157694, 0.259993, 0.428656],
        ],
        **PRINTED,
    )


def test_neg_inf_mask_is_a_bias_of_minus_infinity_and_a_mask(weights_of):
    scores = jnp.array([[2.0, 9.0, 7.0], [2.0, 3.0, 7.0]])[None, :, None]
    seen = np.array([[True, False, False], [True, True, False]])
    bias = jnp.where(seen, 0.0, -jnp.inf)[None, None]
    unit = jnp.eye(3)[None, :, None]
    for hidden in ({"mask": jnp.array(seen)}, {"bias": bias}):
        weights = weights_of(scores, unit, scale=1.0, **hidden)
        np.testing.assert_allclose(weights[0, 0], [[1, 0, 0], [0.268941, 0.731059, 0]], **PRINTED)


def test_variance_table_scores_have_unit_variance_after_the_scale(weights_of):
    # 64 features: the variance of q.k is 64, of q.k/8 it is 1. The logits are read off the weights of two keys.
    query, key = float32(normal(1, 1, 499, 1, 64), normal(2, 1, 499, 1, 64))
    log_weights = jnp.log(weights_of(query, key))
    logits = np.asarray(log_weights - log_weights.mean(-1, keepdims=True), np.float64)
    # The mean over the keys takes 1/499 of the variance; 3% is five standard errors of 499 vectors.
    assert abs(logits.var() - 1) < 0.05


# Mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        ((B, T, N, H), (B, S, 3, H), (B, S, 2, O), r"value must have .* K=3 of key; got the shape \(2, 7, 2, 3\)"),
        ((B, T, N, H), (B, S, 3, H), (B, T, 3, O), "value must have .* S=7 of key"),
        ((B, T, N, H), (B, S, 3, H + 1), (B, S, 3, O), "key must have .* H=11 of query"),
        ((B + 1, T, N, H), (B, S, 3, H), (B, S, 3, O), "key must have .* H=11 of query"),
        ((B, T, N, H), (B, S, 4, H), (B, S, 4, O), "key heads must divide .* got 4 and 6"),
    ],
)
def test_shapes_that_do_not_fit_are_named(query, key, value, message):
    with pytest.raises(ValueError, match=message):
        dot_product_attention(jnp.ones(query), jnp.ones(key), jnp.ones(value))


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("key", "message"),
    [((B, S, 3, 1), "key must have .* H=11 of query"), ((B, S, 4, H), "key heads must divide")],
)
def test_shapes_that_do_not_fit_are_named_by_attention_weights_too(key, message):
    with pytest.raises(ValueError, match=message):
        attention_weights(jnp.ones((B, T, N, H)), jnp.ones(key))


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_dropout_rate_outside_zero_to_one_is_rejected(one_draw, rate):
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\); got"):
        dot_product_attention(*one_draw, dropout_rate=rate)
