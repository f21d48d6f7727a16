"""The decoder and the models that write: sizes as published, no look ahead, maps of attention, what
padding holds.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.arrays import jax_normal
from tests.helpers.modules import drawn
from tests.nn.test_kv_cache import TOKENS, B, D, T, V, model_of, stack
from transformer_jax.attention.masks import causal, padding
from transformer_jax.costs.formulas import parameters
from transformer_jax.costs.published import PUBLISHED
from transformer_jax.models.config import SequenceToSequenceConfig
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.decoder import Decoder
from transformer_jax.nn.parameters import AbstractRngs

pytestmark = pytest.mark.usefixtures("strict")

# Vaswani et al., 2017, table 3: what a row changes of the base model, and its millions of
# parameters.
TABLE_3 = {
    "base": ({}, 65),
    "B, keys of 16": ({"value_dim": 64, "head_dim": 16}, 58),
    "B, keys of 32": ({"value_dim": 64, "head_dim": 32}, 60),
    "C, 2 layers": ({"num_layers": 2}, 36),
    "C, 4 layers": ({"num_layers": 4}, 50),
    "C, 8 layers": ({"num_layers": 8}, 80),
    "C, width 256": ({"embed_dim": 256, "head_dim": 32}, 28),
    "C, width 1024": ({"embed_dim": 1024, "head_dim": 128}, 168),
    "C, hidden 1024": ({"hidden_dim": 1024}, 53),
    "C, hidden 4096": ({"hidden_dim": 4096}, 90),
    "big": ({"embed_dim": 1024, "hidden_dim": 4096, "num_heads": 16}, 213),
}


def count(make):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.split(nnx.eval_shape(make), nnx.Param)[1]))


@cache
def of_2017(**changes):
    layers = StackConfig(**changes)
    config = SequenceToSequenceConfig(37_000, 512, encoder=layers, decoder=layers)
    return count(lambda: SequenceToSequence(config, rngs=AbstractRngs())) / 1e6


@pytest.mark.parametrize("row", TABLE_3)
def test_the_models_of_2017_have_the_sizes_of_table_3(row):
    changes, millions = TABLE_3[row]
    found, base = of_2017(**changes), of_2017()
    assert found == pytest.approx(millions, rel=0.07)
    assert found - base == pytest.approx(millions - 65, abs=0.05 * millions)


@pytest.mark.parametrize("name", ["gpt2", "llama2-7b"])
def test_published_language_models_are_configurations_of_one_class(name):
    config = PUBLISHED[name].config
    assert count(lambda: LanguageModel(config, rngs=AbstractRngs())) == parameters(config)


@pytest.mark.parametrize("name", ["learned", "llama", "window, alibi", "post-norm, sinusoidal"])
def test_no_token_sees_a_later_one(name):
    """With dropout and with weights returned too."""
    model = model_of(name)

    @nnx.jit
    def run(model, tokens):
        return model(tokens, rngs=nnx.Rngs(dropout=3), return_weights=True)[0]

    expected = run(model, jnp.array(TOKENS))
    for t in (1, 5, T - 1):
        changed = TOKENS.copy()
        changed[:, t:] = (changed[:, t:] + 1) % V
        found = run(model, jnp.array(changed))
        np.testing.assert_array_equal(found[:, :t], expected[:, :t])
        assert (found[:, t:] != expected[:, t:]).any()


def translator(norm="pre", encoder=1, decoder=1):
    """A model with so many layers."""
    encoder, decoder = (stack(norm, num_layers=layers) for layers in (encoder, decoder))
    config = SequenceToSequenceConfig(V, T, encoder=encoder, decoder=decoder)
    return drawn(lambda rngs: SequenceToSequence(config, rngs=rngs))


run = nnx.jit(
    lambda model, *args, return_weights=False: model(*args, return_weights=return_weights),
    static_argnames="return_weights",
)
SOURCE, TARGET = jnp.array(TOKENS[:, :7]), jnp.array(TOKENS[:, 5:])
IS_SOURCE = jnp.array([[True] * 7, [True] * 4 + [False] * 3])
IS_TARGET = jnp.array([[True] * 6, [True] * 5 + [False]])


@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.slow)])
def test_maps_come_out_of_every_part(norm):
    model = translator(norm)
    logits, maps = run(model, SOURCE, IS_SOURCE, TARGET, IS_TARGET, return_weights=True)
    without = run(model, SOURCE, IS_SOURCE, TARGET, IS_TARGET)
    np.testing.assert_allclose(logits, without, rtol=1e-5, atol=1e-5)
    (encoder,), (decoder,), (cross,) = jax.tree.map(np.asarray, maps)
    for weights in (encoder, decoder, cross):
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)
    for weights in (encoder, cross):
        assert (weights[1, :, :, 4:] == 0).all()
    assert (decoder * (1 - np.tri(6)) == 0).all()


def test_every_layer_has_its_map():
    def maps_of(model, *args):
        return jax.eval_shape(lambda *args: model(*args, return_weights=True)[1], *args)

    maps = maps_of(translator(encoder=3, decoder=2), SOURCE, IS_SOURCE, TARGET, IS_TARGET)
    for layers, number, shape in (
        (maps.encoder, 3, (7, 7)), (maps.decoder, 2, (6, 6)), (maps.cross, 2, (6, 7)),
    ):  # fmt: skip
        assert [weights.shape for weights in layers] == [(B, 6, *shape)] * number
    maps = maps_of(model_of("learned"), jnp.array(TOKENS))
    assert [weights.shape for weights in maps] == [(B, 6, T, T)] * 2


def test_padding_of_either_text_changes_nothing():
    model = translator()
    whole = run(model, SOURCE, IS_SOURCE, TARGET, IS_TARGET)
    alone = run(model, SOURCE[1:, :4], IS_SOURCE[1:, :4], TARGET[1:, :5], IS_TARGET[1:, :5])
    np.testing.assert_allclose(whole[1:, :5], alone, rtol=1e-5, atol=1e-5)
    left = jnp.array([TOKENS[0, :7], [0, 0, 0, *TOKENS[1, :4]]])
    is_left = jnp.array([[True] * 7, [False] * 3 + [True] * 4])
    found = run(model, left, is_left, TARGET, IS_TARGET)
    np.testing.assert_allclose(found[1:, :5], alone, rtol=1e-5, atol=1e-5)


def test_nan_in_a_padded_memory_reaches_nothing():
    """No cross-attention reads the encoder's output at padding, forward or in a gradient."""
    model = translator()
    graph, params = nnx.split(model, nnx.Param)

    def loss(params, memory):
        model = nnx.merge(graph, params)
        read = model.decoder.memory_of(memory, IS_SOURCE)
        x = model.embedding(TARGET, jnp.arange(6)[None])
        x = model.decoder(
            x, LayerContext(mask=causal(), memory_mask=padding(IS_SOURCE)), memory=read
        )
        return (x**2).sum()

    memory = jax_normal(0, B, 7, D)
    spoiled = jnp.where(IS_SOURCE[..., None], memory, jnp.nan)
    both = jax.jit(jax.value_and_grad(loss))
    found = (jax.tree.leaves(both(params, x)) for x in (memory, spoiled))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


def test_a_gradient_reaches_every_parameter():
    model = translator()
    graph, params = nnx.split(model, nnx.Param)

    @jax.jit
    @jax.grad
    def gradient(params):
        logits = nnx.merge(graph, params)(SOURCE, IS_SOURCE, TARGET, IS_TARGET)
        return (logits**2).mean()

    flat, _ = jax.tree_util.tree_flatten_with_path(gradient(params))
    for path, leaf in flat:
        # The same number is added to all logits of a query: a bias of the keys changes no weight.
        if "key_bias" not in str(path):
            assert np.abs(leaf).max() > 0, path


def test_a_decoder_says_what_it_lacks():
    decoder, x = drawn(lambda rngs: Decoder(stack(), rngs=rngs)), jnp.zeros((B, 1, D))
    cache = decoder.empty_cache(B, 4, dtype=jnp.float32)
    step = cache.step(jnp.ones((B, 1), bool))
    for given in ({"cache": cache}, {"step": step}):
        with pytest.raises(ValueError, match=r"step is cache\.step\(is_token\)"):
            jax.eval_shape(partial(decoder, **given), x)
    for read in (
        lambda: decoder.memory_of(x, jnp.ones((B, 1), bool)),
        lambda: decoder(x, memory=cache.layers),
    ):
        with pytest.raises(ValueError, match="no cross-attention; make it with cross=True"):
            jax.eval_shape(read)
