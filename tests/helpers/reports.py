"""Trainings without the figures of their report, which take longer than a hundred small steps."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from train.tasks import task


@contextmanager
def without_figures() -> Iterator[None]:
    """Draw no curves and write no report.html."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("draw_curves", "write_page"):
            patch.setattr(task, name, lambda *_: None)
        yield
