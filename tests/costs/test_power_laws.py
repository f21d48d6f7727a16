"""Laws are found again in data made from them, and the intervals hold what they promise."""

import math

import numpy as np
import pytest

from transformer_jax.costs.power_laws import crossing, fit_power_law, fit_quadratic

SIZES = np.array([17, 31, 67, 127, 257, 509])


@pytest.mark.parametrize("exponent", [-0.076, 0.0, 1.0, 2.0])
def test_a_power_law_without_noise_is_found_to_the_digit(exponent):
    law = fit_power_law(SIZES, 3.5 * SIZES**exponent)
    assert law.exponent == pytest.approx(exponent, abs=1e-12)
    assert law.factor == pytest.approx(3.5)
    assert law.interval == pytest.approx((exponent, exponent), abs=1e-9)
    np.testing.assert_allclose(law([1, 4096]), 3.5 * np.array([1, 4096.0]) ** exponent)


@pytest.mark.parametrize("points", [3, 4, 6])
@pytest.mark.parametrize("noise", ["standard_normal", "standard_exponential"])
def test_the_interval_holds_the_true_exponent_as_often_as_it_says(points, noise):
    rng = np.random.default_rng(0)
    x, held, trials = SIZES[:points], 0, 400
    for _ in range(trials):
        law = fit_power_law(x, x**1.7 * np.exp(0.05 * getattr(rng, noise)(points)), draws=500)
        held += law.interval[0] <= 1.7 <= law.interval[1]
    # 95 of 100, give or take three standard deviations of counting and of 500 draws.
    assert 0.91 <= held / trials <= 0.99


def test_a_wider_confidence_is_a_wider_interval_and_a_seed_repeats_it():
    y = SIZES**2 * np.array([1, 1.1, 0.9, 1, 1.05, 0.97])
    half, most = (fit_power_law(SIZES, y, confidence=c).interval for c in (0.5, 0.99))
    assert most[0] < half[0] < half[1] < most[1]
    assert fit_power_law(SIZES, y, seed=3) == fit_power_law(SIZES, y, seed=3)
    assert fit_power_law(SIZES, y, seed=3) != fit_power_law(SIZES, y, seed=4)


def test_two_points_give_an_exponent_and_no_interval():
    law = fit_power_law([10, 100], [7, 700])
    assert law.exponent == pytest.approx(2)
    assert law.interval == (-math.inf, math.inf)


@pytest.mark.parametrize(
    "coefficients", [(2e-5, 3e-7, 5e-9), (0, 3e-7, 5e-9), (2e-5, 0, 5e-9), (2e-5, 3e-7, 0)]
)
def test_a_quadratic_without_noise_is_found_to_the_digit(coefficients):
    x = 2.0 ** np.arange(4, 12)
    a, b, c = coefficients
    law = fit_quadratic(x, a + b * x + c * x**2)
    np.testing.assert_allclose((law.a, law.b, law.c), coefficients, rtol=1e-6, atol=1e-14)
    np.testing.assert_allclose(law(x), a + b * x + c * x**2)
    assert law.worst < 1e-9
    if c and b:
        assert law.crossover == pytest.approx(60)


def test_a_quadratic_is_found_through_noise_and_says_how_far_off_it_is():
    rng = np.random.default_rng(1)
    x = 2.0 ** np.arange(4, 13)
    for _ in range(20):
        y = (2e-5 + 3e-7 * x + 6e-10 * x**2) * (1 + 0.02 * rng.standard_normal(len(x)))
        law = fit_quadratic(x, y)
        assert law.crossover == pytest.approx(500, rel=0.25)
        assert law.worst == pytest.approx(np.abs(law(x) / y - 1).max())
        assert law.worst < 0.08


def test_no_coefficient_is_negative_and_none_does_better():
    """Against scipy's solver, on points that no quadratic passes through."""
    from scipy.optimize import nnls

    rng = np.random.default_rng(2)
    x = np.array([1.0, 2, 3, 5, 7])
    for _ in range(50):
        y = rng.uniform(1, 9, 5)
        law = fit_quadratic(x, y)
        expected, _ = nnls(np.stack([x**0, x, x**2], axis=1) / y[:, None], np.ones(5))
        assert min(law.a, law.b, law.c) >= 0
        np.testing.assert_allclose((law.a, law.b, law.c), expected, atol=1e-8)


def test_the_crossover_of_no_quadratic_term_is_never_and_of_no_linear_one_always():
    x = np.array([1.0, 2, 4, 8])
    assert fit_quadratic(x, 3 * x).crossover == math.inf
    assert fit_quadratic(x, 3 * x**2).crossover == 0


def test_lines_cross_where_their_laws_do():
    x = np.array([8.0, 32, 128, 512])
    assert crossing(x, x**2, 100 * x) == pytest.approx(100)
    assert crossing(x, x, 1000 * x) is None
    assert crossing(x, x**2, x) == 8
    # Noise at the first point is no crossing: what counts is from where on it stays above.
    assert crossing(x, [2.0, 1, 1, 8], [1.0, 2, 2, 2]) == pytest.approx(128 * 4 ** (1 / 3))


@pytest.mark.usefixtures("as_users_run_it")
class TestMistakes:
    @pytest.mark.parametrize("fit", [fit_power_law, fit_quadratic])
    @pytest.mark.parametrize(
        ("x", "y", "message"),
        [
            ([1], [1], r"or more different x, got \[1.0\]"),
            ([3, 3, 3], [1, 2, 3], r"or more different x, got \[3.0\]"),
            ([1, 2, 3], [1, 0, 3], "y must be positive and finite, got 0.0"),
            ([1, -2, 3], [1, 2, 3], "x must be positive and finite, got -2.0"),
            ([1, 2, 3], [1, math.nan, 3], "y must be positive and finite, got nan"),
            ([1, 2, math.inf], [1, 2, 3], "x must be positive and finite, got inf"),
            ([1, 2, 3], [1, 2], r"one length, got \(3,\) and \(2,\)"),
        ],
    )
    def test_points_that_make_no_law_are_named(self, fit, x, y, message):
        with pytest.raises(ValueError, match=message):
            fit(x, y)

    def test_a_quadratic_needs_three_points(self):
        with pytest.raises(ValueError, match="expected 3 or more different x"):
            fit_quadratic([1, 2], [1, 2])

    def test_a_crossing_needs_points_in_order(self):
        with pytest.raises(ValueError, match="x must grow"):
            crossing([2, 1], [1, 1], [1, 1])

    def test_settings_of_the_interval_are_checked(self):
        with pytest.raises(ValueError, match="confidence must be between 0 and 1, got 95"):
            fit_power_law([1, 2], [1, 2], confidence=95)
        with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
            fit_power_law([1, 2], [1, 2], draws=0)
