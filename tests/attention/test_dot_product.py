"""Attention is softmax(scale Q K^T + bias) V: against loops in float64, jax.nn, and other ways to
write it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import normal, rounded
from transformer_jax.attention.additive import additive_attention
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.multi_head import multi_head_attention

pytestmark = pytest.mark.usefixtures("strict")

B, T, S, N, H, O, D, E, M = 2, 5, 7, 6, 11, 3, 13, 17, 19  # noqa: E741
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
PRINTED = {"rtol": 1e-4, "atol": 1e-5}  # numbers of six digits


def numpy_attention(query, key, value, bias, mask, scale, cotangent):
    """Output, weights and gradient of (output * cotangent).sum(), in float64, a query at a time."""
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
        ours = value_and_gradient(*rounded(query, key, value, bias), mask, *rounded(cotangent))
        loops = numpy_attention(query, key, value, bias, mask, H**-0.5, cotangent)
        assert_all_close(ours, loops, **CLOSE)


def test_value_and_gradient_equal_jax_nn():
    query, key, value = rounded(normal(1, B, T, N, H), normal(2, B, S, 2, H), normal(3, B, S, 2, H))
    bias, cotangent = rounded(normal(4, B, N, T, S), normal(5, B, T, N, H))
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
    return rounded(normal(1, B, T, N, H), normal(2, B, S, 3, H), normal(3, B, S, 3, O))


def test_weights_alone_are_the_weights_that_are_returned(weights_of, one_draw):
    query, key, value = one_draw
    bias, cotangent = rounded(np.zeros((B, N, T, S)), np.zeros((B, T, N, O)))
    mask = normal(4, B, N, T, S) > 0
    (_, returned), _ = value_and_gradient(query, key, value, bias, mask, cotangent)
    alone = weights_of(query, key, mask=mask)
    assert alone.shape == (B, N, T, S)
    np.testing.assert_allclose(alone, returned, rtol=0, atol=1e-6)


def test_weights_of_a_query_sum_to_one_or_to_zero(weights_of, one_draw):
    for seed in range(8):
        mask = normal(seed, B, N, T, S) > 1
        weights = weights_of(*one_draw[:2], mask=mask)
        sums = np.asarray(weights).sum(-1)
        np.testing.assert_allclose(sums, mask.any(-1), rtol=0, atol=1e-6)


def test_scale_is_one_over_the_root_of_the_features(weights_of, one_draw):
    query, key, _ = one_draw
    by_default = np.asarray(weights_of(query, key))
    np.testing.assert_allclose(by_default, weights_of(query, key, scale=H**-0.5), atol=1e-7)
    np.testing.assert_allclose(
        by_default, weights_of(query * np.float32(H**-0.5), key, scale=1.0), rtol=1e-5, atol=1e-6
    )
    assert np.abs(by_default - weights_of(query, key, scale=1.0)).max() > 0.1


def test_a_bias_shared_by_all_keys_of_a_query_changes_nothing(weights_of, one_draw):
    query, key, _ = one_draw
    (bias,) = rounded(normal(7, B, N, T, 1) * 10)
    np.testing.assert_allclose(
        weights_of(query, key, bias=bias), weights_of(query, key), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("mask", [None, np.arange(S) != 3], ids=["all", "masked"])
def test_huge_logits_do_not_overflow(weights_of, one_draw, mask):
    query, key, _ = one_draw
    query, key = 1e15 * query, 1e15 * key
    weights = np.asarray(weights_of(query, key, mask=mask))
    logits = np.einsum("BTKGH,BSKH->BKGTS", query.reshape(B, T, 3, 2, H), key)
    logits = np.where(True if mask is None else mask, logits.reshape(B, N, T, S), -np.inf)
    np.testing.assert_array_equal(weights.argmax(-1), logits.argmax(-1))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


def test_keys_and_values_in_another_order_change_nothing(one_draw):
    query, key, value = one_draw
    bias, cotangent = rounded(normal(4, B, N, T, S), normal(5, B, T, N, O))
    mask = normal(6, B, N, T, S) > 0
    order = np.random.default_rng(0).permutation(S)
    (output, weights), grads = jax.device_get(
        value_and_gradient(query, key, value, bias, mask, cotangent)
    )
    (other, reordered), other_grads = value_and_gradient(
        query, key[:, order], value[:, order], bias[..., order], mask[..., order], cotangent
    )
    np.testing.assert_allclose(other, output, rtol=0, atol=1e-6)
    np.testing.assert_allclose(reordered, weights[..., order], rtol=0, atol=1e-6)
    np.testing.assert_allclose(other_grads[2], grads[2][:, order], rtol=0, atol=1e-5)


def test_queries_in_another_order_give_outputs_in_that_order(one_draw):
    query, key, value = one_draw
    bias, cotangent = rounded(np.zeros((B, N, T, S)), np.zeros((B, T, N, O)))
    mask = np.ones((B, N, T, S), bool)
    order = np.random.default_rng(1).permutation(T)
    (output, _), _ = value_and_gradient(query, key, value, bias, mask, cotangent)
    (other, _), _ = value_and_gradient(query[:, order], key, value, bias, mask, cotangent)
    np.testing.assert_allclose(other, np.asarray(output)[:, order], rtol=0, atol=1e-6)


def test_vmap_over_examples_is_the_batch(one_draw):
    query, key, value = one_draw
    together = jax.jit(dot_product_attention)(query, key, value)
    one = jax.vmap(lambda *x: dot_product_attention(*(y[None] for y in x))[0])
    np.testing.assert_allclose(jax.jit(one)(query, key, value), together, rtol=0, atol=1e-6)


# dtype
# --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mixed_dtypes")
def test_logits_of_bfloat16_are_float32(weights_of):
    # 257 and 256 are one number in bfloat16.
    query = np.array([[[[16.0, 1.0]]]], jnp.bfloat16)
    key = np.array([[[[16.0, 1.0]], [[16.0, 0.0]]]], jnp.bfloat16)
    weights = np.asarray(weights_of(query, key, scale=1.0))
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights[0, 0, 0], [0.731059, 0.268941], atol=1e-5)


@pytest.mark.usefixtures("mixed_dtypes")
def test_bfloat16_in_bfloat16_out_near_the_loops():
    arrays = normal(1, B, T, N, H), normal(2, B, S, 3, H), normal(3, B, S, 3, O)
    short = [x.astype(jnp.bfloat16) for x in arrays]
    output, weights = jax.jit(dot_product_attention, static_argnames="return_weights")(
        *short, return_weights=True
    )
    assert (output.dtype, weights.dtype) == (jnp.bfloat16, jnp.float32)
    nothing, everything = np.zeros((B, N, T, S)), np.ones((B, N, T, S), bool)
    wide = [np.asarray(x, np.float64) for x in short]
    (expected, _), _ = numpy_attention(*wide, nothing, everything, H**-0.5, np.zeros((B, T, N, O)))
    np.testing.assert_allclose(np.asarray(output, np.float32), expected, rtol=0, atol=2e-2)


@pytest.mark.usefixtures("mixed_dtypes")
def test_values_in_bfloat16_are_summed_in_float32():
    # 1024 equal weights of 1/1024: a running sum in bfloat16 stops growing long before the end.
    query, key = np.zeros((1, 1, 1, 2), jnp.bfloat16), np.zeros((1, 1024, 1, 2), jnp.bfloat16)
    value = np.ones((1, 1024, 1, 3), jnp.bfloat16)
    output = jax.jit(dot_product_attention)(query, key, value)
    np.testing.assert_array_equal(np.asarray(output, np.float32), 1)


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


# Multi-head attention
# --------------------------------------------------------------------------------------


def kernels(K):
    return rounded(
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
    """The form of most books: one wide projection, split into heads, concatenated, and W^O [N O,
    M].
    """
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
    inputs_q, inputs_kv = rounded(normal(1, B, T, D) / 4, normal(2, B, S, E) / 4)
    (bias,) = rounded(normal(4, B, N, T, S))
    mask = normal(3, B, N, T, S) > 0
    mask[..., 0] = True

    @jax.jit
    def run(*args):
        ways = (ours, one_head_at_a_time, concatenated_heads, repeated_keys)
        return [way(*args, bias) for way in ways]

    (output, weights), *others = jax.device_get(run(inputs_q, inputs_kv, mask, kernels(2)))
    assert output.shape == (B, T, M)
    assert weights.shape == (B, N, T, S)
    for other, other_weights in others:
        size = np.abs(other).max()
        np.testing.assert_allclose(output / size, other / size, rtol=0, atol=1e-6)
        np.testing.assert_allclose(weights, other_weights, rtol=0, atol=1e-6)


# Masks and scale by numbers (more of them in test_worked_examples.py)
# -----------------------------------------


def test_neg_inf_mask_is_a_bias_of_minus_infinity_and_a_mask(weights_of):
    (scores,) = rounded(np.array([[2.0, 9.0, 7.0], [2.0, 3.0, 7.0]])[None, :, None])
    seen = np.array([[True, False, False], [True, True, False]])
    bias, unit = rounded(np.where(seen, 0.0, -np.inf)[None, None], np.eye(3)[None, :, None])
    for hidden in ({"mask": seen}, {"bias": bias}):
        weights = np.asarray(weights_of(scores, unit, scale=1.0, **hidden))
        np.testing.assert_allclose(weights[0, 0], [[1, 0, 0], [0.268941, 0.731059, 0]], **PRINTED)


def test_variance_table_scores_have_unit_variance_after_the_scale(weights_of):
    # 64 features: the variance of q.k is 64, of q.k/8 it is 1. The logits are read off the weights
    # of two keys.
    query, key = rounded(normal(1, 1, 499, 1, 64), normal(2, 1, 499, 1, 64))
    log_weights = np.log(np.asarray(weights_of(query, key), np.float64))
    logits = log_weights - log_weights.mean(-1, keepdims=True)
    # The mean over the keys takes 1/499 of the variance; 3% is five standard errors of 499 vectors.
    assert abs(logits.var() - 1) < 0.05


# Mistakes
# ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        (
            (B, T, N, H),
            (B, S, 3, H),
            (B, S, 2, O),
            r"value must have .* K=3 of key; got the shape \(2, 7, 2, 3\)",
        ),
        ((B, T, N, H), (B, S, 3, H), (B, T, 3, O), "value must have .* S=7 of key"),
        ((B, T, N, H), (B, S, 3, H + 1), (B, S, 3, O), "key must have .* H=11 of query"),
        ((B + 1, T, N, H), (B, S, 3, H), (B, S, 3, O), "key must have .* H=11 of query"),
        ((B, T, N, H), (B, S, 4, H), (B, S, 4, O), "key heads must divide .* got 4 and 6"),
    ],
)
def test_shapes_that_do_not_fit_are_named(query, key, value, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(dot_product_attention, *rounded(*map(np.ones, (query, key, value))))


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("key", "message"),
    [((B, S, 3, 1), "key must have .* H=11 of query"), ((B, S, 4, H), "key heads must divide")],
)
def test_shapes_that_do_not_fit_are_named_by_attention_weights_too(key, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(attention_weights, *rounded(np.ones((B, T, N, H)), np.ones(key)))


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_dropout_rate_outside_zero_to_one_is_rejected(one_draw, rate):
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\); got"):
        dot_product_attention(*one_draw, dropout_rate=rate)


# Soft cap, logsumexp, no keys at all
# ------------------------------------------------------------------------


def test_a_soft_cap_bounds_the_products_and_not_the_bias(weights_of, one_draw):
    """With products in (-c, c) no weight is more than e^2c times another."""
    query, key, _ = one_draw
    cap = 0.5
    capped = jax.jit(partial(attention_weights, soft_cap=cap))
    weights = np.asarray(capped(100 * query, key))
    ratio = weights.max(-1) / weights.min(-1)
    assert ratio.max() <= np.exp(2 * cap) * 1.0001
    assert ratio.max() > np.exp(2 * cap) * 0.99  # and is reached
    (bias,) = rounded(np.where(np.arange(S) == 3, 20.0, 0.0)[None, None, None])
    assert (np.asarray(capped(query, key, bias=bias))[..., 3] > 0.999).all()


def test_a_soft_cap_far_above_the_products_is_none(weights_of, one_draw):
    query, key, _ = one_draw
    capped = jax.jit(partial(attention_weights, soft_cap=1e4))
    np.testing.assert_allclose(capped(query, key), weights_of(query, key), rtol=0, atol=1e-6)


def test_two_parts_of_the_keys_are_joined_by_their_logsumexp(one_draw):
    """A ring of devices adds up each part's output, times exp of its share of the
    log-denominator.
    """
    query, key, value = one_draw
    (bias,) = rounded(normal(4, B, N, T, S))
    mask = normal(6, B, N, T, S) > 0.3
    mask[0, :, 2], mask[1, :, :, :3] = (
        False,
        False,
    )  # a query without keys; one whose first part is empty

    @jax.jit
    def part(query, key, value, bias, mask):
        return dot_product_attention(
            query, key, value, bias=bias, mask=mask, soft_cap=2.0, return_logsumexp=True
        )

    whole, total = jax.device_get(part(query, key, value, bias, mask))
    outputs, sums = zip(
        *(
            jax.device_get(
                part(query, key[:, here], value[:, here], bias[..., here], mask[..., here])
            )
            for here in (slice(0, 3), slice(3, S))
        ),
        strict=True,
    )
    joined = np.logaddexp(*sums)
    np.testing.assert_allclose(joined, total, rtol=0, atol=1e-5)
    finite = np.where(joined == -np.inf, 0, joined)
    shares = [np.exp(one - finite) for one in sums]
    output = sum(share[..., None] * one for share, one in zip(shares, outputs, strict=True))
    np.testing.assert_allclose(output, whole, rtol=0, atol=1e-5)
    assert (sums[0][1] == -jnp.inf).all() and (joined[0, 2] == -jnp.inf).all()


def test_what_is_asked_for_comes_in_order(one_draw):
    attend = jax.jit(dot_product_attention, static_argnames=("return_weights", "return_logsumexp"))
    alone = attend(*one_draw)
    output, weights, logsumexp = attend(*one_draw, return_weights=True, return_logsumexp=True)
    np.testing.assert_allclose(output, alone, rtol=0, atol=1e-6)
    assert (output.shape, weights.shape, logsumexp.shape) == ((B, T, N, O), (B, N, T, S), (B, T, N))


@pytest.mark.parametrize("masked", [False, True])
def test_no_keys_at_all_give_zeros(masked):
    """An empty cache or memory: the sum over nothing, its log, and no gradient that is not zero."""
    query, key, value = rounded(np.ones((B, T, N, H)), np.ones((B, 0, 3, H)), np.ones((B, 0, 3, O)))
    mask = np.ones((T, 0), bool) if masked else None

    def loss(query, key, value):
        output, weights, logsumexp = dot_product_attention(
            query, key, value, mask=mask, return_weights=True, return_logsumexp=True
        )
        return output.sum(), (output, weights, logsumexp)

    gradient, (output, weights, logsumexp) = jax.device_get(
        jax.jit(jax.grad(loss, has_aux=True))(query, key, value)
    )
    assert output.shape == (B, T, N, O) and not output.any()
    assert weights.shape == (B, N, T, 0) and (logsumexp == -jnp.inf).all()
    assert not gradient.any()


@pytest.mark.parametrize("empty", ["examples", "queries"])
def test_no_examples_or_queries_give_an_empty_output(empty):
    examples, queries = (0, T) if empty == "examples" else (B, 0)
    query, keys = rounded(np.ones((examples, queries, N, H)), np.ones((examples, S, 3, H)))
    mask = np.ones((N, queries, S), bool)
    attend = jax.jit(partial(dot_product_attention, mask=mask))
    assert attend(query, keys, keys).shape == query.shape


# Additive attention
# --------------------------------------------------------------------------------------------


def additive_inputs():
    return rounded(
        *(normal(1, B, T, D), normal(2, B, S, E), normal(3, B, S, O)),
        *(normal(4, D, M) / 4, normal(5, E, M) / 4, normal(6, M)),
    )


def test_an_alignment_sums_to_one_and_its_output_is_a_mean_of_the_values():
    arrays = additive_inputs()
    run = jax.jit(partial(additive_attention, return_weights=True))
    output, alignment = jax.device_get(run(*arrays))
    assert output.shape == (B, T, O) and alignment.shape == (B, T, S)
    np.testing.assert_allclose(alignment.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(output, alignment @ arrays[2], rtol=0, atol=1e-5)


def test_queries_and_keys_of_other_widths_are_aligned():
    """Unlike a dot product it takes D = 13 features of the query, 17 of the key. Swapping two keys
    swaps two weights.
    """
    query, key, *rest = additive_inputs()
    align = jax.jit(lambda *arrays: additive_attention(*arrays, return_weights=True)[1])
    order = np.array([1, 0, *range(2, S)])
    weights, swapped = (np.asarray(align(query, key, *rest)) for key in (key, key[:, order]))
    np.testing.assert_allclose(swapped, weights[..., order], atol=1e-6)


@pytest.mark.usefixtures("mixed_dtypes")
def test_additive_attention_in_bfloat16_is_near_that_in_float32():
    arrays = additive_inputs()
    run = jax.jit(partial(additive_attention, return_weights=True))
    short = [x.astype(jnp.bfloat16) for x in arrays]
    output, alignment = run(*short)
    assert (output.dtype, alignment.dtype) == (jnp.bfloat16, jnp.float32)
    expected, _ = run(*rounded(*short))
    np.testing.assert_allclose(np.asarray(output, np.float32), expected, rtol=0, atol=3e-2)
