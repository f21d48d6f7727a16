"""The training step written without modules computes what `train.imdb` computes, and knows all of
its recipe.
"""

from dataclasses import fields, make_dataclass, replace
from itertools import count

import jax
import numpy as np
import pytest
from flax import nnx

from bench.peers.step_by_hand import (
    FIT,
    MODEL,
    RECIPE,
    STACK,
    by_name,
    check_known,
    logits_by_hand,
    model_of,
    step_by_hand,
    step_with_modules,
)
from train.recipes.imdb import FAST
from transformer_jax.text.batching import Batch
from transformer_jax.text.tokenizer import train_tokenizer

STEPS = 4
# The sizes alone are smaller; every switch is the default recipe's.
SMALL = replace(
    FAST,
    model=replace(
        FAST.model,
        vocab_size=53,
        max_length=40,
        region_features=11,
        encoder=replace(FAST.model.encoder, embed_dim=14, hidden_dim=13),
    ),
)
# Everything that the step by hand reads, apart from sizes, at another value.
OTHER = replace(
    SMALL,
    token_dropout=0.0,
    margin=False,
    label_smoothing=0.2,
    model=replace(
        SMALL.model,
        pooling=("mean", "cls"),
        region_width=1,
        patch_width=3,
        encoder_scale=0.6,
        embedding_dropout_rate=0.0,
        head_dropout_rate=0.2,
        num_classes=3,
        encoder=replace(
            SMALL.model.encoder,
            num_layers=2,
            num_kv_heads=1,
            norm_epsilon=1e-2,
            activation="gelu",
            dropout_rate=0.2,
        ),
    ),
    fit=replace(SMALL.fit, seed=3, average_decay=0.05),
)
# What a step adds to the logits is the same at any depth.
OTHER_STEP = replace(
    OTHER,
    model=replace(
        OTHER.model, encoder=replace(OTHER.model.encoder, num_layers=1, dropout_rate=0.0)
    ),
)


def batch_of(recipe):
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, recipe.model.vocab_size, (5, 17)).astype(np.int32)
    is_token = np.arange(17)[None] < np.array([17, 3, 11, 9, 0])[:, None]
    tokens[~is_token] = 0
    labels = rng.integers(0, recipe.model.num_classes, 5).astype(np.int32)
    is_example = np.array([True, True, True, True, False])
    index = np.arange(5, dtype=np.int32)
    return jax.device_put(Batch(tokens, is_token, labels, is_example, index))


@pytest.mark.parametrize(
    ("recipe", "dropout"), [(SMALL, False), (OTHER, True)], ids=["default", "other"]
)
def test_logits_by_hand_are_those_of_the_modules(recipe, dropout):
    """With dropout, the keys of two layers come in the same order."""
    model, batch = model_of(recipe), batch_of(recipe)
    is_token = batch.tokens != 0
    params = by_name(nnx.state(model, nnx.Param))

    @jax.jit
    def written(params, key):
        keys = (jax.random.fold_in(key, i) for i in count()) if dropout else None
        return logits_by_hand(params, recipe.model, batch.tokens, is_token, keys)

    @nnx.jit
    def expected(model, key):
        rngs = nnx.Rngs(dropout=key) if dropout else None
        return model(batch.tokens, is_token, rngs=rngs)

    key = jax.random.key(3)
    np.testing.assert_allclose(written(params, key), expected(model, key), atol=1e-6)


@pytest.mark.parametrize("recipe", [SMALL, OTHER_STEP], ids=["default", "other"])
def test_steps_by_hand_are_those_of_the_modules(recipe):
    tokenizer = train_tokenizer("word:30000", ["none of these words is used"])
    batch = batch_of(recipe)
    (ours, state), (theirs, other) = (
        make(recipe, tokenizer, STEPS) for make in (step_with_modules, step_by_hand)
    )
    first = by_name(state.params)
    for _ in range(STEPS):
        (state, value), (other, written) = ours(state, batch), theirs(other, batch)
        np.testing.assert_allclose(written, value, rtol=1e-5)
    for one, same in ((state.params, other.params), (state.average, other.average)):
        one = by_name(one)
        assert one.keys() == same.keys()
        # A bias of all keys changes no weight. Its gradient is rounding alone, which Adam makes as
        # large as any.
        for name in one.keys() - {n for n in one if n.endswith("key_bias")}:
            np.testing.assert_allclose(same[name], one[name], atol=1e-5, err_msg=name)
    assert not any(np.array_equal(first[name], other.params[name]) for name in first)


def test_default_recipe_is_known():
    check_known(FAST)


@pytest.mark.parametrize(
    "place", [(), ("model",), ("model", "encoder"), ("fit",)], ids=lambda p: ".".join(p) or "recipe"
)
def test_field_that_is_new_to_the_step_by_hand_is_an_error(place):
    def with_field(config, path):
        if path:
            return replace(config, **{path[0]: with_field(getattr(config, path[0]), path[1:])})
        kind = type(config)
        wider = make_dataclass(kind.__name__, [("novelty", int, 0)], bases=(kind,), frozen=True)
        return wider(**{f.name: getattr(config, f.name) for f in fields(config)})

    with pytest.raises(ValueError, match=r"\.novelty is not known to bench/peers/step_by_hand.py"):
        check_known(with_field(FAST, place))


def test_field_that_is_gone_is_an_error():
    with pytest.raises(ValueError, match=r"Recipe.past is gone, but still named"):
        replace(RECIPE, elsewhere=RECIPE.elsewhere | {"past"}).check(FAST)


@pytest.mark.parametrize(
    ("known", "config", "name", "value"),
    [
        (RECIPE, FAST, "dtype", "bfloat16"),
        (MODEL, FAST.model, "attends", False),
        (STACK, FAST.model.encoder, "norm", "post"),
        (STACK, FAST.model.encoder, "attention_dropout_rate", 0.1),
    ],
)
def test_value_that_the_step_by_hand_is_not_written_for_is_an_error(known, config, name, value):
    with pytest.raises(ValueError, match=rf"\.{name} is {value!r}; .* for .* only"):
        known.check(replace(config, **{name: value}))


def test_words_instead_of_patches_are_an_error():
    with pytest.raises(
        ValueError, match=r"patch_width is 0; bench/peers/step_by_hand.py reads patches"
    ):
        check_known(replace(FAST, model=replace(FAST.model, patch_width=0)))


def test_each_field_is_in_one_group():
    for known in (RECIPE, MODEL, STACK, FIT):
        names = [*known.read, *known.elsewhere, *known.fixed]
        assert len(names) == len(set(names))
