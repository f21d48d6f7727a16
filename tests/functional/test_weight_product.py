"""Products with weight matrices: by the kernel in C++ where it is built, else by XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from transformer_jax.costs.jaxpr import count
from transformer_jax.cpu.library import is_built
from transformer_jax.functional import weight_product as module
from transformer_jax.functional.weight_product import MOST_ROWS, weight_product

D, F = 240, 304
built = pytest.mark.skipif(not is_built(), reason="python -m transformer_jax build")
FORMS = pytest.mark.parametrize("transposed", [False, True], ids=["W", "W^T"])


def drawn(*shape, transposed=False, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((*shape, D)), dtype)
    return x, jnp.asarray(rng.standard_normal((F, D) if transposed else (D, F)), dtype)


def uses_kernel(x, weights, **options):
    options = {"dtype": jnp.float32, **options}
    found = jax.make_jaxpr(lambda x, weights: weight_product(x, weights, **options))(x, weights)
    return "skinny_product" in str(found)


def by_numpy(x, weights, transposed):
    weights = np.asarray(weights, np.float64)
    return np.asarray(x, np.float64) @ (weights.T if transposed else weights)


@FORMS
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "shape", [(), (1,), (3,), (2, 1), (8,), (3, 5), (MOST_ROWS,), (MOST_ROWS + 1,), (0,)]
)
def test_it_is_the_product_of_numpy(shape, dtype, transposed):
    x, weights = drawn(*shape, transposed=transposed, dtype=dtype)
    found = weight_product(x, weights, jnp.float32, transposed=transposed)
    assert found.shape == (*shape, F) and found.dtype == jnp.float32
    np.testing.assert_allclose(found, by_numpy(x, weights, transposed), rtol=1e-5, atol=1e-4)
    is_few = 0 < np.prod(shape) <= MOST_ROWS
    assert uses_kernel(x, weights, transposed=transposed) == (is_few and is_built())


@built
@FORMS
def test_a_row_is_the_same_alone_and_among_others(transposed):
    x, weights = drawn(11, transposed=transposed)
    together = weight_product(x, weights, jnp.float32, transposed=transposed)
    for row, expected in zip(x, together, strict=True):
        alone = weight_product(row, weights, jnp.float32, transposed=transposed)
        assert jnp.array_equal(alone, expected)


@built
@pytest.mark.parametrize(
    ("x", "weights", "dtype"),
    [
        (jnp.ones((2, D)), jnp.ones((D, F + 1)), jnp.float32),  # rows that fill no vectors
        (jnp.ones((2, 16)), jnp.ones((16, 16)), jnp.float32),  # a few weights
        (jnp.ones((2, D), jnp.float16), jnp.ones((D, F), jnp.float16), jnp.float32),
        (jnp.ones((2, D), jnp.bfloat16), jnp.ones((D, F), jnp.bfloat16), jnp.bfloat16),
    ],
)
def test_what_the_kernel_does_not_take(x, weights, dtype):
    assert not uses_kernel(x, weights, dtype=dtype)
    assert (weight_product(x, weights, dtype) == len(weights)).all()


@FORMS
@pytest.mark.parametrize("of_weights", [jnp.float32, jnp.bfloat16])
def test_derivatives_are_those_of_the_product(of_weights, transposed):
    x, weights = drawn(5, transposed=transposed)
    weights = weights.astype(of_weights)
    spec = "bd,fd->bf" if transposed else "bd,df->bf"
    tangents = jnp.cos(x), jnp.sin(weights)

    def ours(x, weights):
        return weight_product(x, weights, jnp.float32, transposed=transposed)

    def right(x, weights):
        return jnp.einsum(spec, x, weights.astype(jnp.float32))

    for one, other in zip(
        jax.jvp(ours, (x, weights), tangents), jax.jvp(right, (x, weights), tangents), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)
    cotangent = jnp.sin(right(x, weights))
    gradients = [jax.vjp(f, x, weights)[1](cotangent) for f in (ours, right)]
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(*(np.asarray(g, np.float32) for g in (one, other)), rtol=1e-2)
    # Of the weights alone, and of x alone.
    for argnum in (0, 1):
        found = [
            jax.grad(lambda *a, f=f: (f(*a) ** 2).sum(), argnum)(x, weights) for f in (ours, right)
        ]
        np.testing.assert_allclose(*(np.asarray(g, np.float32) for g in found), rtol=1e-2, atol=1)


@FORMS
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_mapped_over_either_factor(axes, transposed):
    x, weights = drawn(3, 2, transposed=transposed)
    weights = jnp.stack([weights, 2 * weights, -weights])
    arrays = [a if axis == 0 else a[0] for a, axis in zip((x, weights), axes, strict=True)]

    def multiply(x, weights):
        return weight_product(x, weights, jnp.float32, transposed=transposed)

    found = jax.jit(jax.vmap(multiply, axes))(*arrays)
    for i, one in enumerate(found):
        given = [a[i] if axis == 0 else a for a, axis in zip(arrays, axes, strict=True)]
        np.testing.assert_allclose(one, multiply(*given), rtol=1e-5, atol=1e-4)


@built
def test_an_exported_program_does_not_need_the_library():
    x, weights = drawn(2)
    program = jax.jit(lambda x, weights: weight_product(x, weights, jnp.float32))
    exported = jax.export.export(program)(x, weights)
    assert "skinny" not in exported.mlir_module()
    assert "skinny" in program.lower(x, weights).as_text()
    assert jnp.allclose(exported.call(x, weights), x @ weights, atol=1e-4)


def test_where_it_is_not_built_xla_multiplies(monkeypatch):
    monkeypatch.setattr(module, "is_built", lambda: False)
    x, weights = drawn(2)
    assert not uses_kernel(x, weights)


@FORMS
def test_its_operations_are_counted(transposed):
    x, weights = drawn(2, transposed=transposed)

    def multiply(x, weights):
        return weight_product(x, weights, jnp.float32, transposed=transposed)

    assert count(multiply, x, weights).flops == 2 * 2 * D * F


@built
def test_it_is_the_same_in_64_bit_mode():
    x, weights = drawn(2)
    narrow = weight_product(x, weights, jnp.float32)
    with jax.enable_x64(True):
        assert jnp.array_equal(weight_product(x, weights, jnp.float32), narrow)


def summed_axes(x, weights, **options):
    """The numbers of axes over which each product of a gradient sums."""

    def loss(x, weights):
        return weight_product(x, weights, jnp.float32, **options).sum()

    def products(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield len(equation.params["dimension_numbers"][0][0])
            for inner in jaxprs_in_params(equation.params):
                yield from products(inner)

    return list(products(jax.make_jaxpr(jax.grad(loss, (0, 1)))(x, weights).jaxpr))


@FORMS
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_on_one_cpu_the_gradient_of_the_weights_is_a_sum_over_one_axis(
    dtype, transposed, monkeypatch
):
    arrays = drawn(3, MOST_ROWS, transposed=transposed, dtype=dtype)
    monkeypatch.setattr(module, "is_one_cpu", lambda: True)
    assert set(summed_axes(*arrays, transposed=transposed)) == {1}
    # Several devices may share the examples and the tokens of each.
    monkeypatch.setattr(module, "is_one_cpu", lambda: False)
    assert set(summed_axes(*arrays, transposed=transposed)) == {1, 2}
