"""Each sampler at its limits, beside a loop in float64: extreme settings, logits that are infinite,
equal or far apart, every dtype, and the largest vocabularies.
"""

import itertools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.generation.beam_search import BeamSearch, check_search
from transformer_jax.generation.options import GenerationOptions
from transformer_jax.generation.sampling import (
    Sampling,
    adjusted,
    draw,
    draw_token,
    min_p,
    penalise_repetition,
    top_k,
    top_p,
)

pytestmark = pytest.mark.usefixtures("strict")

INF, NAN = math.inf, math.nan
DTYPES = ("float16", "bfloat16", "float32", "float64")
LARGEST_VOCABULARY = 151_936  # of Qwen
ROWS = {
    "usual": [0.5, -1.25, 3.0, 2.0, -4.0, 0.0, 1.5],
    "ties": [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 0.0],
    "all equal": [2.0] * 7,
    "all negative": [-3.0, -1.0, -2.0, -8.0, -1.0, -5.0, -4.0],
    "far apart": [6e4, -6e4, 0.0, 1.0, 5.9e4, -1.0, 2.0],
    "forbidden tokens": [-INF, 1.0, -INF, 0.5, 2.0, -INF, -INF],
    "one token": [-INF, -INF, -INF, -7.0, -INF, -INF, -INF],
    "certain tokens": [0.0, INF, 3.0, INF, -INF, 1.0, -2.0],
}
TRACED = jax.jit(draw_token)
USED = np.array([True, False, True, True, False, False, False])


def shares(row):
    """Return the probabilities in float64; a logit of +inf shares with its equals."""
    row = np.asarray(row, np.float64)
    with np.errstate(invalid="ignore"):
        weights = np.where(row == row.max(), 1.0, np.exp(row - row.max()))
    return weights / weights.sum()


def nucleus(row, p):
    """Return the smallest set of likeliest tokens with a total of p, token by token."""
    probabilities, total, chosen = shares(row), 0.0, set()
    for token in np.argsort(-np.asarray(row, np.float64), kind="stable"):
        if total >= p or (p == 1.0 and probabilities[token] == 0.0):
            break
        chosen.add(int(token))
        total = math.fsum(probabilities[sorted(chosen)])
    return chosen


def kept(logits):
    return {int(i) for i in np.flatnonzero(np.asarray(logits, np.float64)[0] > -INF)}


@pytest.fixture(params=DTYPES)
def cast(request):
    """A function that makes logits [1, V] of a dtype."""
    with jax.enable_x64(request.param == "float64"):
        yield lambda row: jnp.asarray(np.array([row]), dtype=request.param)


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("name", ROWS)
def test_filters_agree_with_float64_at_their_limits(cast, name):
    logits = cast(ROWS[name])
    row = np.asarray(logits, np.float64)[0]
    possible = {int(i) for i in np.flatnonzero(row > -INF)}
    for p in (5e-324, 1e-9, 0.3, 0.77, 0.999, 1 - 1e-9, math.nextafter(1.0, 0.0), 1.0):
        found = top_p(logits, p)
        expected = possible if p == 1.0 else nucleus(row, p)
        assert (found.dtype, kept(found)) == (logits.dtype, expected), p
    for k in (1, 2, 6, 7, 8, 10**9, 2**70):
        least = np.sort(row)[::-1][min(k, 7) - 1]
        found = top_k(logits, k)
        expected = {int(i) for i in np.flatnonzero(row >= least)} & possible
        assert (found.dtype, kept(found)) == (logits.dtype, expected), k
    for p in (5e-324, 1e-9, 0.3, 0.9, 1.0):
        probabilities = shares(row)
        found = min_p(logits, p)
        expected = {int(i) for i in np.flatnonzero(probabilities >= p * probabilities.max())}
        assert found.dtype == logits.dtype
        # float64 cannot tell tokens of probability 0 from those below 5e-324.
        assert kept(found) == expected or p == 5e-324, p


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("name", ROWS)
def test_temperatures_and_penalties_agree_with_float64_at_their_limits(cast, name):
    logits = cast(ROWS[name])
    row = np.asarray(logits, np.float64)[0]
    temperatures = (5e-324, 1e-300, 1e-40, 1e-6, 1.0, 7.0, 1e6, 1e40, sys.float_info.max)
    for temperature, penalty in itertools.product(temperatures, (1.0, 1e-9, 1.3, 1e30)):
        with np.errstate(all="ignore"):
            expected = np.where(USED, np.where(row > 0, row / penalty, row * penalty), row)
            expected = np.where(expected == expected.max(), 0.0, expected - expected.max())
            expected = np.where(expected == 0.0, 0.0, expected / max(temperature, 1e-300))
        expected[np.isneginf(row)] = -INF
        sampling = Sampling(temperature, repetition_penalty=penalty)
        found = adjusted(logits, sampling, is_used=jnp.asarray(USED[None]))
        assert found.dtype == logits.dtype
        atol = 0.02 if logits.dtype == jnp.bfloat16 else 2e-3
        np.testing.assert_allclose(shares(found[0]), shares(expected), atol=atol)


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("penalty", [sys.float_info.min, 1e-30, 1e30, sys.float_info.max])
def test_a_penalty_forbids_no_token(cast, penalty):
    for name in ("usual", "all negative", "far apart", "forbidden tokens"):
        logits = cast(ROWS[name])
        for everywhere in (True, False):
            used = jnp.asarray(USED[None] | everywhere)
            found = penalise_repetition(logits, used, penalty)
            assert found.dtype == logits.dtype
            np.testing.assert_array_equal(np.isfinite(found), np.isfinite(logits))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.99, 0.999999, 1 - 1e-12, 1.0])
def test_a_nucleus_of_the_largest_vocabulary_is_that_of_float64(p):
    rng = np.random.default_rng(7)
    logits = rng.normal(size=LARGEST_VOCABULARY).astype(np.float32) * 2
    found = np.isfinite(top_p(jnp.asarray(logits[None]), p)[0])
    probabilities = shares(logits)
    order = np.argsort(-logits, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    expected = np.zeros(LARGEST_VOCABULARY, bool)
    expected[order] = (before < p) | (p == 1.0)
    assert found.sum() == expected.sum()
    np.testing.assert_array_equal(found, expected)


def test_a_row_with_nan_stays_as_it_is():
    """No filter hides a broken model."""
    logits = jnp.array([[1.0, NAN, 2.0, 3.0]])
    for found in (top_p(logits, 0.5), min_p(logits, 0.5), adjusted(logits, Sampling(0.5))):
        assert np.isnan(np.asarray(found)).any()
        assert not np.isneginf(np.asarray(found)).any()
    assert np.isnan(np.asarray(top_k(logits, 2))).any()


def test_certain_tokens_are_drawn_equally_often():
    logits = jnp.repeat(jnp.array([ROWS["certain tokens"]]), 2000, axis=0)
    counts = np.bincount(draw(logits, Sampling(), jax.random.key(0)), minlength=7)
    assert counts[1] + counts[3] == 2000
    assert 900 < counts[1] < 1100


@pytest.mark.parametrize(
    "numbers",
    [
        *({"temperature": t} for t in (5e-324, 1e-6, 0.7, 7.0, sys.float_info.max)),
        *({"top_p": p} for p in (5e-324, 0.3, 0.77, 1 - 1e-9, 1.0)),
        *({"min_p": p} for p in (5e-324, 0.3, 1.0)),
        *({"repetition_penalty": x} for x in (1e-30, 1.3, 1e30)),
        {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_numbers_that_are_traced_draw_the_same_tokens(numbers):
    logits = jnp.repeat(jnp.array(list(ROWS.values())), 50, axis=0)
    used, key, sampling = (
        jnp.broadcast_to(USED, logits.shape),
        jax.random.key(0),
        Sampling(**numbers),
    )
    found = TRACED(logits, sampling.numbers, key, is_used=used)
    np.testing.assert_array_equal(found, draw(logits, sampling, key, is_used=used))


@pytest.mark.usefixtures("mixed_dtypes")
def test_low_precision_is_drawn_from_in_float32():
    """Noise in bfloat16 would take 256 values."""
    logits = jnp.zeros((4, 4096), jnp.bfloat16)
    wide = draw(logits.astype(jnp.float32), Sampling(), jax.random.key(0))
    np.testing.assert_array_equal(draw(logits, Sampling(), jax.random.key(0)), wide)


def test_a_greedy_sampling_takes_the_likeliest_token_after_the_penalty():
    logits = jnp.array([[3.0, 2.9, -1.0], [1.0, 1.0, 0.0]])
    used = jnp.array([[True, False, False], [False, False, False]])
    sampling = Sampling(greedy=True, repetition_penalty=2.0)
    assert draw(logits, sampling, jax.random.key(0), is_used=used).tolist() == [1, 0]


NUMBERS = {
    "temperature": (NAN, INF, -INF, 0, 0.0, -1, True, "1", None, [1.0], 1j),
    "top_k": (0, -1, 2.0, NAN, True, "3"),
    "top_p": (0, 0.0, -0.1, 1.0000001, NAN, INF, True, "0.9"),
    "min_p": (0, 0.0, -0.1, 1.0000001, NAN, INF, True, "0.9"),
    "repetition_penalty": (0, 0.0, -1.0, NAN, INF, False, "1.2", None),
    "greedy": (1, "yes", None),
}
SEARCHES = {
    "beams": (0, -1, 2.5, NAN, True, "4", None),
    "alpha": (-0.1, NAN, INF, True, "0.6", None),
}
OPTIONS = {
    "max_tokens": (0, -1, 2.0, True, "3", None),
    "stop": ((1.0,), (True,), ("a",), (None,), 3, None),
    "pad_id": (0.0, True, "0", None),
}


def mistakes(table):
    return [(name, value) for name, values in table.items() for value in values]


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("make", "table"), [(Sampling, NUMBERS), (BeamSearch, SEARCHES), (GenerationOptions, OPTIONS)]
)
def test_a_setting_of_another_kind_is_one_line(make, table):
    for name, value in mistakes(table):
        settings = {name: value}
        if make is GenerationOptions:
            settings = {"max_tokens": 3} | settings
        with pytest.raises((ValueError, TypeError)) as raised:
            make(**settings)
        assert str(raised.value).startswith(name) and "\n" not in str(raised.value), (name, value)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint8])
def test_numbers_of_numpy_are_settings(number):
    options = GenerationOptions(
        number(3), Sampling(number(2), number(5), np.float32(0.5)), stop=(number(4),)
    )
    same = GenerationOptions(3, Sampling(2, 5, 0.5), stop=(4,))
    assert options == same and hash(options) == hash(same)


def test_a_search_that_overflows_is_refused():
    for search, says in (
        (BeamSearch(2, 1e3), "alpha must be at most 13.5 for texts of 1000 tokens; got 1000.0"),
        (
            BeamSearch(10**8),
            "beams must be at most 21474836 for a vocabulary of 100; got 100000000",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            check_search(search, 1000, 100)
