"""Clipping scales all gradients by one factor, as that of optax does."""

import jax
import numpy as np
import optax
import pytest

from tests.helpers.arrays import normal
from train.optim.optimizers import clip_by_global_norm


@pytest.mark.parametrize("size", [0.0, 0.01, 1.0, 100.0, float("inf"), float("nan")])
def test_it_is_that_of_optax(size):
    gradients = {"a": size * normal(0, 3, 4), "b": size * normal(1, 5)}
    gradients = jax.tree.map(lambda g: g.astype(np.float32), gradients)
    found, expected = (
        clip.update(gradients, clip.init(gradients))[0]
        for clip in (clip_by_global_norm(1.0), optax.clip_by_global_norm(1.0))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
    if size == 0.01:  # below the limit nothing is rounded
        jax.tree.map(np.testing.assert_array_equal, found, gradients)
