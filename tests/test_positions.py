"""Positions: the published formula and numbers, the rotation theorem, one-hot lookups, counting over padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.positions import count_positions, lookup, sinusoidal_positions

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
    code = encode(jnp.array(positions), features=features, base=base)
    np.testing.assert_allclose(code, loops(positions, features, base), rtol=0, atol=2e-4)
    np.testing.assert_allclose(code[:4], loops(positions[:4], features, base), rtol=0, atol=1e-6)


def test_sinusoid_d6(encode):
    code = encode(jnp.array([1]), features=6)
    expected = [0.841471, 0.540302, 0.046399, 0.998923, 0.002154, 0.999998]
    np.testing.assert_allclose(code[0], expected, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def table_512(encode):
    return np.asarray(encode(jnp.arange(101), features=512))


def test_sinusoid_d512(table_512):
    expected = [-0.958924, 0.283662, -0.993855, 0.110692, 0.479426, 0.000518]
    ours = table_512[5, [0, 1, 2, 3, 128, 510]]
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("dimension", "expected"),
    [
        (
            1,
            [
                1,
                0.540302,
                -0.416147,
                -0.989992,
                -0.653644,
                0.283662,
                0.96017,
                0.753902,
                -0.1455,
                -0.91113,
            ],
        ),
        (
            2,
            [
                0,
                0.821856,
                0.936415,
                0.245085,
                -0.657167,
                -0.993855,
                -0.475221,
                0.452392,
                0.990673,
                0.67637,
            ],
        ),
        (
            500,
            [
                0,
                0.000124,
                0.000248,
                0.000372,
                0.000496,
                0.00062,
                0.000745,
                0.000869,
                0.000993,
                0.001117,
            ],
        ),
        (501, [1, 1, 1, 1, 1, 1, 1, 1, 1, 0.999999]),
    ],
)
def test_sinusoid_table(table_512, dimension, expected):
    np.testing.assert_allclose(table_512[:10, dimension], expected, rtol=1e-4, atol=1e-6)


def test_sinusoid_bounded(encode):
    code = encode(jnp.array([1, 1000, 1_000_000]), features=2)
    np.testing.assert_allclose(code[:, 0], [0.841471, 0.82688, -0.349994], rtol=1e-4, atol=1e-5)


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
    positions = jnp.array([[3, 1, 4], [1, 5, 9]])
    code = encode(positions, features=6)
    assert code.shape == (2, 3, 6)
    np.testing.assert_array_equal(code[1, 0], code[0, 1])


# lookup --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    return jnp.asarray(np.random.default_rng(0).standard_normal((V, D)), jnp.float32)


def test_lookup_is_a_product_with_one_hot_rows(table):
    tokens = jnp.array([[3, 0, 12, 3, 3], [1, 1, 5, 0, 11]])
    cotangent = jnp.asarray(np.random.default_rng(1).standard_normal((2, 5, D)), jnp.float32)

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
    rows = jax.jit(lookup)(table, jnp.array([0, index, V - 1]))
    assert np.isnan(rows[1]).all()
    np.testing.assert_array_equal(rows[jnp.array([0, 2])], table[jnp.array([0, V - 1])])


def test_bank_has_one_vector_in_the_table_and_two_in_context(table):
    """'river bank' and 'money bank': the lookup cannot tell them apart, attention over the neighbours can."""
    from transformer_jax.attention import dot_product_attention

    river, money, bank = 2, 5, 7
    x = jax.jit(lookup)(table, jnp.array([[river, bank], [money, bank]]))
    np.testing.assert_array_equal(x[0, 1], x[1, 1])
    heads = x[:, :, None]
    contextual = jax.jit(dot_product_attention)(heads, heads, heads)[:, :, 0]
    assert np.abs(contextual[0, 1] - contextual[1, 1]).max() > 0.1
    # A context of its own: the other word is in it, by the weight that it got.
    assert not np.allclose(contextual[0, 1], x[0, 1])


def test_position_sum():
    tokens = jnp.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 1.0, 1.1, 1.2]])
    places = jnp.array(
        [[0.01, 0.02, 0.03, 0.04], [0.05, 0.06, 0.07, 0.08], [0.09, 0.1, 0.11, 0.12]]
    )
    ids = jnp.arange(3)
    x = lookup(tokens, ids) + lookup(places, ids)
    expected = [[0.11, 0.22, 0.33, 0.44], [0.55, 0.66, 0.77, 0.88], [0.99, 1.1, 1.21, 1.32]]
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-5)


# count_positions -----------------------------------------------------------------------------------------


def test_positions_are_counted_over_the_real_tokens():
    is_token = np.array(
        [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0]], bool
    )
    positions = jax.jit(count_positions)(jnp.array(is_token))
    assert positions.dtype == jnp.int32
    np.testing.assert_array_equal(
        positions,
        [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0], [0, 0, 0, 1, 1]],
    )
