"""A training step on one CPU updates large arrays in place, and keeps their dtype."""

import re

import jax
import jax.numpy as jnp
from flax import nnx

from train.optim.config import OptimizerConfig
from train.optim.optimizers import make_optimizer
from train.trainer.config import FitConfig
from train.trainer.step import TrainState, make_train_step
from transformer_jax.cpu.library import is_one_cpu
from transformer_jax.nn.layers import Embedding, Linear

ROWS, FEATURES = 1000, 304  # a shape that no other array of the step has


def compiled_step():
    graph, params = nnx.split(Embedding(ROWS, FEATURES, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = make_optimizer(OptimizerConfig(warmup_fraction=0.0, decay_everything=True), 10)

    def loss(model, batch, rngs):
        return (model(batch) ** 2).sum(), jnp.float32(len(batch))

    state, batch = TrainState.first(params, optimizer), jnp.arange(8)
    step = make_train_step(graph, loss, optimizer, FitConfig(average_decay=0.99))
    return step.lower(state, batch).compile()


def test_it_copies_no_weights_and_no_state_and_stores_one_gradient():
    assert is_one_cpu()
    step = compiled_step()
    assert not re.search(rf"= f32\[{ROWS},{FEATURES}\]\S* copy\(", step.as_text())
    gradient = 4 * ROWS * FEATURES
    assert step.memory_analysis().temp_size_in_bytes < 1.5 * gradient


def test_bfloat16_parameters_keep_their_dtype():
    graph, params = nnx.split(Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Param)
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    optimizer = make_optimizer(OptimizerConfig(), 10)
    step = make_train_step(
        graph, lambda model, batch, _: (model(batch).sum(), 1.0), optimizer, FitConfig()
    )
    state, _ = step(TrainState.first(params, optimizer), jnp.ones((2, 3)))
    assert {p.dtype for p in jax.tree.leaves((state.params, state.average))} == {
        jnp.dtype("bfloat16")
    }
