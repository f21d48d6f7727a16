"""Benchmark of the cost of modules: the step of `train.imdb`'s default recipe against one by hand.

The ratio is the time of the hand-written step over ours. 1 means that modules cost nothing, 0.95
that they cost five per cent. `tests/bench/peers/test_step_by_hand.py` tests that both compute the
same.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.measure import harness
from bench.peers.step_by_hand import step_by_hand, step_with_modules
from train.recipes.imdb import FAST
from transformer_jax.text.batching import Batch
from transformer_jax.text.tokenizer import train_tokenizer

ROWS, LENGTH, STEPS = 32, 256, 1000


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, FAST.model.vocab_size, (ROWS, LENGTH)).astype(np.int32)
    is_token = np.arange(LENGTH)[None] < rng.integers(128, LENGTH + 1, ROWS)[:, None]
    tokens[~is_token] = 0
    labels = rng.integers(0, 2, ROWS).astype(np.int32)
    index = np.arange(ROWS, dtype=np.int32)
    return jax.tree.map(jnp.asarray, Batch(tokens, is_token, labels, np.ones(ROWS, bool), index))


@pytest.mark.benchmark(group="train step")
def test_step_of_the_default_recipe_against_the_same_by_hand(benchmark, batch, monkeypatch):
    tokenizer = train_tokenizer("word:30000", ["none of these words is used"])
    ours, theirs = (
        repeated(*make(FAST, tokenizer, STEPS), batch) for make in (step_with_modules, step_by_hand)
    )
    monkeypatch.setattr(harness, "SECONDS", 12.0)  # two thirds of a second a pair
    ratio = harness.compare(benchmark, theirs, ours)
    low, high = benchmark.extra_info["ratio_quartiles"]
    benchmark.extra_info |= {
        "tokens": int(batch.is_token.sum()),
        "summary": f"train step: by hand it takes {ratio:.2f} of the time with modules "
        f"[{low:.2f}, {high:.2f}]",
    }


def repeated(step, state, batch):
    """Return a call that makes the next step and waits for it.

    The state is donated to the next call.
    """
    cell = [state]

    def call():
        cell[0], value = step(cell[0], batch)
        return value.block_until_ready()

    return call
