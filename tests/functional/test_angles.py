"""The cosine and the sine have the right values, and are computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import jax_normal
from transformer_jax.functional.angles import FEW, cos_and_sin
from transformer_jax.functional.rotary import Rotary, rope, rope_frequencies

pytestmark = pytest.mark.usefixtures("strict")

B, T, N, H = 2, 256, 2, 32


@pytest.mark.parametrize("number", [5, FEW + 1])
def test_they_are_those_of_numpy(number):
    angles = np.linspace(-50, 300, number, dtype=np.float32)
    cos, sin = jax.jit(cos_and_sin)(angles)
    np.testing.assert_allclose(cos, np.cos(angles.astype(np.float64)), atol=1e-6)
    np.testing.assert_allclose(sin, np.sin(angles.astype(np.float64)), atol=1e-6)


def test_they_have_derivatives():
    angles = jnp.linspace(0, 3, FEW + 1)

    def loss(angles):
        cos, sin = cos_and_sin(angles)
        return (cos * sin).sum()

    found = jax.jit(jax.grad(loss))(angles)
    np.testing.assert_allclose(found, np.cos(2 * np.asarray(angles)), atol=1e-5)


def rotated(query, key, positions):
    rotary = Rotary(positions, rope_frequencies(H)).with_angles()
    for _ in range(2):  # layers
        query, key = rotary.turn(query), rotary.turn(key)
        query, key = query * jnp.tanh(key), key * jnp.tanh(query)
    return (query * key).sum()


def rotated_alone(query, key, positions):
    query = rope(query, positions)
    return (query * jnp.tanh(key) * query.sum(axis=-1, keepdims=True)).sum()


@pytest.mark.parametrize("function", [rotated, rotated_alone])
def test_a_compiled_gradient_has_one_cosine_and_one_sine(function):
    if jax.default_backend() != "cpu":
        pytest.skip("of what XLA fuses on a CPU")
    arrays = [jax_normal(seed, B, T, N, H) for seed in (0, 1)]
    positions = jnp.arange(T) + jnp.arange(B)[:, None]
    compiled = jax.jit(jax.grad(function, (0, 1))).lower(*arrays, positions).compile().as_text()
    assert (compiled.count(" cosine("), compiled.count(" sine(")) == (1, 1)
