import pytest


@pytest.fixture(scope="module")
def small_recipes():
    """Every run of `fast` in this file trains a small network, and draws no figures."""
    from tests.helpers import small_recipes as small  # it imports what only such files need

    with small.small_recipes():
        yield
