"""Every position scheme is an entry of one registry; a new one needs its class and nothing else."""

import json
from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from train.recipes.lm import LanguageModelOptions
from train.recipes.mlm import MaskedLanguageModelOptions
from train.trainer.options import make_options, make_parser
from transformer_jax.costs.formulas import parameters
from transformer_jax.functional.positions import binary_positions
from transformer_jax.models.config import (
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.text_encoder import TextEncoder
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.nn.position_schemes import POSITION_SCHEMES, PositionScheme
from transformer_jax.serialization.typed_json import from_dict

V, T = 5, 11
STACK = StackConfig(1, 12, 2, 24, norm="pre", final_norm=True, dropout_rate=0.0)


class Binary(PositionScheme):
    """The bits of the position, added to the vector of the token."""

    def embed(self, x, positions, table):
        return x + binary_positions(positions, x.shape[-1]).astype(x.dtype)


@pytest.fixture
def binary(monkeypatch):
    monkeypatch.setitem(POSITION_SCHEMES, "binary", Binary())
    return "binary"


@pytest.mark.parametrize("name", POSITION_SCHEMES)
def test_every_scheme_but_none_tells_one_order_from_another(name):
    """Without a mask the vectors of a permuted text are permuted, unless positions are known."""
    config = TextEncoderConfig(V, T, STACK, positions=name)
    model = TextEncoder(config, rngs=nnx.Rngs(0))
    tokens, order = jnp.array([[3, 1, 2, 4, 0]]), jnp.array([4, 2, 0, 1, 3])
    run = nnx.jit(lambda model, tokens: model(tokens, jnp.ones_like(tokens, bool)))
    difference = np.abs(run(model, tokens[:, order]) - run(model, tokens)[:, order]).max()
    assert difference < 1e-5 if name == "none" else difference > 1e-3


@pytest.mark.parametrize("name", POSITION_SCHEMES)
def test_the_parameters_of_a_scheme_are_counted(name):
    config = LanguageModelConfig(V, T, STACK, positions=name)
    state = nnx.state(nnx.eval_shape(lambda: LanguageModel(config, rngs=AbstractRngs())), nnx.Param)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == parameters(config)


def test_a_new_scheme_is_known_to_configurations_files_and_programs(binary):
    for config in (
        LanguageModelConfig(V, T, STACK, positions=binary),
        SequenceToSequenceConfig(V, T, STACK, STACK, positions=binary),
        TextEncoderConfig(V, T, STACK, positions=binary),
    ):
        assert from_dict(type(config), json.loads(json.dumps(asdict(config)))) == config
    for options in (LanguageModelOptions, MaskedLanguageModelOptions):
        given = vars(make_parser(options, "train").parse_args(["--positions", binary]))
        assert make_options(options, given).positions == binary


@pytest.mark.usefixtures("as_users_run_it")
def test_a_scheme_that_is_not_registered_is_refused():
    with pytest.raises(ValueError, match=r"positions must be one of learned, .*; got 'binary'"):
        LanguageModelConfig(V, T, STACK, positions="binary")


@pytest.mark.parametrize(("name", "learns"), [("binary", True), ("none", False)])
def test_a_language_model_is_trained_by_a_new_scheme(binary, name, learns):
    """The next token follows from its place alone, and in the model a token sees itself alone."""
    config = LanguageModelConfig(V, T, STACK, positions=name, window=0)
    text = jnp.array(np.random.default_rng(0).integers(0, 2, (1, T)))
    graph, params = nnx.split(LanguageModel(config, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = optax.adam(0.02)

    def loss(params):
        logits = nnx.merge(graph, params)(text[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()

    def step(carry, _):
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    @jax.jit
    def train(params):
        return jax.lax.scan(step, (params, optimizer.init(params)), length=100)

    (params, _), losses = train(params)
    assert losses[0] > 1.0
    assert losses[-1] < 0.05 if learns else losses[-1] > 0.3

    # Token by token through a cache it says what it says of the whole text.
    model = nnx.merge(graph, params)
    whole = nnx.jit(lambda model, tokens: model(tokens))(model, text)
    one = nnx.jit(lambda model, *arguments: model.next_logits(*arguments))
    cache, every = model.start(1, T), jnp.ones((1, 1), bool)
    for t in range(T):
        logits, cache = one(model, text[:, t : t + 1], every, cache)
        np.testing.assert_allclose(logits, whole[:, t], rtol=1e-4, atol=1e-4)
