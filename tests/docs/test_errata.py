"""docs/research/errata.md says what its generator says, and holds the wrong numbers as they are
printed.
"""

import numpy as np
import pytest

from docs.build import errata as make_errata
from docs.build.errata import ERRATA, WORDS, as_computed, as_printed, errata
from transformer_jax.walkthrough.worked import EXAMPLES
from transformer_jax.walkthrough.worked.compare import compare

WRONG = [name for name, example in EXAMPLES.items() if not example["agrees"]]


@pytest.fixture(scope="module")
def page():
    return ERRATA.read_text(encoding="utf-8")


def test_the_page_is_what_the_generator_writes(page):
    assert page == errata(), "run python -m docs.build.errata"


@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_number_is_there_as_it_is_printed(page, name):
    section = page.split(f"\n`{name}`, ")[1].partition("\n#")[0]
    decimals = EXAMPLES[name].get("decimals", {})
    for key, one in compare(name).items():
        printed = np.broadcast_to(np.array(one.printed, dtype=object), one.wrong.shape)
        for number in printed[one.wrong]:
            assert as_printed(number, decimals.get(key)) in section, key


@pytest.mark.parametrize("off", [-2e-7, 2e-7])
def test_rounding_errors_do_not_change_the_page(page, off, monkeypatch):
    """Another machine may differ in the last digit of float32, which no shown digit may hang on."""

    def elsewhere(x, like=None):
        is_exact = float(f"{x:.6g}") == x  # 1/64: nothing was rounded
        return as_computed(x if is_exact else x * (1 + off), like)

    monkeypatch.setattr(make_errata, "as_computed", elsewhere)
    assert errata() == page


def test_every_example_is_listed_once(page):
    for name in EXAMPLES:
        assert page.count(f"`{name}`, ") == 1, name


def test_what_is_wrong_in_words_comes_first(page):
    words = " ".join(page.split())
    for where, says, correct in WORDS:
        assert f"- **{where}.** {says} {correct}" in words


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (1.54000001, "1.54"),
        (12.0, "12"),
        (-3e-16, "0"),
        (156300.0, "156300"),
        (3.8147e-6, "3.81e-06"),
    ],
)  # fmt: skip
def test_computed_numbers_are_short(x, text):
    assert as_computed(x) == text


def test_printed_numbers_keep_their_zeros():
    assert as_printed(0.884, 4) == "0.8840"
    assert as_printed(0.5) == "0.5"
    assert as_computed(2 * np.pi * 1.0366, "2pi*2.15") == "2pi*1.037"
