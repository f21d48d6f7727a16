"""Trainings that take little time."""

import pytest

from tests.helpers import reports
from tests.helpers import small_recipes as small


@pytest.fixture(scope="module")
def small_recipes(bare_reports):
    """Every run of `fast` in this file trains a small network."""
    with small.small_recipes():
        yield


@pytest.fixture(scope="module")
def bare_reports():
    """The reports of all runs in this file explain no mistakes and have no figures."""
    with small.bare_reports():
        yield


@pytest.fixture
def without_figures():
    """The report of this run has no figures."""
    with reports.without_figures():
        yield
