"""Transformers from pure functions, composed into Flax NNX modules.

Axes, one letter each, in einsums, annotations, tests and prose: B batch, T queries, S keys, N query heads,
K key/value heads, H features per head, D embedding, F feed-forward, V vocabulary, C classes, L layers.
A mask is True where a query attends. `rngs=None` and `dropout_rng=None` mean evaluation.

Pure functions (no Flax)   masks, attention, positions, regions, normalization, feed_forward, linear, dropout,
                           pooling
Modules and models         config -> modules -> encoder -> models
Texts and files            tokenizers, run_folder, predict

The pure functions are here by name: `import transformer_jax as tj; tj.dot_product_attention(q, k, v)`.
"""

# Imported here and not on first use (PEP 562): importing a file binds its name in the package, so a lazy
# `tj.dropout` would be the function or the file, depending on what was imported before.
from transformer_jax.attention import (
    attention_weights,
    dot_product_attention,
    multi_head_attention,
)
from transformer_jax.dropout import dropout
from transformer_jax.feed_forward import feed_forward
from transformer_jax.linear import linear
from transformer_jax.masks import causal, dense, padding, prefix, segments, sliding_window
from transformer_jax.normalization import layer_norm
from transformer_jax.pooling import cls_pool, last_pool, max_pool, mean_pool
from transformer_jax.positions import count_positions, lookup, sinusoidal_positions
from transformer_jax.regions import max_patches, region_embedding, to_front

__version__ = "0.1.0"

__all__ = [
    "attention_weights",
    "causal",
    "cls_pool",
    "count_positions",
    "dense",
    "dot_product_attention",
    "dropout",
    "feed_forward",
    "last_pool",
    "layer_norm",
    "linear",
    "lookup",
    "max_patches",
    "max_pool",
    "mean_pool",
    "multi_head_attention",
    "padding",
    "prefix",
    "region_embedding",
    "segments",
    "sinusoidal_positions",
    "sliding_window",
    "to_front",
]
