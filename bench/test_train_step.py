"""What the modules cost: the step of `train.imdb`'s default recipe, with Flax and written out by hand.

The hand-written one is the same arithmetic on a plain dictionary of arrays: same functions, same optimizer,
same donation. The ratio is hand-written time over ours: 1 is "modules are free", 0.95 costs five per cent.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from bench import harness
from train.classification import cross_entropy, make_loss
from train.optimizers import make_optimizer
from train.recipes import FAST
from train.step import TrainState, make_train_step
from transformer_jax import (
    count_positions,
    dropout,
    feed_forward,
    layer_norm,
    linear,
    lookup,
    max_patches,
    max_pool,
    mean_pool,
    multi_head_attention,
    padding,
    region_embedding,
    to_front,
)
from transformer_jax.batching import Batch
from transformer_jax.dropout import keep
from transformer_jax.models import TextClassifier
from transformer_jax.run_folder import parameter_name
from transformer_jax.tokenizers import train_tokenizer

ROWS, LENGTH, STEPS = 32, 256, 1000


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, FAST.model.vocab_size, (ROWS, LENGTH)).astype(np.int32)
    tokens[np.arange(LENGTH)[None] >= rng.integers(128, LENGTH + 1, ROWS)[:, None]] = 0
    labels = rng.integers(0, 2, ROWS).astype(np.int32)
    index = np.arange(ROWS, dtype=np.int32)
    return jax.tree.map(jnp.asarray, Batch(tokens, labels, np.ones(ROWS, bool), index))


def logits_by_hand(p, config, tokens, is_token, keys):
    """`TextClassifier` of the default recipe, one function after the other."""
    encoder = config.encoder

    def drop(x, rate):
        return x if keys is None else dropout(x, rate, next(keys))

    tokens, is_token = to_front(tokens, is_token)
    regions = region_embedding(p["regions.region.embedding"], tokens, is_token)
    regions = jax.nn.relu(regions + p["regions.bias"])
    x, is_patch = max_patches(regions, is_token, config.patch_width)
    x = drop(x, config.embedding_dropout_rate)
    x = linear(x, p["embedding.projection.kernel"], p["embedding.projection.bias"])
    x = x + lookup(p["embedding.position.embedding"], count_positions(is_patch))
    x = layer_norm(x, p["embedding.norm.scale"], p["embedding.norm.bias"])
    layer = {k.removeprefix("encoder.layers.0."): v for k, v in p.items()}
    y = layer_norm(x, layer["attention_norm.scale"], layer["attention_norm.bias"])
    y = multi_head_attention(
        y,
        y,
        *(layer[f"attention.{name}_kernel"] for name in ("query", "key", "value", "out")),
        **{
            f"{name}_bias": layer[f"attention.{name}_bias"]
            for name in ("query", "key", "value", "out")
        },
        mask=padding(is_patch),
    )
    x = x + drop(y, encoder.dropout_rate)
    y = layer_norm(x, layer["feed_forward_norm.scale"], layer["feed_forward_norm.bias"])
    y = feed_forward(
        y,
        *(
            layer[f"feed_forward.{name}"]
            for name in ("in_kernel", "in_bias", "out_kernel", "out_bias")
        ),
        activation=encoder.activation,
        dropout_rate=encoder.dropout_rate,
        dropout_rng=None if keys is None else next(keys),
    )
    x = x + drop(y, encoder.dropout_rate)
    x = layer_norm(x, p["encoder.final_norm.scale"], p["encoder.final_norm.bias"])
    pooled = (max_pool(regions, is_token), max_pool(x, is_patch), mean_pool(x, is_patch))
    pooled = drop(jnp.concatenate(pooled, axis=-1), config.head_dropout_rate)
    return linear(pooled, p["head.kernel"], p["head.bias"])


@pytest.mark.benchmark(group="train step")
def test_step_of_the_default_recipe_against_the_same_by_hand(benchmark, batch, monkeypatch):
    config, key = replace(FAST.model, ngrams=0), jax.random.key(0)  # which no step trains
    tokenizer = train_tokenizer("word:30000", ["none of these words is used"])
    model = TextClassifier(config, rngs=nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)
    by_name = {
        parameter_name(path): jnp.copy(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
    }
    is_token = batch.tokens != 0
    expected = jax.jit(lambda p: nnx.merge(graph, p)(batch.tokens, is_token))(params)
    written = jax.jit(lambda p: logits_by_hand(p, config, batch.tokens, is_token, None))(by_name)
    np.testing.assert_allclose(written, expected, atol=1e-5)

    loss = make_loss(tokenizer, token_dropout=FAST.token_dropout, smoothing=FAST.label_smoothing)
    optimizer = make_optimizer(FAST.fit.optimizer, STEPS)
    with_modules = make_train_step(graph, loss, optimizer, replace(FAST.fit, dtype="float32"))

    def objective(p, batch, step):
        keys = iter(jax.random.split(jax.random.fold_in(key, step), 6))
        is_token = batch.tokens != tokenizer.pad_id
        special = jnp.array([tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id])
        kept = keep(next(keys), FAST.token_dropout, batch.tokens.shape)
        tokens = jnp.where(kept | jnp.isin(batch.tokens, special), batch.tokens, tokenizer.mask_id)
        logits = logits_by_hand(p, config, tokens, is_token, keys)
        losses = cross_entropy(logits, batch.labels, FAST.label_smoothing)
        return jnp.where(batch.is_example, losses, 0).sum() / jnp.maximum(batch.is_example.sum(), 1)

    def by_hand(state, batch):
        value, gradient = jax.value_and_grad(objective)(state.params, batch, state.step)
        updates, optimizer_state = flat_optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        decay = jnp.minimum(FAST.fit.average_decay, (1 + state.step) / (10 + state.step))
        average = optax.incremental_update(params, state.average, 1 - decay)
        after = TrainState(state.step, params, average, optimizer_state)
        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
        return kept._replace(step=state.step + 1), jnp.where(finite, value, jnp.nan)

    flat_optimizer = make_optimizer(FAST.fit.optimizer, STEPS)
    ours = repeated(with_modules, TrainState.first(params, optimizer), batch)
    theirs = repeated(
        jax.jit(by_hand, donate_argnums=0), TrainState.first(by_name, flat_optimizer), batch
    )
    tokens = int(is_token.sum())
    monkeypatch.setattr(harness, "SECONDS", 12.0)  # two thirds of a second a pair
    ratio = harness.compare(benchmark, theirs, ours)
    low, high = benchmark.extra_info["ratio_quartiles"]
    benchmark.extra_info |= {
        "tokens": tokens,
        "summary": f"train step: by hand it takes {ratio:.2f} of the time with modules [{low:.2f}, {high:.2f}]",
    }


def repeated(step, state, batch):
    """A call that takes the next step and waits for it; the state is donated from one to the next."""
    cell = [state]

    def call():
        cell[0], value = step(cell[0], batch)
        return value.block_until_ready()

    return call
