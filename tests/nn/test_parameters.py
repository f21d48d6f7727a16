"""The initial values of parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.nn import parameters
from transformer_jax.nn.parameters import MOST_PADDED, TRUNCATED_STDDEV, kernel, normal

# Their sizes lie on both sides of those that are padded.
SHAPES = [(3, 5), (7,), (1, 1), (4, 4, 256), (4097,), (1100, 1000)]


def init_of_jax(shape, inputs):
    return jax.nn.initializers.lecun_normal(
        in_axis=tuple(range(inputs)), out_axis=tuple(range(inputs, len(shape)))
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_the_initializers_of_jax(shape):
    """Up to rounding: versions of JAX multiply in another order."""
    key = nnx.Rngs(5).params()
    found = normal(nnx.Rngs(5), *shape, stddev=0.3)[...]
    np.testing.assert_allclose(found, jax.nn.initializers.normal(0.3)(key, shape), rtol=5e-7)
    for inputs in range(1, len(shape)):
        found = kernel(nnx.Rngs(5), *shape, inputs=inputs)[...]
        assert (found.shape, found.dtype) == (shape, jnp.float32)
        np.testing.assert_allclose(found, init_of_jax(shape, inputs)(key, shape), rtol=5e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_changes_no_bit(shape):
    key = nnx.Rngs(5).params()
    found = normal(nnx.Rngs(5), *shape, stddev=0.3)[...]
    np.testing.assert_array_equal(found, jax.random.normal(key, shape) * np.float32(0.3))
    found = kernel(nnx.Rngs(5), *shape)[...]
    whole = jax.random.truncated_normal(key, -2, 2, shape)
    stddev = np.sqrt(np.float32(1 / shape[0])) / TRUNCATED_STDDEV
    np.testing.assert_array_equal(found, whole * stddev)


def test_the_largest_shape_is_not_padded():
    assert np.prod(SHAPES[-1]) > MOST_PADDED > np.prod(SHAPES[-2])


def test_a_module_can_be_made_by_a_compiled_function():
    found = jax.jit(lambda key: kernel(nnx.Rngs(params=key), 3, 5)[...])(jax.random.key(5))
    expected = kernel(nnx.Rngs(params=jax.random.key(5)), 3, 5)[...]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_small_parameters_of_all_shapes_share_a_program():
    kernel(nnx.Rngs(0), 2, 2)
    programs = parameters._standard._cache_size()
    for shape in ((3, 5), (64, 64), (9,)):
        kernel(nnx.Rngs(0), *shape)
    assert parameters._standard._cache_size() == programs
