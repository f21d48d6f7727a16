"""Stacks that compute their layers again in the backward pass, and what they keep for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.costs.jaxpr import count
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.decoder import Decoder
from transformer_jax.nn.encoder import Encoder

B, T, D = 2, 7, 12


def call_of(stack, layers, *, remat):
    """The outputs of a stack with dropout: a function, and its arguments."""
    config = StackConfig(layers, D, 2, 17, norm="pre", final_norm=True, dropout_rate=0.2)
    model = stack(config, rngs=nnx.Rngs(0))
    model.remat = remat
    graph, params = nnx.split(model)
    x = jnp.ones((B, T, D))
    return (lambda params, x: nnx.merge(graph, params)(x, rngs=nnx.Rngs(dropout=0))), params, x


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_each_layer_keeps_its_input_alone(stack):
    """Beside its parameters, and the state of the random numbers."""

    def kept(layers, *, remat):
        call, params, x = call_of(stack, layers, remat=remat)
        _, backward = jax.eval_shape(lambda *args: jax.vjp(call, *args), params, x)
        of_params = sum(leaf.size for leaf in jax.tree.leaves(params))
        return sum(leaf.size for leaf in jax.tree.leaves(backward)) - of_params

    of_one = kept(2, remat=True) - kept(1, remat=True)
    assert of_one <= B * T * D + 4
    assert kept(2, remat=False) - kept(1, remat=False) > 20 * of_one


def test_outputs_and_the_number_of_operations_are_the_same_without_a_backward_pass():
    (plain, *args), (again, *_) = (call_of(Encoder, 2, remat=remat) for remat in (False, True))
    assert count(again, *args).flops == count(plain, *args).flops
    np.testing.assert_array_equal(jax.jit(again)(*args), jax.jit(plain)(*args))
