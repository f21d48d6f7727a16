"""Formulas for the parameters, operations and bytes of a transformer, from its configuration.

Every function takes the configuration of a model, or a `StackConfig` for only the layers of a
stack. A multiply-add is two operations (FLOPs). Only matrix products count: norms, softmax, biases
and activations are far below one per cent. B is the batch size, T the length (an encoder-decoder
reads T tokens and writes T), S = T.
"""

import math
from collections import Counter

import jax.numpy as jnp

from transformer_jax.functional.feed_forward import GATES
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.position_schemes import POSITION_SCHEMES

PROJECTIONS, PRODUCTS, FEED_FORWARD = "attention projections", "attention T x S", "feed-forward"

Config = (
    StackConfig
    | ClassifierConfig
    | EncoderClassifierConfig
    | LanguageModelConfig
    | SequenceToSequenceConfig
    | TextEncoderConfig
)


def stacks_of(config: Config) -> tuple[StackConfig, ...]:
    """Return the stacks of layers of a model. A second stack also attends to the first."""
    match config:
        case StackConfig():
            return (config,)
        case ClassifierConfig() | TextEncoderConfig():
            return (config.encoder,)
        case EncoderClassifierConfig():
            return (config.text.encoder,)
        case LanguageModelConfig():
            return (config.decoder,)
        case SequenceToSequenceConfig():
            return (config.encoder, config.decoder)
    raise TypeError(f"config must be the configuration of a model; got {type(config).__name__}")


def encoder_length(config: Config, length: int) -> int:
    """Return the number of inputs of the layers: `length`, or the number of their patches."""
    patch = getattr(config, "patch_width", 0)
    return math.ceil(length / patch) if patch else length


def learned_positions(config: Config) -> int:
    """Return the number of rows of the position table, which is 0 if positions are not learned."""
    match config:
        case ClassifierConfig():
            return encoder_length(config, config.max_length)
        case EncoderClassifierConfig():
            return learned_positions(config.text)
        case StackConfig():
            return 0
    return config.max_length if POSITION_SCHEMES[config.positions].has_table else 0


# Parameters ---------------------------------------------------------------------------------------

PARTS = (
    "embeddings", "regions", "patches", "attention", "cross-attention", "feed-forward", "norms",
    "n-grams", "pooler", "head",
)  # fmt: skip


def parameters(config: Config) -> int:
    """Return the number of parameters: the sum of `parameter_table`."""
    return sum(parameter_table(config).values())


def parameter_table(config: Config) -> dict[str, int]:
    """Return the number of parameters by part.

    attention     D N H + D K (H + O) + N O D; biases add N H + K (H + O) + D; norms of the
                  heads add 2 H. H and O are the features of a head's keys and values
    feed-forward  2 D F, gated 3 D F; biases add F + D, gated 2 F + D
    a norm        2 D, without bias D; two in a layer, three with cross-attention
    embeddings    (V + positions + segments) D
    """
    total = Counter(_around_the_layers(config))
    for place, stack in enumerate(stacks_of(config)):
        total.update(_layers(stack, crosses=place > 0))
    return {part: total[part] for part in PARTS if total[part]}


def _layers(stack: StackConfig, *, crosses: bool) -> dict[str, int]:
    D, F, L = stack.embed_dim, stack.hidden_dim, stack.num_layers
    N, K, H, values = stack.axes
    qkv_biases = stack.biases if stack.qkv_biases is None else stack.qkv_biases
    attention = _projections(stack) + qkv_biases * (N * H + K * (H + values)) + stack.biases * D
    attention += 2 * H * stack.head_norm
    width = (1 + (stack.activation in GATES)) * F
    norm = D * (1 + (stack.norm_kind == "layer" and stack.norm_biases))
    norms = (2 + crosses) * L + stack.final_norm - (L > 0 and not stack.first_norm)
    return {
        "attention": L * attention,
        "cross-attention": crosses * L * attention,
        "feed-forward": L * (_feed_forward(stack) + stack.biases * (width + D)),
        "norms": norms * norm,
    }


def _around_the_layers(config: Config) -> dict[str, int]:
    if isinstance(config, StackConfig):
        return {}
    D, positions = stacks_of(config)[0].embed_dim, learned_positions(config)
    match config:
        case ClassifierConfig():
            tokens, R = config.region_width * config.vocab_size, config.region_features
            rows = positions + (0 if config.patch_width else tokens + config.num_segments)
            return {
                "embeddings": rows * D,
                "regions": (tokens + 1) * R,
                "patches": (R + 1) * D if config.patch_width else 0,
                "norms": 2 * D,
                "n-grams": _ngrams(config),
                "head": (len(config.pooling) * D + R + 1) * config.num_classes,
            }
        case TextEncoderConfig():
            return {
                "embeddings": (config.vocab_size + positions + config.num_segments) * D,
                "norms": (1 + config.encoder.norm_biases) * D,
                "pooler": config.pooler * (D + 1) * D,
            }
        case EncoderClassifierConfig():
            return _around_the_layers(config.text) | {
                "n-grams": _ngrams(config),
                "pooler": (config.activation is not None) * (D + 1) * D,
                "head": (D + 1) * config.num_classes,
            }
    tied = getattr(config, "tied_head", True)
    tokens = config.vocab_size
    return {"embeddings": (tokens + positions) * D, "head": 0 if tied else D * tokens}


def _ngrams(config: ClassifierConfig | EncoderClassifierConfig) -> int:
    columns = 1 if config.num_classes == 2 else config.num_classes
    return (2 * 2**config.ngram_bits + 1) * columns if config.ngrams else 0


def _projections(stack: StackConfig) -> int:
    N, K, H, values = stack.axes
    return stack.embed_dim * (N + K) * (H + values)


def _feed_forward(stack: StackConfig) -> int:
    return (2 + (stack.activation in GATES)) * stack.embed_dim * stack.hidden_dim


# Operations ---------------------------------------------------------------------------------------


def visible_pairs(T: int, *, causal: bool = False, window: int | None = None) -> int:
    """Return the number of T x T pairs of a query and a key that a mask allows.

    It is T^2 without a mask and T (T + 1) / 2 for a causal one. A window of w tokens before the
    query (and after it, unless causal) allows sum_t (min(t, w) + 1) pairs if causal, and T + 2
    sum_t min(t, w) otherwise: the masks `sliding_window(w, w) & causal()` and `sliding_window(w,
    w)`. Raises ValueError for a T below 1 or a negative window.
    """
    _at_least(1, "T", T)
    _at_least(0, "window", window)
    reach = T - 1 if window is None else min(window, T - 1)
    before = reach * (reach + 1) // 2 + (T - 1 - reach) * reach  # sum over t < T of min(t, reach)
    return T + before * (1 if causal else 2)


def forward_flops(
    config: Config,
    length: int,
    *,
    batch: int = 1,
    causal: bool = False,
    window: int | None = None,
) -> int:
    """Return the FLOPs of a forward pass over `batch` texts: the sum of `forward_table`."""
    table = forward_table(config, length, batch=batch, causal=causal, window=window)
    return sum(table.values())


def forward_table(
    config: Config,
    length: int,
    *,
    batch: int = 1,
    causal: bool = False,
    window: int | None = None,
) -> dict[str, int]:
    """Return the FLOPs of a forward pass by part. For each token and layer they are

    projections    2 D (N + K) (H + O)
    T x S          2 N (H + O) S: the scores and the sums over the values, also with shared keys
    feed-forward   2 * 2 D F, gated 2 * 3 D F
    head           2 D V for each token, tied or not; a pooler and classes once per text

    S counts every key, because the reference computes all of them under any mask. With `causal` or
    a `window`, only the pairs of `visible_pairs` count, as in a kernel that skips the others: half
    of them for long causal texts. In an encoder-decoder, `causal` applies to the decoder, and
    cross-attention has no mask.
    """
    _at_least(1, "length", length)
    _at_least(1, "batch", batch)
    T = encoder_length(config, length)
    stacks = stacks_of(config)
    table = Counter(patches=0)
    for place, stack in enumerate(stacks):
        crosses, last = place > 0, place == len(stacks) - 1
        L, (N, _, H, values) = stack.num_layers, stack.axes
        pairs = visible_pairs(T, causal=causal and last, window=window) + crosses * T * T
        table[PROJECTIONS] += 2 * T * L * (1 + crosses) * _projections(stack)
        table[PRODUCTS] += 2 * N * (H + values) * L * pairs
        table[FEED_FORWARD] += 2 * T * L * _feed_forward(stack)
    table.update(_flops_around_the_layers(config, T))
    return {part: batch * flops for part, flops in table.items() if flops}


def _flops_around_the_layers(config: Config, T: int) -> dict[str, int]:
    D = stacks_of(config)[0].embed_dim
    match config:
        case ClassifierConfig():
            R = config.region_features
            pooled = len(config.pooling) * D + R
            patches = 2 * T * R * D if config.patch_width else 0
            return {"patches": patches, "head": 2 * pooled * config.num_classes}
        case TextEncoderConfig():
            return {"pooler": 2 * config.pooler * D * D}
        case EncoderClassifierConfig():
            pooler = 2 * D * D if config.activation is not None else 0
            return {"pooler": pooler, "head": 2 * D * config.num_classes}
        case LanguageModelConfig() | SequenceToSequenceConfig():
            return {"head": 2 * T * D * config.vocab_size}
    return {}


def training_flops(config: Config, length: int, *, batch: int = 1, remat: bool = False) -> int:
    """Return the FLOPs of a forward and a backward pass: 3 times the forward pass.

    The gradient of a product Y = X W takes two products of its size, dX = dY W^T and dW = X^T dY.
    With `remat` each layer is computed a second time, which makes the factor 4 for the layers. JAX
    skips the parts of this recomputation that no gradient needs, such as the last product before a
    residual sum.
    """
    table = forward_table(config, length, batch=batch)
    layers = sum(table.get(part, 0) for part in (PROJECTIONS, PRODUCTS, FEED_FORWARD))
    return 3 * sum(table.values()) + remat * layers


def six_nd(parameters: float | int, tokens: float | int) -> float | int:
    """Return 6 N D, the rule of thumb for training FLOPs with N parameters and D tokens.

    Kaplan et al., 2020, https://arxiv.org/abs/2001.08361, section 2.1.

    Each parameter takes part in one multiply-add per token in the forward pass, and in two more for
    the gradient. The rule leaves out the T x S products. It counts embedding tables, which are only
    looked up; Kaplan's N leaves them out.
    """
    return 6 * parameters * tokens


def crossover_lengths(stack: StackConfig) -> tuple[float, float]:
    """Return the lengths T at which T x T costs as much as the projections, and as the whole rest.

    4 N H T^2 = 4 D (N + K) H T            at T = D (1 + K / N):  2 D with K = N
    4 N H T^2 = (4 D (N + K) H + 4 D F) T  at T = D (1 + K / N) + D F / (N H):  6 D with F = 4 D
    """
    N, _, H, values = stack.axes
    projections, feed_forward = _projections(stack), _feed_forward(stack)
    return projections / (N * (H + values)), (projections + feed_forward) / (N * (H + values))


# Bytes --------------------------------------------------------------------------------------------


def activation_bytes(
    config: Config,
    length: int,
    *,
    batch: int = 1,
    dtype: str = "float32",
    remat: bool = False,
    keep_weights: bool = True,
) -> int:
    """Return the bytes that a forward pass without dropout keeps for the gradient.

    The values for each token and layer, in `dtype`, are 4 D (inputs and outputs of two norms),
    (N + K) (H + O) (queries, keys, values, attention output) and 2 F (before and after the
    activation; gated 3 F), as in Korthikanti et al. (2022, https://arxiv.org/abs/2205.05198,
    section 4.1). The attention weights add N S in float32, and again N S in `dtype` if it is
    narrower. A blockwise kernel, `keep_weights=False`, keeps 2 N float32 numbers instead, the
    largest logits and the logarithms of the sums.
    Cross-attention adds a norm, 2 D, its (N + K) (H + O) and its weights. With `remat`, only the
    input D of each layer is kept, and a single layer at a time in full. A language model's head
    adds V float32 logits per token.
    """
    _at_least(1, "length", length)
    _at_least(1, "batch", batch)
    T, size = encoder_length(config, length), _itemsize(dtype)
    wide = max(size, 4)  # softmax is in float32 or wider
    kept, layers = 0, []
    for place, stack in enumerate(stacks_of(config)):
        D, (N, K, H, values) = stack.embed_dim, stack.axes
        weights = N * (T * (wide + (size if size < wide else 0)) if keep_weights else 2 * wide)
        attention = (N + K) * (H + values) * size + weights
        width = (2 + (stack.activation in GATES)) * stack.hidden_dim
        layer = (4 * D + width) * size + attention
        layer += (2 * D * size + attention) if place else 0
        layers += [layer] * stack.num_layers
        kept += 2 * stack.final_norm * D * size
    if remat and layers:
        kept += (len(layers) - 1) * D * size + max(layers)
    else:
        kept += sum(layers)
    if isinstance(config, ClassifierConfig | TextEncoderConfig | EncoderClassifierConfig):
        kept += D * size  # of the norm of the embeddings
    if isinstance(config, LanguageModelConfig | SequenceToSequenceConfig):
        kept += config.vocab_size * wide
    return batch * T * kept


def cache_bytes(
    config: Config,
    length: int,
    *,
    batch: int = 1,
    dtype: str = "float32",
    window: int | None = None,
) -> int:
    """Return the bytes of the keys and values that generation keeps for `length` tokens.

    They are K (H + O) values for each token and layer. With a window w, a ring of w + 1 tokens is
    enough. An encoder-decoder also keeps those of cross-attention.
    """
    _at_least(1, "length", length)
    _at_least(1, "batch", batch)
    _at_least(0, "window", window)
    *before, stack = stacks_of(config)
    _, K, H, values = stack.axes
    tokens = length if window is None else min(length, window + 1)
    tokens += length if before else 0
    return batch * stack.num_layers * tokens * K * (H + values) * _itemsize(dtype)


def _itemsize(dtype: str) -> int:
    try:
        return jnp.dtype(dtype).itemsize
    except TypeError:
        raise ValueError(
            f"dtype must be the name of a type, as float32 or bfloat16; got {dtype!r}"
        ) from None


def _at_least(least: int, name: str, value: int | None) -> None:
    if value is not None and value < least:
        raise ValueError(f"{name} must be {least} or more; got {value}")
