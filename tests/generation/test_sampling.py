"""Each sampler by its definition, on logits made by hand and drawn ones, and beside Transformers'
where installed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.generation import sampling
from transformer_jax.generation.sampling import (
    Sampling,
    adjusted,
    draw,
    min_p,
    penalise_repetition,
    top_k,
    top_p,
)

pytestmark = pytest.mark.usefixtures("strict")

SHARES = np.array([[0.4, 0.1, 0.3, 0.15, 0.05], [0.05, 0.05, 0.05, 0.8, 0.05]])
LOGITS = jnp.asarray(np.log(SHARES), jnp.float32)


def kept(logits):
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in np.asarray(logits)]


def test_the_likeliest_tokens_stay_where_xla_rounds_them_in_two_ways(monkeypatch):
    def above(logits, k):
        largest, tokens = lax_top_k(logits, k)
        return jnp.nextafter(largest, jnp.inf), tokens

    lax_top_k = jax.lax.top_k
    monkeypatch.setattr(jax.lax, "top_k", above)
    assert kept(top_k(LOGITS, 1)) == [[0], [3]]
    monkeypatch.setattr(sampling, "below_largest", lambda x: jnp.nextafter(x - x.max(), -jnp.inf))
    assert all(kept(min_p(LOGITS[:1], 1.0)))


def test_top_k_keeps_the_k_likeliest():
    assert kept(top_k(LOGITS, 1)) == [[0], [3]]
    assert kept(top_k(LOGITS, 3))[0] == [0, 2, 3]
    assert kept(top_k(LOGITS, 3))[1] == [0, 1, 2, 3, 4]  # the others are equal
    assert kept(top_k(LOGITS, 50))[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.01, [0]), (0.39, [0]), (0.41, [0, 2]), (0.69, [0, 2]), (0.71, [0, 2, 3]),
     (1.0, [0, 1, 2, 3, 4])],
)  # fmt: skip
def test_top_p_keeps_the_fewest_that_reach_p(p, expected):
    assert kept(top_p(LOGITS, p))[0] == expected


def test_min_p_keeps_what_is_p_times_as_likely_as_the_likeliest():
    assert kept(min_p(LOGITS, 0.5)) == [[0, 2], [3]]
    assert kept(min_p(LOGITS, 0.2)) == [[0, 1, 2, 3], [3]]


def test_what_stays_is_not_changed():
    for logits in (top_k(LOGITS, 2), top_p(LOGITS, 0.6), min_p(LOGITS, 0.5)):
        stays = np.isfinite(logits)
        np.testing.assert_array_equal(np.asarray(logits)[stays], np.asarray(LOGITS)[stays])


def test_the_penalty_makes_used_tokens_less_likely_whatever_their_sign():
    logits = jnp.array([[2.0, -2.0, 2.0, -2.0]])
    used = jnp.array([[True, True, False, False]])
    np.testing.assert_array_equal(penalise_repetition(logits, used, 2.0), [[1.0, -4.0, 2.0, -2.0]])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=2.0, top_k=3),
        Sampling(top_p=0.8),
        Sampling(temperature=1.5, top_k=4, top_p=0.9, min_p=0.2),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_the_softmax_says(sampling):
    """20,000 draws; the largest deviation of a share has a standard deviation of 0.0035 at most."""
    n = 20_000
    logits = jnp.repeat(LOGITS[:1], n, axis=0)
    tokens = np.asarray(draw(logits, sampling, jax.random.key(0)))
    expected = np.asarray(jax.nn.softmax(adjusted(LOGITS[:1], sampling)))[0]
    np.testing.assert_allclose(np.bincount(tokens, minlength=5) / n, expected, atol=0.016)


def test_without_a_sampling_the_likeliest_token_is_taken():
    assert draw(LOGITS, None, jax.random.key(0)).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0; got 0.0"),
        ({"temperature": -1.0}, "temperature must be above 0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]; got 0.0"),
        ({"top_p": 1.1}, r"top_p must be in \(0, 1\]; got 1.1"),
        ({"min_p": 2.0}, r"min_p must be in \(0, 1\]"),
        ({"top_k": 0}, "top_k must be 1 or more; got 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
    ],
)
def test_what_cannot_be_drawn_from_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.usefixtures("mixed_dtypes")
def test_transformers_agrees():
    """Its processors on the same random logits."""
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers").generation.logits_process
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(4, 50)).astype(np.float32) * 3
    ids = rng.integers(0, 50, (4, 9))
    ours_logits = jnp.array(logits)
    used = np.zeros((4, 50), bool)
    np.put_along_axis(used, ids, True, axis=1)
    for ours, theirs in (
        (top_k(ours_logits, 7), processors.TopKLogitsWarper(7)),
        (top_p(ours_logits, 0.8), processors.TopPLogitsWarper(0.8)),
        (min_p(ours_logits, 0.1), processors.MinPLogitsWarper(0.1)),
        (
            penalise_repetition(ours_logits, jnp.array(used), 1.3),
            processors.RepetitionPenaltyLogitsProcessor(1.3),
        ),
    ):
        expected = theirs(torch.tensor(ids), torch.tensor(logits)).numpy()
        np.testing.assert_allclose(ours, expected, rtol=1e-6)
