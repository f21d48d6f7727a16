"""Products are computed in the dtype that the machine is fast in, and summed in one that is wide
enough.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from transformer_jax import causal, dot_product_attention
from transformer_jax.functional import precision
from transformer_jax.functional.linear import linear
from transformer_jax.functional.precision import operands_dtype, product

WITH = {"amx": True, "no amx": False}


@pytest.mark.parametrize(
    ("backend", "amx", "dtype", "expected"),
    [
        ("cpu", "no amx", jnp.bfloat16, jnp.float32),
        ("cpu", "no amx", jnp.float16, jnp.float32),
        ("cpu", "amx", jnp.bfloat16, jnp.bfloat16),
        ("cpu", "amx", jnp.float16, jnp.float32),  # AMX has no float16
        ("cpu", "no amx", jnp.float32, jnp.float32),
        ("cpu", "no amx", jnp.float64, jnp.float64),
        ("gpu", "no amx", jnp.bfloat16, jnp.bfloat16),
        ("gpu", "no amx", jnp.float16, jnp.float16),
        ("tpu", "no amx", jnp.bfloat16, jnp.bfloat16),
    ],
)
def test_short_products_are_left_to_machines_that_have_them(
    monkeypatch, backend, amx, dtype, expected
):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(precision, "processor_has", lambda flag: WITH[amx])
    assert operands_dtype(jnp.dtype(dtype)) == jnp.dtype(expected)


@pytest.mark.parametrize(
    ("backend", "x", "asked", "expected"),
    [
        ("gpu", jnp.bfloat16, None, jnp.bfloat16),
        ("gpu", jnp.bfloat16, jnp.float32, jnp.float32),
        ("gpu", jnp.float32, jnp.bfloat16, jnp.float32),
        ("cpu", jnp.bfloat16, None, jnp.float32),
        ("cpu", jnp.float64, jnp.float32, jnp.float64),
    ],
)
def test_a_linear_map_writes_short_products_short_where_they_are_summed_long(
    monkeypatch, backend, x, asked, expected
):
    with jax.enable_x64(True):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        jaxpr = jax.make_jaxpr(lambda x, kernel: linear(x, kernel, dtype=asked))(
            np.ones((2, 3), x), np.ones((3, 5), x)
        )
    dots = re.findall(r"preferred_element_type=(\w+)", str(jaxpr))
    assert set(dots) == {jnp.dtype(expected).name}
    assert jaxpr.out_avals[0].dtype == (x if asked is None else asked)


def test_products_are_summed_in_the_wider_dtype():
    # 1024 ones: a running sum in bfloat16 stops at 256.
    ones = jax.device_put(np.ones((1, 1024), jnp.bfloat16))
    total = product("AB,CB->AC", ones, ones, jnp.dtype(jnp.float32))
    assert total.dtype == jnp.float32
    np.testing.assert_array_equal(total, 1024)


def test_both_gradients_of_a_short_product_are_short_products(monkeypatch):
    monkeypatch.setattr(precision, "processor_has", lambda flag: True)
    rng = np.random.default_rng(0)
    x, kernel, cotangent = (
        jax.device_put(rng.standard_normal(shape).astype(jnp.bfloat16))
        for shape in ((2, 6, 8), (8, 3, 5), (2, 6, 3, 5))
    )

    def gradient(x, kernel):
        return jax.vjp(linear, x, kernel)[1](cotangent)

    operands = [
        [atom.aval.dtype for atom in equation.invars]
        for equation in _equations(jax.make_jaxpr(gradient)(x, kernel).jaxpr)
        if equation.primitive.name == "dot_general"
    ]
    assert operands == [[jnp.bfloat16] * 2] * 3
    # In float64 with the same numbers: only the results are rounded, to a part in 256.
    long = (np.asarray(a, np.float64) for a in (x, kernel, cotangent))
    x64, kernel64, cotangent64 = long
    for found, expected in zip(
        jax.jit(gradient)(x, kernel),
        (
            np.einsum("bsij,dij->bsd", cotangent64, kernel64),
            np.einsum("bsd,bsij->dij", x64, cotangent64),
        ),
        strict=True,
    ):
        assert found.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2**-8, atol=1e-5)


def test_gradient_of_the_gradient_of_a_short_product(monkeypatch):
    monkeypatch.setattr(precision, "processor_has", lambda flag: True)
    x, kernel = np.full((1, 2), 3, jnp.bfloat16), np.full((2, 1), 2, jnp.bfloat16)

    @jax.jit
    def twice(x, kernel):
        def slope(x):  # d/dx of (x W)^2 is 2 (x W) W = 2 * 12 * 2
            return jax.grad(lambda x: linear(x, kernel).astype(jnp.float32).sum() ** 2)(x)[0, 0]

        return jax.value_and_grad(slope)(x)

    value, gradient = twice(x, kernel)
    assert value == 48
    np.testing.assert_array_equal(gradient, [[8, 8]])  # 2 W W'


def test_short_products_of_attention_have_the_gradient_of_the_long_ones(monkeypatch):
    rng = np.random.default_rng(1)
    query, key, value, cotangent = (
        jax.device_put(rng.standard_normal((2, 7, 4, 8)).astype(jnp.bfloat16)) for _ in range(4)
    )

    def gradient(*qkv):
        attend = partial(dot_product_attention, implementation="reference", mask=causal())
        return jax.jit(lambda *qkv: jax.vjp(attend, *qkv)[1](cotangent))(*qkv)

    long = gradient(query, key, value)
    monkeypatch.setattr(precision, "processor_has", lambda flag: True)
    for short, other in zip(gradient(query, key, value), long, strict=True):
        np.testing.assert_allclose(np.float32(short), np.float32(other), atol=0.05)


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(inner)
