"""Transformers from pure functions, composed into Flax NNX modules.

Axes have one letter each, in einsums, annotations, tests and prose: B batch, T queries, S keys, N
query heads, K key/value heads, H features per head, D embedding, F feed-forward, V vocabulary, C
classes, L layers. `*B` in a signature is a batch axis or none. A mask is True where a query
attends. `rngs=None` and `dropout_rng=None` mean evaluation.

Each package is a layer, and imports only from the layers before it:

    runtime, parallel, text     errors and files; the device mesh; tokenizers and batches
    functional, attention       pure functions of arrays; attention.kernels computes attention
    nn, models                  Flax NNX layers and stacks; complete models
    serialization, generation, costs
                                run folders; the generation loop; parameters, FLOPs, bytes
    pretrained, interpret, walkthrough
                                Hugging Face checkpoints; attributions; attention step by step
    inference, cli              trained models applied to texts; the command line

The pure functions can be imported from here:

    import transformer_jax as tj
    tj.dot_product_attention(q, k, v)
"""

# Imported here and not on first use (PEP 562). Importing a file binds its name in the package, so a
# lazy `tj.dropout` would be the function or the file, depending on what was imported before.
from transformer_jax.attention.additive import additive_attention
from transformer_jax.attention.biases import alibi, alibi_slopes, relative_bias, relative_buckets
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.kernels.dispatch import attention_plan
from transformer_jax.attention.kernels.tile_sizes import visited_blocks
from transformer_jax.attention.masks import causal, dense, padding, prefix, segments, sliding_window
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.feed_forward import feed_forward, gated_feed_forward, gelu
from transformer_jax.functional.linear import linear
from transformer_jax.functional.ngrams import ngram_evidence, ngram_rows, ngram_shares
from transformer_jax.functional.normalization import (
    BatchStatistics,
    batch_norm,
    batch_statistics,
    layer_norm,
    rms_norm,
    running_statistics,
)
from transformer_jax.functional.pooling import (
    cls_pool,
    last_pool,
    layer_weighted_pool,
    max_pool,
    mean_pool,
)
from transformer_jax.functional.positions import (
    binary_positions,
    count_in_segments,
    count_positions,
    integer_positions,
    lookup,
    normalised_positions,
    one_hot_positions,
    sinusoidal_positions,
)
from transformer_jax.functional.regions import max_patches, region_embedding, to_front
from transformer_jax.functional.rotary import Rotary, rope, rope_frequencies, yarn_temperature

__version__ = "0.1.0"

__all__ = [
    "BatchStatistics",
    "Rotary",
    "additive_attention",
    "alibi",
    "alibi_slopes",
    "attention_plan",
    "attention_weights",
    "batch_norm",
    "batch_statistics",
    "binary_positions",
    "causal",
    "cls_pool",
    "count_in_segments",
    "count_positions",
    "dense",
    "dot_product_attention",
    "dropout",
    "feed_forward",
    "gated_feed_forward",
    "gelu",
    "integer_positions",
    "last_pool",
    "layer_norm",
    "layer_weighted_pool",
    "linear",
    "lookup",
    "max_patches",
    "max_pool",
    "mean_pool",
    "multi_head_attention",
    "ngram_evidence",
    "ngram_rows",
    "ngram_shares",
    "normalised_positions",
    "one_hot_positions",
    "padding",
    "prefix",
    "region_embedding",
    "relative_bias",
    "relative_buckets",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "running_statistics",
    "segments",
    "sinusoidal_positions",
    "sliding_window",
    "to_front",
    "visited_blocks",
    "yarn_temperature",
]
