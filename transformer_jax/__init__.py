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

and so can `load`, for a trained model:

    tj.load("runs/NAME", "classifier").predict(["A wonderful film."])
"""

import sys
from pathlib import Path

# A command, started as __main__ says: the imports below take most of a second.
if (sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv) or (
    Path(*sys.argv[:1]).stem == "transformer-jax"
):
    from transformer_jax.runtime.ctrl_c import end_on_ctrl_c

    end_on_ctrl_c()

from typing import TYPE_CHECKING, Any, Literal, overload

from jax.typing import DTypeLike

# Imported here and not on first use (PEP 562). Importing a file binds its name in the package, so a
# lazy `tj.dropout` would be the function or the file, depending on what was imported before.
from transformer_jax.attention.additive import additive_attention
from transformer_jax.attention.biases import alibi, alibi_slopes, relative_bias, relative_buckets
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.kernels.dispatch import attention_plan
from transformer_jax.attention.kernels.tile_sizes import visited_blocks
from transformer_jax.attention.mask_rule import dense
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window
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

if TYPE_CHECKING:
    from transformer_jax.inference.classify import Classifier
    from transformer_jax.inference.embed import SentenceEncoder
    from transformer_jax.inference.fill_mask import MaskFiller
    from transformer_jax.inference.text_generator import TextGenerator
    from transformer_jax.inference.translate import Translator

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
    "load",
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


@overload
def load(
    source: str | Path,
    kind: Literal["classifier"],
    *,
    dtype: DTypeLike = ...,
    revision: str | None = ...,
) -> "Classifier": ...


@overload
def load(
    source: str | Path,
    kind: Literal["language"],
    *,
    dtype: DTypeLike = ...,
    revision: str | None = ...,
) -> "TextGenerator": ...


@overload
def load(
    source: str | Path,
    kind: Literal["seq2seq"],
    *,
    dtype: DTypeLike = ...,
    revision: str | None = ...,
) -> "Translator": ...


@overload
def load(
    source: str | Path,
    kind: Literal["masked"],
    *,
    dtype: DTypeLike = ...,
    revision: str | None = ...,
) -> "MaskFiller": ...


@overload
def load(
    source: str | Path,
    kind: Literal["encoder"],
    *,
    dtype: DTypeLike = ...,
    revision: str | None = ...,
) -> "SentenceEncoder": ...


@overload
def load(
    source: str | Path,
    kind: None = ...,
    *,
    dtype: DTypeLike = ...,
    revision: str | None = ...,
) -> Any: ...


def load(
    source: str | Path,
    kind: str | None = None,
    *,
    dtype: DTypeLike = "float32",
    revision: str | None = None,
) -> Any:
    """Load a trained model with its tokenizer, as an object that takes texts.

    `source` is a run folder, a folder of a published model in Hugging Face's layout, or the name of
    a model on the Hugging Face Hub. `kind` is by default that of the model; if it is given, type
    checkers know the class of the result:

        "classifier"  Classifier       predict, predict_proba, explain, classes
        "language"    TextGenerator    generate, stream, next_tokens
        "seq2seq"     Translator       translate
        "masked"      MaskFiller       fill
        "encoder"     SentenceEncoder  embed

    "encoder" also loads the encoder of a model with a head. The parameters are cast to `dtype`.
    `revision` is a branch, tag or commit on the hub. What is compiled is kept by the object, so
    load a model once.

    Raises ValueError, with a message of one line, if there is no such model.

    >>> classifier = load("tests/data/run_folders/imdb")
    >>> classifier.classes
    ('negative', 'positive')
    >>> classifier.predict(["a fine film", "the plot was dull"])
    array(['positive', 'negative'], dtype='<U8')
    """
    # Only here, because it needs Flax, and the pure functions start faster without it.
    from transformer_jax.inference.predictors import load_predictor

    return load_predictor(source, kind, dtype=dtype, revision=revision)
