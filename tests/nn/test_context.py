"""The context that a stack passes to its layers is one pytree, which is never saved."""

from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.attention import masked_rows
from transformer_jax.attention.biases import alibi, alibi_slopes
from transformer_jax.attention.masks import causal, padding
from transformer_jax.functional.rotary import Rotary, rope_frequencies
from transformer_jax.models import config as configurations
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.decoder import Decoder
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.parameters import AbstractRngs

pytestmark = pytest.mark.usefixtures("strict")

B, T, D, N = 2, 5, 12, 2
STACK = StackConfig(3, D, N, 7, norm="pre")
X = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
IS_TOKEN = jnp.array([[False, True, True, True, True], [True, True, False, False, False]])
EVERYTHING = LayerContext(
    rotary=Rotary(jnp.arange(T)[None], rope_frequencies(D // N)),
    bias=alibi(alibi_slopes(N)),
    mask=causal() & padding(IS_TOKEN),
    return_states=True,
    implementation="reference",
)


@pytest.fixture(scope="module")
def encoder():
    return Encoder(STACK, rngs=nnx.Rngs(0))


def test_a_context_is_an_argument_of_transformations(encoder):
    graph, params = nnx.split(encoder)

    def run(params, context, x):
        return nnx.merge(graph, params)(x, context)[0]

    expected = jax.jit(lambda params, x: run(params, EVERYTHING, x))(params, X)
    found = jax.jit(run)(params, EVERYTHING, X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    again = jax.jit(jax.checkpoint(run))(params, EVERYTHING, X)
    np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-5)
    each = jax.jit(jax.vmap(run, in_axes=(None, None, 0)))(params, EVERYTHING, jnp.stack([X, X]))
    np.testing.assert_allclose(each[1], expected, rtol=1e-5, atol=1e-5)

    # Two masks at once: the other fields are shared.
    masks = padding(IS_TOKEN), padding(~IS_TOKEN)
    stacked = replace(EVERYTHING, mask=jax.tree.map(lambda *both: jnp.stack(both), *masks))
    axes = replace(EVERYTHING, rotary=None, bias=None, mask=0)
    both = jax.jit(jax.vmap(run, in_axes=(None, axes, None)))(params, stacked, X)
    other = jax.jit(run)(params, replace(EVERYTHING, mask=masks[1]), X)
    np.testing.assert_allclose(both[1], other, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("as_users_run_it")
def test_flags_and_implementation_are_static():
    shapes = jax.tree.map(jnp.shape, EVERYTHING)
    assert (shapes.return_states, shapes.implementation) == (True, "reference")
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(EVERYTHING))


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_a_stack_finds_hidden_rows_once(stack, monkeypatch):
    """Not once a layer, and not once more in its attention."""
    calls, rendered = [], masked_rows.rendered  # the whole mask, of so few tokens
    monkeypatch.setattr(
        masked_rows, "rendered", lambda *args: calls.append(args) or rendered(*args)
    )
    module = nnx.eval_shape(lambda: stack(STACK, rngs=AbstractRngs()))
    jax.eval_shape(lambda module, x: module(x, LayerContext(mask=padding(IS_TOKEN))), module, X)
    assert len(calls) == 1


def test_no_configuration_and_no_module_has_an_implementation(encoder):
    """It belongs to the machine: a model that was saved runs anywhere."""
    configs = [found for found in vars(configurations).values() if is_dataclass(found)]
    assert len(configs) > 5
    names = {field.name for config in configs for field in fields(config)}
    jax.eval_shape(encoder, X, EVERYTHING)
    modules = [node for _, node in nnx.iter_graph(encoder) if isinstance(node, nnx.Module)]
    assert len(modules) > 5
    names |= {name for module in modules for name in vars(module)}
    assert not [name for name in names if "implementation" in name]


def test_a_context_that_is_not_resolved_has_no_masked_rows():
    context = LayerContext(mask=padding(IS_TOKEN))
    with pytest.raises(TypeError, match="call `resolved` first"):
        _ = context.masked_rows
    assert context.resolved(T).masked_rows.visible_keys is not None
    assert LayerContext().masked_rows.visible_keys is None
