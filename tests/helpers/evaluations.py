"""The evaluations of a training, counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest


@contextmanager
def evaluated_weights(task: ModuleType) -> Iterator[list]:
    """Give the weights that the trainings of a module of train.tasks evaluate, in their order."""
    weights, make = [], task.make_evaluation

    def made(*arguments):
        evaluate = make(*arguments)
        return lambda params: weights.append(params) or evaluate(params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "make_evaluation", made)
        yield weights
