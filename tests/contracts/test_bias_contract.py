"""The mask contract where a bias, not a mask, hides keys: every implementation, in every dtype.

A bias of -inf hides a key. The right values are those of the same call with a mask.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import implementations
from tests.helpers.arrays import jax_normal, normal
from tests.helpers.implementations import IMPLEMENTATIONS
from transformer_jax.attention.biases import relative_bias
from transformer_jax.attention.dot_product import attention_weights
from transformer_jax.attention.masks import causal
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.functional import precision

B, T, S, N, K, H = 2, 5, 7, 6, 2, 3
BOUND = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
# Keys in blocks, among which a softmax is summed; a loop over queries would only take longer.
attend = partial(implementations.attend, blocks=(T, 3), at_once=True)
VISIBLE = np.random.default_rng(0).random((1, N, T, S)) < 0.6
VISIBLE[:, :, 0] = False  # query 0 sees no key
VISIBLE[:, 1, 3] = False  # nor does query 3 in head 1


def qkv(dtype):
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
    return [jax_normal(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def value_and_gradients(function, *arrays):
    """The value and the gradients of a function, whose output is weighted at random."""

    def run(*arrays):
        output = function(*arrays)
        weight = normal(9, *output.shape).astype(output.dtype)
        return (output * weight).sum(), output

    gradients, output = jax.jit(jax.grad(run, range(len(arrays)), has_aux=True))(*arrays)
    return jax.device_get((output, *gradients))


OPTIONS = {"plain": {}, "causal": {"mask": causal()}, "soft cap": {"soft_cap": 2.0}}
CASES = [*(("plain", dtype) for dtype in BOUND), ("causal", "float32"), ("soft cap", "float32")]


def finite_bias(dtype):
    return normal(5, 1, N, T, S).astype(dtype)


@cache
def hidden_by_a_mask(options, dtype):
    """The values and gradients of the reference, where a mask hides what a bias hides below."""
    arguments = dict(OPTIONS[options])
    rule = arguments.pop("mask", None)
    mask = VISIBLE if rule is None else VISIBLE & np.asarray(rule.to_array(T, S))

    def run(*arrays):
        bias = finite_bias(dtype)
        return attend(*arrays, bias=bias, mask=mask, implementation="reference", **arguments)

    return value_and_gradients(run, *qkv(dtype))


@pytest.mark.parametrize(("options", "dtype"), CASES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bias_of_minus_infinity_hides_as_a_mask_does(implementation, options, dtype):
    if implementation == "cudnn" and (dtype == "float16" or options == "soft cap"):
        pytest.skip("cuDNN has no soft cap, and XLA on a CPU no stand-in for it in float16")
    bias = np.where(VISIBLE, finite_bias(dtype), np.array(-np.inf, dtype))

    def run(*arrays):
        return attend(*arrays, bias=bias, implementation=implementation, **OPTIONS[options])

    found = value_and_gradients(run, *qkv(dtype))
    for ours, theirs in zip(found, hidden_by_a_mask(options, dtype), strict=True):
        np.testing.assert_allclose(
            *(x.astype(np.float32) for x in (ours, theirs)), rtol=0, atol=BOUND[dtype]
        )
    assert (found[0][:, 0] == 0).all() and (found[0][:, 3, 1] == 0).all()
    assert (found[1][:, 0] == 0).all() and (found[1][:, 3, 1] == 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "bias",
    [
        np.full((T, S), -np.inf, np.float16),  # as -1e9 is in float16
        np.full((T, 1), -np.inf, np.float32),
        np.full((1, 1, 1, 1), -np.inf, np.float32),
    ],
    ids=["float16", "a column", "one number"],
)
def test_bias_over_all_keys_gives_zeros(implementation, bias):
    def run(*arrays):
        return attend(*arrays, bias=bias, implementation=implementation)

    for array in value_and_gradients(run, *qkv("float32")):
        np.testing.assert_array_equal(array, 0)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_logits_that_overflow_to_minus_infinity_give_zeros(implementation):
    bias = np.full((T, S), -3e38, np.float32)
    query, key, value = qkv("float32")

    def run(query, key, value):
        return attend(query, key, value, scale=1e38, bias=bias, implementation=implementation)

    for array in value_and_gradients(run, 0 * query - 1, 0 * key + 1, value):
        np.testing.assert_array_equal(array, 0)


@cache
def derivatives(implementation):
    """The value, the gradients and the derivative along the arrays, for arrays and a bias."""

    @jax.jit
    def run(arrays, bias):
        def function(*arrays):
            return attend(*arrays, bias=bias, implementation=implementation)

        output, pullback = jax.vjp(function, *arrays)
        weight = normal(9, *output.shape).astype(output.dtype)
        return output, pullback(weight), jax.jvp(function, arrays, arrays)[1]

    return run


@pytest.mark.parametrize("low", [-1e4, -1e9, -3e38])
def test_equal_bias_of_all_keys_has_the_derivatives_of_its_softmax(low):
    bias = np.zeros((T, S), np.float32)
    bias[2] = low  # finite, so that the keys share the weight
    found, right = (
        jax.tree.leaves(derivatives(implementation)(tuple(qkv("float32")), bias))
        for implementation in ("blockwise", "reference")
    )
    for ours, theirs in zip(found, right, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_large_equal_logits_have_the_derivatives_of_their_softmax():
    """Logits of 1e8, where float32 has no digits for the logarithm of the number of keys."""
    _, _, value = qkv("float32")
    large = [jnp.full(shape, 1e4 / H**0.5) for shape in ((B, T, N, H), (B, S, K, H))]

    def run(implementation):
        return value_and_gradients(
            lambda v: attend(*large, v, scale=1.0, implementation=implementation), value
        )

    for ours, theirs in zip(run("blockwise"), run("reference"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_hidden_row_has_a_logsumexp_of_minus_infinity(implementation):
    bias = np.where(VISIBLE, np.float32(0), -np.float32(np.inf))

    def attended(*arrays):
        options = {"bias": bias, "return_logsumexp": True, "implementation": implementation}
        output, logsumexp = attend(*arrays, **options)
        return output, jnp.where(logsumexp > -jnp.inf, logsumexp, 0)

    @jax.jit
    def run(*arrays):
        results, pullback = jax.vjp(attended, *arrays)
        return results[1], pullback(jax.tree.map(jnp.ones_like, results))

    logsumexp, gradients = run(*qkv("float32"))
    assert (logsumexp[:, 0] == 0).all() and (logsumexp[:, 1] != 0).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("dropout_rate", [0.0, 0.3])
def test_hidden_row_has_weights_of_zero(dropout_rate):
    bias = np.where(VISIBLE, np.float32(0), -np.float32(np.inf))
    options = {"dropout_rate": dropout_rate, "dropout_rng": jax.random.key(0)}

    @jax.jit
    def run(query, key, value):
        _, weights = attend(
            query, key, value, bias=bias, return_weights=True, implementation="reference",
            **(options if dropout_rate else {}),
        )  # fmt: skip
        return weights, attention_weights(query, key, bias=bias)

    weights, alone = jax.device_get(run(*qkv("float32")))
    assert (weights[:, :, 0] == 0).all() and not np.isnan(weights).any()
    np.testing.assert_allclose(
        alone.sum(-1), np.broadcast_to(VISIBLE.any(-1), alone.shape[:3]), atol=1e-6
    )


def test_multi_head_attention_adds_the_bias_of_the_projection_to_a_hidden_row():
    x, kernel = jax_normal(1, B, T, 4), jax_normal(2, 4, N, H)
    out, out_bias = jax_normal(3, N, H, 4), jax_normal(4, 4)
    bias = np.zeros((T, T), np.float32)
    bias[2] = -np.inf
    run = jax.jit(lambda: multi_head_attention(
        x, x, kernel, kernel, kernel, out, out_bias=out_bias, bias=bias
    ))  # fmt: skip
    np.testing.assert_allclose(run()[:, 2], np.broadcast_to(out_bias, (B, 4)), atol=1e-6)


def test_gradient_of_a_table_with_minus_infinity_is_finite():
    table = np.zeros((4, N), np.float32)
    table[:, 0] = -np.inf  # head 0 sees nothing

    def run(table):
        return attend(
            *qkv("float32"), bias=relative_bias(table, max_distance=4), implementation="blockwise"
        )

    output, gradient = value_and_gradients(run, table)
    assert (output[:, :, 0] == 0).all() and np.isfinite(gradient).all()


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.parametrize("short", [False, True], ids=["in float32", "in float16"])
def test_scaled_query_does_not_overflow_in_float16(implementation, short, monkeypatch):
    if short:  # as on an accelerator, which multiplies float16 itself
        monkeypatch.setattr(
            "transformer_jax.attention.inputs.operands_dtype", lambda dtype: jnp.dtype(dtype)
        )
        monkeypatch.setattr(precision, "operands_dtype", lambda dtype: jnp.dtype(dtype))
    query, key, value = map(np.asarray, qkv("float16"))

    def attended(scale):
        return partial(attend, scale=scale, implementation=implementation, blocks=(T, S))

    def run(scale, factor):
        return value_and_gradients(attended(scale), query * np.float16(factor), key, value)

    right, *gradients = run(0.5, 1)
    found, d_query, *others = run(0.5 / 2**14, 2**14)
    np.testing.assert_allclose(found, right, atol=4e-3)
    np.testing.assert_allclose(
        d_query.astype(np.float32) * 2**14, gradients[0].astype(np.float32), atol=2**14 * 2e-7
    )
    for ours, theirs in zip(others, gradients[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=8e-3)
    same = np.full_like(query, 3000), np.full_like(key, 1e-4)
    large = np.asarray(jax.jit(attended(100.0))(*same, value))
    mean = value.astype(np.float32).mean(1).repeat(N // K, 1)[:, None]
    np.testing.assert_allclose(
        large.astype(np.float32), np.broadcast_to(mean, large.shape), atol=2e-3
    )
