"""The training step of the default recipe of `train.imdb`, with modules and written out by hand.

Both do the same arithmetic: same functions, same optimizer, same random numbers, same donation.
`check_known` raises an error if the recipe has a field or value that the step by hand does not
support, so that the two cannot drift apart. `tests/bench/peers/test_step_by_hand.py` compares their
numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from train.objectives.classification import cross_entropy, make_loss, squared_hinge
from train.optim.optimizers import make_optimizer
from train.recipes.imdb import Recipe
from train.trainer.step import TrainState, changed_if, make_train_step
from transformer_jax import (
    count_positions,
    dropout,
    feed_forward,
    layer_norm,
    linear,
    lookup,
    max_patches,
    max_pool,
    multi_head_attention,
    padding,
    region_embedding,
    to_front,
)
from transformer_jax.functional.dropout import keep
from transformer_jax.functional.pooling import POOLINGS
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.parallel.axes import parameter_name
from transformer_jax.text.batching import Batch
from transformer_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Known:
    """The fields of a configuration, grouped by how the step by hand treats them."""

    read: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)  # for the data or scoring, unused in a step
    fixed: dict[str, Any] = field(default_factory=dict)  # only this value is supported

    def check(self, config: Any) -> None:
        """Raise ValueError for a field that is in no group, or not of its fixed value."""
        kind = type(config).__name__
        names = {f.name for f in fields(config)}
        known = self.read | self.elsewhere | self.fixed.keys()
        for name in sorted(names ^ known):
            what = "is not known to" if name in names else "is gone, but still named in"
            raise ValueError(
                f"{kind}.{name} {what} bench/peers/step_by_hand.py: write it into the step and "
                "into the table of fields"
            )
        for name, value in self.fixed.items():
            if (found := getattr(config, name)) != value:
                raise ValueError(
                    f"{kind}.{name} is {found!r}; bench/peers/step_by_hand.py is written for "
                    f"{value!r} only"
                )


# Sizes among the fields in `read` come from the shapes of the parameters. `make_optimizer`, which
# both steps call, reads OptimizerConfig.
RECIPE = Known(
    read={"model", "fit", "token_dropout", "label_smoothing", "margin"},
    elsewhere={
        "name", "tokenizer", "truncate", "batch_examples", "buckets", "evidence_weight",
        "unlabelled_weight", "vectors", "validation_fraction",
    },
    fixed={"dtype": "float32"},
)  # fmt: skip
MODEL = Known(
    read={
        "vocab_size", "max_length", "num_classes", "encoder", "pooling", "region_width",
        "region_features", "patch_width", "encoder_scale", "embedding_dropout_rate",
        "head_dropout_rate",
    },
    # Patches have no segments. A solver finds the weights of n-grams; no step moves them.
    elsewhere={"num_segments", "ngrams", "ngram_bits"},
    fixed={"attends": True},
)  # fmt: skip
STACK = Known(
    read={
        "num_layers", "embed_dim", "num_heads", "hidden_dim", "head_dim", "value_dim",
        "num_kv_heads", "norm_epsilon", "activation", "dropout_rate",
    },
    fixed={
        "norm": "pre", "final_norm": True, "norm_kind": "layer", "biases": True,
        "qkv_biases": None, "norm_biases": True, "first_norm": True, "head_norm": False,
        "attention_dropout_rate": 0.0, "hidden_dropout_rate": None,
    },
)  # fmt: skip
FIT = Known(
    read={"seed", "average_decay", "optimizer"},
    elsewhere={"epochs", "max_steps", "checkpoint_minutes", "dtype"},  # the recipe's dtype is used
    fixed={"remat": False, "accumulate": 1},
)


def check_known(recipe: Recipe) -> None:
    """Raise ValueError if the step by hand does not support what the recipe asks for."""
    RECIPE.check(recipe)
    MODEL.check(recipe.model)
    STACK.check(recipe.model.encoder)
    FIT.check(recipe.fit)
    if not recipe.model.patch_width:
        raise ValueError(
            "ClassifierConfig.patch_width is 0; bench/peers/step_by_hand.py reads patches"
        )


def model_of(recipe: Recipe) -> TextClassifier:
    """Return the part of the recipe's classifier that the steps train, with its initial weights."""
    return TextClassifier(replace(recipe.model, ngrams=0), rngs=nnx.Rngs(recipe.fit.seed))


def step_with_modules(
    recipe: Recipe, tokenizer: Tokenizer, total_steps: int
) -> tuple[Callable, TrainState]:
    """Return the step of `train.imdb` and its initial state."""
    graph, params = nnx.split(model_of(recipe), nnx.Param)
    loss = make_loss(
        tokenizer,
        token_dropout=recipe.token_dropout,
        smoothing=recipe.label_smoothing,
        margin=recipe.margin,
    )
    optimizer = make_optimizer(recipe.fit.optimizer, total_steps)
    step = make_train_step(graph, loss, optimizer, replace(recipe.fit, dtype=recipe.dtype))
    return step, TrainState.first(params, optimizer)


def step_by_hand(
    recipe: Recipe, tokenizer: Tokenizer, total_steps: int
) -> tuple[Callable, TrainState]:
    """Return the same step without modules, and its initial state: a plain dictionary of arrays.

    Raises ValueError as `check_known` does.
    """
    check_known(recipe)
    params = by_name(nnx.state(model_of(recipe), nnx.Param))
    optimizer = make_optimizer(recipe.fit.optimizer, total_steps)
    key = jax.random.key(recipe.fit.seed)
    frame = (tokenizer.cls_id, tokenizer.sep_id)

    def objective(p, batch, step):
        step_key = jax.random.fold_in(key, step)
        keys = (jax.random.fold_in(step_key, i) for i in count())  # as nnx.Rngs makes them
        is_token, tokens = batch.is_token, batch.tokens
        if recipe.token_dropout:
            kept = keep(next(keys), recipe.token_dropout, tokens.shape)
            kept |= jnp.isin(tokens, jnp.array(frame)) | ~is_token
            tokens = jnp.where(kept, tokens, tokenizer.mask_id)
        logits = logits_by_hand(p, recipe.model, tokens, is_token, keys)
        if recipe.margin:
            losses = squared_hinge(logits, batch.labels)
        else:
            losses = cross_entropy(logits, batch.labels, recipe.label_smoothing)
        return jnp.where(batch.is_example, losses, 0).sum() / jnp.maximum(batch.is_example.sum(), 1)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        value, gradient = jax.value_and_grad(objective)(state.params, batch, state.step)

        def updated(old):
            updates, after = optimizer.update(gradient, old[1], old[0])
            return optax.apply_updates(old[0], updates), after

        decay = jnp.minimum(recipe.fit.average_decay, (1 + state.step) / (10 + state.step))

        def averaged(old, params):
            return optax.incremental_update(params, old, 1 - decay)

        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
        params, after = changed_if(finite, updated, (state.params, state.optimizer))
        average = changed_if(finite, averaged, state.average, params)
        kept = TrainState(state.step + 1, params, average, after)
        return kept, jnp.where(finite, value, jnp.nan)

    return jax.jit(train_step, donate_argnums=0), TrainState.first(params, optimizer)


def by_name(params: nnx.State) -> dict[str, jax.Array]:
    """Return copies of all parameters by their dotted names."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return {parameter_name(path): jnp.copy(leaf) for path, leaf in flat}


def logits_by_hand(
    p: dict[str, jax.Array],
    config: ClassifierConfig,
    tokens: jax.Array,
    is_token: jax.Array,
    keys: Iterator[jax.Array] | None,
) -> jax.Array:
    """Return the logits of `TextClassifier`, computed with functions only.

    Without keys there is no dropout.
    """
    encoder, epsilon = config.encoder, config.encoder.norm_epsilon

    def drop(x, rate):
        return dropout(x, rate, next(keys)) if keys and rate else x

    tokens, is_token = to_front(tokens, is_token)
    regions = region_embedding(p["regions.region.embedding"], tokens, is_token)
    regions = jax.nn.relu(regions + p["regions.bias"])
    patches, is_patch = max_patches(regions, is_token, config.patch_width)
    x = drop(patches, config.embedding_dropout_rate)
    x = linear(x, p["embedding.projection.kernel"], p["embedding.projection.bias"])
    x = x + lookup(p["embedding.position.embedding"], count_positions(is_patch))
    x = layer_norm(x, p["embedding.norm.scale"], p["embedding.norm.bias"], epsilon=epsilon)
    for i in range(encoder.num_layers):
        prefix = f"encoder.layers.{i}."
        layer = {k.removeprefix(prefix): v for k, v in p.items() if k.startswith(prefix)}
        x = _layer_by_hand(layer, encoder, x, is_patch, keys, drop)
    scale, bias = p["encoder.final_norm.scale"], p["encoder.final_norm.bias"]
    x = config.encoder_scale * layer_norm(x, scale, bias, epsilon=epsilon)
    pooled = [max_pool(patches, is_patch)]
    pooled += [POOLINGS[name](x, is_patch) for name in config.pooling]
    pooled = drop(jnp.concatenate(pooled, axis=-1), config.head_dropout_rate)
    return linear(pooled, p["head.kernel"], p["head.bias"])


def _layer_by_hand(
    p: dict[str, jax.Array],
    config: StackConfig,
    x: jax.Array,
    is_patch: jax.Array,
    keys: Iterator[jax.Array] | None,
    drop: Callable,
) -> jax.Array:
    """Apply a pre-norm encoder layer: attention, then a feed-forward network."""
    names, epsilon = ("query", "key", "value", "out"), config.norm_epsilon
    y = layer_norm(x, p["attention_norm.scale"], p["attention_norm.bias"], epsilon=epsilon)
    y = multi_head_attention(
        y,
        y,
        *(p[f"attention.{name}_kernel"] for name in names),
        **{f"{name}_bias": p[f"attention.{name}_bias"] for name in names},
        mask=padding(is_patch),
    )
    x = x + drop(y, config.dropout_rate)
    y = layer_norm(x, p["feed_forward_norm.scale"], p["feed_forward_norm.bias"], epsilon=epsilon)
    y = feed_forward(
        y,
        *(p[f"feed_forward.{n}"] for n in ("in_kernel", "in_bias", "out_kernel", "out_bias")),
        activation=config.activation,
        dropout_rate=config.dropout_rate,
        dropout_rng=next(keys) if keys and config.dropout_rate else None,
    )
    return x + drop(y, config.dropout_rate)
