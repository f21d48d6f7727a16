"""Runs of `train.imdb` that take little time, for tests of what surrounds the network."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.helpers.reports import without_figures
from train.classifier.recipe import VectorConfig
from train.evaluation import mistakes
from train.optim.config import OptimizerConfig
from train.recipes import classify_options
from train.recipes.imdb import FAST
from transformer_jax.nn.config import StackConfig

# The mean of the embedded tokens: what the step computes is compiled in a fifth of the time.
NETWORK = {
    "encoder": StackConfig(num_layers=0, embed_dim=16, num_heads=1, hidden_dim=16),
    "pooling": ("mean",), "region_features": 0, "region_width": 1, "patch_width": 0,
    "encoder_scale": 1.0, "head_dropout_rate": 0.0, "ngram_bits": 16,
}  # fmt: skip
# The step is the same whatever the number of steps, so that it is compiled once for several runs.
OPTIMIZER = OptimizerConfig(1e-2, "constant", warmup_fraction=0.0, clip_norm=None)
VECTORS = VectorConfig(features=16, epochs=10, passes=2, negatives=32, learning_rate=1e-2)


@contextmanager
def bare_reports() -> Iterator[None]:
    """Explain no mistakes of a run and draw no figures, which takes as long as a small training."""
    with pytest.MonkeyPatch.context() as patch, without_figures():
        patch.setattr(mistakes, "MOST", 0)
        yield


@contextmanager
def small_recipes() -> Iterator[None]:
    """Make `fast` a small network, with or without --unlabelled and --vectors."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FAST", "FAST_UNLABELLED", "FAST_VECTORS"):
            recipe = getattr(classify_options, name)
            small = replace(
                recipe,
                model=replace(recipe.model, **NETWORK),
                fit=replace(recipe.fit, optimizer=OPTIMIZER),
                vectors=recipe.vectors and VECTORS,
            )
            patch.setattr(classify_options, name, small)
        patch.setitem(classify_options.RECIPES, FAST.name, classify_options.FAST)
        yield
