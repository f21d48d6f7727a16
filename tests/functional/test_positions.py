"""Positions: the published formula, the rotation theorem, one-hot lookups, counting over padding,
and how the simpler ideas fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import jax_normal
from transformer_jax.functional.positions import (
    binary_positions,
    count_positions,
    integer_positions,
    lookup,
    normalised_positions,
    one_hot_positions,
    sinusoidal_positions,
)

pytestmark = pytest.mark.usefixtures("strict")

V, D = 13, 7


@pytest.fixture(scope="module")
def encode():
    return jax.jit(sinusoidal_positions, static_argnames=("features", "base"))


def loops(positions, features, base=10_000.0):
    code = np.zeros((len(positions), features))
    for row, p in enumerate(positions):
        for i in range(features):
            angle = p / base ** ((i - i % 2) / features)
            code[row, i] = np.cos(angle) if i % 2 else np.sin(angle)
    return code


@pytest.mark.parametrize(
    ("features", "base"), [(6, 10_000.0), (7, 10_000.0), (1, 10_000.0), (10, 50.0)]
)
def test_sinusoids_equal_the_loops(encode, features, base):
    positions = np.array([0, 1, 2, 5, 97, 1009])
    code = np.asarray(encode(positions, features=features, base=base))
    np.testing.assert_allclose(code, loops(positions, features, base), rtol=0, atol=2e-4)
    np.testing.assert_allclose(code[:4], loops(positions[:4], features, base), rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def table_512(encode):
    return np.asarray(encode(np.arange(101), features=512))


@pytest.mark.parametrize("k", [1, 7, 53])
def test_a_shift_is_the_same_rotation_everywhere(table_512, k):
    """PE(p + k) = R_k PE(p): each pair (sin, cos) turns by k / base^(2i/D), whatever p is."""
    table = table_512.astype(np.float64).reshape(101, 256, 2)
    turn = k / 10_000.0 ** (np.arange(0, 512, 2) / 512)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    rotated = np.einsum("xyi,piy->pix", rotation, table[:-k])
    np.testing.assert_allclose(table[k:], rotated, rtol=0, atol=2e-5)


def test_the_product_of_two_positions_depends_on_their_distance_alone(table_512):
    products = table_512 @ table_512.T
    for distance in (0, 3, 40):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=0, atol=2e-3)
    np.testing.assert_allclose(np.diagonal(products), 256, rtol=1e-5)


def test_sinusoids_keep_the_axes_of_the_positions(encode):
    code = np.asarray(encode(np.array([[3, 1, 4], [1, 5, 9]]), features=6))
    assert code.shape == (2, 3, 6)
    np.testing.assert_array_equal(code[1, 0], code[0, 1])


# lookup
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    return jax.device_put(np.random.default_rng(0).standard_normal((V, D)).astype(np.float32))


def test_lookup_is_a_product_with_one_hot_rows(table):
    tokens = jax.device_put(np.array([[3, 0, 12, 3, 3], [1, 1, 5, 0, 11]]))
    cotangent = jax_normal(1, 2, 5, D)

    def value_and_gradient(rows):
        def loss(table):
            return jnp.sum(rows(table) * cotangent), rows(table)

        return jax.jit(jax.grad(loss, has_aux=True))(table)

    gradient, value = value_and_gradient(lambda table: lookup(table, tokens))
    expected_gradient, expected = value_and_gradient(
        lambda table: jax.nn.one_hot(tokens, V) @ table
    )
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-5)


@pytest.mark.parametrize("index", [V, V + 1000, -1, -V, -V - 1])
def test_an_index_outside_the_table_gives_nan(table, index):
    rows = np.asarray(jax.jit(lookup)(table, np.array([0, index, V - 1])))
    assert np.isnan(rows[1]).all()
    np.testing.assert_array_equal(rows[[0, 2]], np.asarray(table)[[0, V - 1]])


def test_bank_has_one_vector_in_the_table_and_two_in_context(table):
    """'river bank' and 'money bank': the lookup cannot tell them apart, attention over the
    neighbours can.
    """
    from transformer_jax.attention.dot_product import dot_product_attention

    river, money, bank = 2, 5, 7
    x = np.asarray(jax.jit(lookup)(table, np.array([[river, bank], [money, bank]])))
    np.testing.assert_array_equal(x[0, 1], x[1, 1])
    heads = x[:, :, None]
    contextual = np.asarray(jax.jit(dot_product_attention)(heads, heads, heads))[:, :, 0]
    assert np.abs(contextual[0, 1] - contextual[1, 1]).max() > 0.1
    # A context of its own: the other word is in it, by the weight that it got.
    assert not np.allclose(contextual[0, 1], x[0, 1])


# count_positions
# -----------------------------------------------------------------------------------------


def test_positions_are_counted_over_the_real_tokens():
    is_token = np.array(
        [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0]], bool
    )
    positions = jax.jit(count_positions)(is_token)
    assert positions.dtype == jnp.int32
    np.testing.assert_array_equal(
        positions,
        [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0], [0, 0, 0, 1, 1]],
    )


# The ideas that fail, and how
# ----------------------------------------------------------------------------


def test_integers_grow_without_bound(encode):
    code = np.asarray(jax.jit(integer_positions)(np.array([[0, 1], [500, 100_000]])))
    assert code.shape == (2, 2, 1) and code.dtype == jnp.float32
    np.testing.assert_array_equal(code[..., 0], [[0, 1], [500, 100_000]])
    assert code.max() > 1e4 * np.abs(encode(np.array([100_000]), features=8)).max()


@pytest.mark.parametrize("length", [1, 2, 3, 5, 97])
def test_normalised_positions_are_bounded_and_their_step_depends_on_the_length(length):
    normalise = jax.jit(normalised_positions, static_argnums=1)
    code = np.asarray(normalise(np.arange(length), length))[:, 0]
    np.testing.assert_allclose(code, np.arange(length) / max(length - 1, 1), rtol=1e-6)
    assert code.min() == 0 and code.max() <= 1
    if length > 1:
        np.testing.assert_allclose(np.diff(code), 1 / (length - 1), rtol=1e-4)


def test_one_hot_positions_are_all_equally_far_apart():
    code = np.asarray(jax.jit(one_hot_positions, static_argnums=1)(np.arange(7), 7))
    np.testing.assert_array_equal(code, np.eye(7))
    distances = np.linalg.norm(code[:, None] - code[None], axis=-1)
    np.testing.assert_allclose(distances[~np.eye(7, dtype=bool)], np.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize("position", [-1, 7, 100])
def test_a_position_outside_has_no_one(position):
    code = jax.jit(one_hot_positions, static_argnums=1)(np.array([position]), 7)
    assert not np.any(code)


def test_binary_positions_are_the_digits():
    code = np.asarray(jax.jit(binary_positions, static_argnums=1)(np.arange(64), 6)).astype(int)
    assert ["".join(map(str, row)) for row in code] == [f"{p:06b}" for p in range(64)]


def test_neighbours_may_differ_in_every_bit_and_by_little_in_the_sinusoids(encode):
    """3 = 011 and 4 = 100: one step turns all bits around, where sinusoids move a little, and
    always alike.
    """
    bits = np.asarray(jax.jit(binary_positions, static_argnums=1)(np.arange(8), 3))
    steps = np.abs(np.diff(bits, axis=0)).sum(1)
    np.testing.assert_array_equal(steps, [1, 2, 1, 3, 1, 2, 1])
    smooth = np.diff(np.asarray(encode(np.arange(8), features=6)), axis=0)
    np.testing.assert_allclose(np.linalg.norm(smooth, axis=1), np.linalg.norm(smooth[0]), rtol=1e-4)


@pytest.mark.parametrize(
    ("encode", "features"),
    [
        (integer_positions, 1),
        (lambda p: normalised_positions(p, 7), 1),
        (lambda p: one_hot_positions(p, 7), 7),
        (lambda p: binary_positions(p, 3), 3),
    ],
)
def test_the_failing_ideas_keep_the_axes_of_the_positions_jitted_or_not(encode, features):
    positions = jax.device_put(np.array([[3, 1, 4], [1, 5, 6]]))
    code = np.asarray(encode(positions))
    assert code.shape == (2, 3, features) and code.dtype == jnp.float32
    np.testing.assert_allclose(jax.jit(encode)(positions), code, rtol=1e-6)
    np.testing.assert_array_equal(code[0, 1], code[1, 0])
