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


@pytest.fixture
def without_plots(monkeypatch):
    """Training draws no curves and writes no page, which would take longer than a hundred steps."""
    for name in ("draw_curves", "write_page"):
        monkeypatch.setattr(f"train.tasks.task.{name}", lambda *_: None)
