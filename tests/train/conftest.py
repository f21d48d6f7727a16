import pytest


@pytest.fixture(scope="module")
def small_recipes(bare_reports):
    """Every run of `fast` in this file trains a small network."""
    from tests.helpers import small_recipes as small  # it imports what only such files need

    with small.small_recipes():
        yield


@pytest.fixture(scope="module")
def bare_reports():
    """The reports of all runs in this file explain no mistakes and have no figures."""
    from tests.helpers import small_recipes as small

    with small.bare_reports():
        yield
