"""Heads made by hand score what they were made to do, padding is never read, and PCA is
scikit-learn's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.decomposition import PCA

from transformer_jax.interpret.head_patterns import (
    best_offset,
    broadness,
    first_tokens,
    head_name,
    head_scores,
    pca,
    weight_at_offset,
    weight_on,
    weight_received,
)

pytestmark = pytest.mark.usefixtures("strict")

B, N, T = 3, 2, 7
LENGTHS = (7, 5, 1)
RANDOM = np.random.default_rng(0)
scores_of = jax.jit(head_scores)


def to_offset(k):
    """All weight k places further; where that is outside, on the token itself."""
    weights = np.zeros((T, T), np.float32)
    for t in range(T):
        weights[t, t + k if 0 <= t + k < T else t] = 1
    return weights


def to_key(s):
    return np.tile(np.eye(T, dtype=np.float32)[s], (T, 1))


HEADS = {
    "previous": to_offset(-1),
    "next": to_offset(1),
    "itself": to_offset(0),
    "first": to_key(0),
    "separator": to_key(T - 1),
    "offset -3": to_offset(-3),
    "offset +2": to_offset(2),
    "broad": np.full((T, T), 1 / T, np.float32),
    "other": to_key(3),
}


def scored(weights, is_token=None, is_separator=None):
    is_token = np.ones(weights.shape[::3], bool) if is_token is None else is_token
    if is_separator is None:
        is_separator = np.zeros_like(is_token)
        is_separator[:, -1] = True
    return jax.tree.map(np.asarray, scores_of(weights, is_token, is_separator))


@pytest.mark.parametrize("name", HEADS)
def test_a_head_made_by_hand_is_called_what_it_does(name):
    found = {key: float(value[0]) for key, value in scored(HEADS[name][None, None]).items()}
    assert head_name(found) == name
    if name in found:
        assert found[name] == pytest.approx(1, abs=1e-6)
    if name.startswith("offset"):
        assert (found["fixed"], found["offset"]) == (1, int(name.split()[1]))


def test_uniform_weights_put_one_share_everywhere():
    found = scored(HEADS["broad"][None, None])
    for name in ("previous", "next", "itself", "first", "separator", "fixed"):
        np.testing.assert_allclose(found[name], 1 / T, rtol=1e-6)
    assert found["offset"] == 0  # of equal ones the nearest


def test_a_head_that_puts_less_than_half_anywhere_has_no_name():
    mixed = 0.4 * to_offset(-1) + 0.3 * to_offset(1) + 0.3 * to_offset(3)
    found = {key: float(value[0]) for key, value in scored(mixed[None, None]).items()}
    assert head_name(found) == "other"
    # Two tokens at one end and three at the other have their 0.4 + 0.3 on themselves: no offset
    # gets more than half.
    assert found["fixed"] == found["previous"] == pytest.approx(0.4)


def padded(side):
    """Random maps of texts of LENGTHS, and the same maps with NaN wherever a padded query or key
    stands.
    """
    is_token = np.zeros((B, T), bool)
    weights = np.full((B, N, T, T), np.nan, np.float32)
    for b, n in enumerate(LENGTHS):
        inside = slice(0, n) if side == "right" else slice(T - n, T)
        is_token[b, inside] = True
        weights[b, :, inside, inside] = MAPS[b]
    return weights, is_token


MAPS = [RANDOM.dirichlet(np.full(n, 0.3), (N, n)).astype(np.float32) for n in LENGTHS]


def loops():
    """The definitions, a query at a time."""
    offsets, found = range(1 - T, T), {}
    queries = [(b, t) for b in range(B) for t in range(LENGTHS[b])]

    def mean(n, values):
        return np.mean([value for value in values if value is not None] or [0.0])

    def at(n, k):
        inside = [(b, t) for b, t in queries if 0 <= t + k < LENGTHS[b]]
        return (
            np.mean([MAPS[b][n, t, t + k] for b, t in inside]) if inside else 0.0,
            2 * len(inside) >= len(queries),
        )

    for n in range(N):
        best = max((k for k in offsets if at(n, k)[1]), key=lambda k: at(n, k)[0])
        entropies = [
            -sum(w * np.log(w) for w in MAPS[b][n, t] if w > 0) / np.log(max(LENGTHS[b], 2))
            for b, t in queries
        ]
        one = {
            "previous": at(n, -1)[0],
            "next": at(n, 1)[0],
            "itself": at(n, 0)[0],
            "first": np.mean([MAPS[b][n, t, 0] for b, t in queries]),
            "separator": np.mean([MAPS[b][n, t, -1] for b, t in queries]),
            "fixed": at(n, best)[0],
            "offset": best,
            "broad": np.mean(entropies),
        }
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_are_those_of_the_loops_and_nothing_padded_is_read(side):
    weights, is_token = padded(side)
    is_separator = np.zeros_like(is_token)
    for b, n in enumerate(LENGTHS):
        is_separator[b, n - 1 if side == "right" else T - 1] = True
    for name, values in loops().items():
        np.testing.assert_allclose(
            scored(weights, is_token, is_separator)[name], values, rtol=1e-5, err_msg=name
        )


def test_an_offset_that_few_queries_have_is_not_the_best():
    weights = np.full((1, 1, T, T), 1 / T, np.float32)
    weights[0, 0, 0] = np.eye(T)[T - 1]  # the first query looks at the last token, and only it can
    offset, fixed = jax.jit(best_offset)(weights, np.ones((1, T), bool))
    assert abs(int(offset[0])) <= T // 2 and fixed[0] < 0.5
    assert jax.jit(weight_at_offset)(weights, np.ones((1, T), bool), T - 1)[0] == 1


def test_a_text_of_one_token_is_no_nan():
    found = scored(np.ones((1, N, 1, 1), np.float32))
    for name, expected in {"previous": 0, "next": 0, "itself": 1, "first": 1, "broad": 0}.items():
        np.testing.assert_array_equal(found[name], np.full(N, expected), err_msg=name)


def test_a_query_that_sees_nothing_gives_nothing():
    weights = np.zeros((1, 1, T, T), np.float32)
    weights[0, 0, 1:] = to_key(0)[1:]
    is_token = np.ones((1, T), bool)
    on_first, broad = jax.jit(
        lambda w, real: (weight_on(w, real, first_tokens(real)), broadness(w, real))
    )(weights, is_token)
    np.testing.assert_allclose(on_first, [(T - 1) / T], rtol=1e-6)
    assert broad[0] == 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_weight_received_adds_up_to_one_over_the_real_keys(side):
    weights, is_token = padded(side)
    received = np.asarray(jax.jit(weight_received)(weights, is_token))
    np.testing.assert_allclose(received.sum(axis=-1), 1, rtol=1e-5)
    assert not received[np.broadcast_to(~is_token[:, None], received.shape)].any()
    np.testing.assert_allclose(received[1][np.broadcast_to(is_token[1], (N, T))].reshape(N, -1),
                               MAPS[1].mean(axis=1), rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize(("shape", "components"), [((11, 5), 2), ((5, 11), 3)])
def test_pca_is_that_of_scikit_learn_up_to_the_sign(shape, components):
    x = RANDOM.normal(3, 2, shape).astype(np.float32)
    ours = np.asarray(jax.jit(pca, static_argnums=1)(x, components))
    theirs = PCA(components, svd_solver="full").fit_transform(x.astype(np.float64))
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-4)
    signs = np.sign(ours[0] * theirs[0])
    np.testing.assert_allclose(ours, theirs * signs, atol=1e-4)
    assert (ours[np.abs(ours).argmax(axis=0), range(components)] > 0).all()


def test_pca_of_a_single_point_is_the_origin():
    np.testing.assert_array_equal(jax.jit(pca)(np.ones((1, 5), np.float32)), np.zeros((1, 2)))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_scores_and_pca_lower_for_accelerators(platform):
    maps, flags = jax.ShapeDtypeStruct((B, N, T, T), jnp.float32), np.ones((B, T), bool)
    for function, argument in (
        (lambda weights: head_scores(weights, jnp.array(flags), jnp.array(flags)), maps),
        (pca, jax.ShapeDtypeStruct((T, 5), jnp.float32)),
    ):
        exported = jax.export.export(jax.jit(function), platforms=[platform])(argument)
        assert exported.platforms == (platform,)
