"""What a transformer costs: parameters, operations and bytes, from its sizes alone.

A multiply-add is two operations (FLOPs), and only matrix products count: norms, softmax, biases and
activations are far below one per cent. B is the batch, T the length (an encoder-decoder reads T
tokens and writes T), S = T.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from transformer_jax.functional.checks import check_heads

PROJECTIONS, PRODUCTS, FEED_FORWARD = "attention projections", "attention T x S", "feed-forward"


@dataclass(frozen=True)
class Sizes:
    """All that the costs of an architecture depend on; `published.PUBLISHED` has examples.

    With `num_decoder_layers` it is an encoder-decoder: these layers have cross-attention besides.
    """

    num_layers: int
    embed_dim: int
    num_heads: int
    hidden_dim: int
    vocab_size: int
    head_dim: int | None = None  # embed_dim / num_heads when left out
    value_dim: int | None = None  # of a head's values; head_dim when left out
    num_kv_heads: int | None = None  # fewer than num_heads: grouped-query attention
    num_decoder_layers: int = 0
    num_positions: int = 0  # rows of a learned table; 0: sinusoidal, rotary or none
    num_segments: int = 0
    causal: bool = False  # a token sees no later one; in an encoder-decoder, where it writes
    window: int | None = None  # self-attention sees so many tokens before (and after) its own
    gated: bool = False  # three matrices in the feed-forward network instead of two
    biases: bool = True  # of the linear maps of the layers
    qkv_biases: bool | None = None  # of queries, keys and values; None: as biases
    head_norm: bool = False  # an RMS norm of every head's queries and keys
    norm_biases: bool = True  # of the layers: layer norm; RMS norm has none
    embedding_norm: bool = False  # a layer norm
    embedding_norm_bias: bool = True
    first_norm: bool = True  # before the first layer's attention
    final_norm: bool = False  # of each stack
    pooler: bool = False  # BERT's D x D map of the first token
    language_head: str = (
        "none"  # "tied" to the table of tokens, "untied" (its own matrix) or "none"
    )
    num_classes: int = (
        0  # of a classifier, which reads `num_pooled` vectors and the region features
    )
    num_pooled: int = 1
    region_width: int = 1  # tokens that are embedded together: a table of tokens for each place
    region_features: int = 0  # from a table of regions beside the encoder
    patch_width: int = 0  # so many neighbouring regions are one input of the encoder; 0: tokens are
    ngram_rows: int = 0  # of the two tables of n-grams; 0: there are none

    def __post_init__(self):
        for name in ("embed_dim", "num_heads", "hidden_dim", "vocab_size", "region_width"):
            _at_least(1, name, getattr(self, name))
        for name in (
            "num_layers", "num_decoder_layers", "num_positions", "num_segments", "num_classes",
            "num_pooled", "region_features", "patch_width", "ngram_rows", "window",
        ):  # fmt: skip
            _at_least(0, name, getattr(self, name))
        _at_least(1, "head_dim", self.head_dim)
        _at_least(1, "value_dim", self.value_dim)
        _at_least(1, "num_kv_heads", self.num_kv_heads)
        check_heads(self.embed_dim, self.num_heads, self.head_dim, self.num_kv_heads)
        if self.language_head not in ("none", "tied", "untied"):
            raise ValueError(
                f"language_head must be none, tied or untied; got {self.language_head!r}"
            )
        if self.patch_width and not self.region_features:
            raise ValueError(
                f"patch_width={self.patch_width} makes patches of regions: region_features must be 1 or more"
            )

    @property
    def axes(self) -> tuple[int, int, int, int, int]:
        """D, N, K, H, F."""
        D, N = self.embed_dim, self.num_heads
        return D, N, self.num_kv_heads or N, self.head_dim or D // N, self.hidden_dim

    @property
    def keys_and_values(self) -> int:
        """H + O: the features of a head's keys and of its values, 2 H unless `value_dim` says
        otherwise.
        """
        H = self.axes[3]
        return H + (self.value_dim or H)


# Parameters
# -----------------------------------------------------------------------------------------------


def parameters(sizes: Sizes) -> int:
    """How many numbers are learnt: the sum of `parameter_table`."""
    return sum(parameter_table(sizes).values())


def parameter_table(sizes: Sizes) -> dict[str, int]:
    """Parameters by part.

    attention     D N H + D K (H + O) + N O D, and with biases N H + K (H + O) + D; O = H where nothing else is said;
                  a norm of the heads 2 H
    feed-forward  2 D F, gated 3 D F, and with biases F + D, gated 2 F + D
    a norm        2 D, without bias D; two in a layer, three with cross-attention
    embeddings    (V + positions + segments) D
    """
    D, N, K, H, F = sizes.axes
    V, L, M = sizes.vocab_size, sizes.num_layers, sizes.num_decoder_layers
    qkv = sizes.biases if sizes.qkv_biases is None else sizes.qkv_biases
    biases = qkv * (N * H + K * sizes.keys_and_values) + sizes.biases * D
    attention = _projections(sizes) + biases + 2 * H * sizes.head_norm
    wide = (1 + sizes.gated) * F
    feed_forward = _feed_forward(sizes) + sizes.biases * (wide + D)
    stacks = 1 + (M > 0)
    norms = 2 * L + 3 * M + sizes.final_norm * stacks - (L > 0 and not sizes.first_norm)
    of_embeddings = (1 + sizes.embedding_norm_bias) * sizes.embedding_norm * stacks * D
    regions, patch = sizes.region_features, sizes.patch_width
    rows = sizes.num_positions + sizes.num_segments + (0 if patch else sizes.region_width * V)
    ngram_columns = 1 if sizes.num_classes == 2 else sizes.num_classes
    table = {
        "embeddings": rows * D,
        "regions": (sizes.region_width * V + 1) * regions,
        "patches": (regions + 1) * D if patch else 0,
        "attention": (L + M) * attention,
        "cross-attention": M * attention,
        "feed-forward": (L + M) * feed_forward,
        "norms": norms * (1 + sizes.norm_biases) * D + of_embeddings,
        "n-grams": (2 * sizes.ngram_rows + (sizes.ngram_rows > 0)) * ngram_columns,
        "pooler": sizes.pooler * (D + 1) * D,
        "head": (D * V if sizes.language_head == "untied" else 0)
        + (sizes.num_pooled * D + regions + 1) * sizes.num_classes,
    }
    return {part: number for part, number in table.items() if number}


def _projections(sizes: Sizes) -> int:
    D, N, K, _, _ = sizes.axes
    return D * (N + K) * sizes.keys_and_values


def _feed_forward(sizes: Sizes) -> int:
    return (2 + sizes.gated) * sizes.embed_dim * sizes.hidden_dim


# Operations
# -----------------------------------------------------------------------------------------------


def visible_pairs(T: int, *, causal: bool = False, window: int | None = None) -> int:
    """How many of the T x T pairs of a query and a key a mask lets through.

    T^2 for all, T (T + 1) / 2 causal, and with a window w of tokens before its own (and after it,
    unless causal) sum_t min(t, w) + 1 for causal, twice the sum and T otherwise: `sliding_window(w,
    w)`, `& causal()`.
    """
    _at_least(1, "T", T)
    _at_least(0, "window", window)
    reach = T - 1 if window is None else min(window, T - 1)
    before = reach * (reach + 1) // 2 + (T - 1 - reach) * reach  # sum over t < T of min(t, reach)
    return T + before * (1 if causal else 2)


def forward_flops(sizes: Sizes, length: int, *, batch: int = 1, skip_hidden: bool = False) -> int:
    """FLOPs of one pass over `batch` texts of `length` tokens: the sum of `forward_table`."""
    return sum(forward_table(sizes, length, batch=batch, skip_hidden=skip_hidden).values())


def forward_table(
    sizes: Sizes, length: int, *, batch: int = 1, skip_hidden: bool = False
) -> dict[str, int]:
    """FLOPs of a forward pass by part, for each token and layer

    projections    2 D (N + K) (H + O)
    T x S          2 N (H + O) S: the scores, and the sums over the values. Sharing keys changes nothing
    feed-forward   2 * 2 D F, gated 2 * 3 D F
    head           2 D V for each token, tied or not; a pooler and classes once a text

    S counts every key, as the reference computes them whatever the mask; with `skip_hidden` the
    pairs that `causal` and `window` let through, as a kernel that skips the others does: half of
    them for long causal texts.
    """
    _at_least(1, "length", length)
    _at_least(1, "batch", batch)
    D, N, _, _, _ = sizes.axes
    L, M = sizes.num_layers, sizes.num_decoder_layers
    T = encoder_length(sizes, length)
    everything = visible_pairs(T)
    if skip_hidden:
        encoder = visible_pairs(T, causal=sizes.causal and not M, window=sizes.window)
        decoder = visible_pairs(T, causal=sizes.causal, window=sizes.window)
    else:
        encoder = decoder = everything
    pairs = L * encoder + M * (decoder + everything)  # cross-attention hides nothing
    table = {
        "patches": 2 * T * sizes.region_features * D if sizes.patch_width else 0,
        PROJECTIONS: 2 * T * (L + 2 * M) * _projections(sizes),
        PRODUCTS: 2 * N * sizes.keys_and_values * pairs,
        FEED_FORWARD: 2 * T * (L + M) * _feed_forward(sizes),
        "pooler": 2 * sizes.pooler * D * D,
        "head": (2 * T * D * sizes.vocab_size if sizes.language_head != "none" else 0)
        + 2 * (sizes.num_pooled * D + sizes.region_features) * sizes.num_classes,
    }
    return {part: batch * flops for part, flops in table.items() if flops}


def training_flops(
    sizes: Sizes, length: int, *, batch: int = 1, remat: bool = False, skip_hidden: bool = False
) -> int:
    """FLOPs of a forward and a backward pass: 3 times the forward pass.

    The gradient of a product Y = X W is two products of its size, dX = dY W^T and dW = X^T dY. With
    `remat` each layer is computed once more, which makes 4 for the layers; JAX leaves out of that
    what no gradient needs, as the last product before a residual sum.
    """
    table = forward_table(sizes, length, batch=batch, skip_hidden=skip_hidden)
    layers = table.get(PROJECTIONS, 0) + table.get(PRODUCTS, 0) + table.get(FEED_FORWARD, 0)
    return 3 * sum(table.values()) + remat * layers


def six_nd(parameters: float | int, tokens: float | int) -> float | int:
    """6 N D, training FLOPs by rule (Kaplan et al., 2020, https://arxiv.org/abs/2001.08361, section
    2.1).

    Each parameter takes part in one multiply-add a token, and a gradient in two more. It leaves out
    T x S and counts tables that are only looked up; Kaplan's N leaves these out.
    """
    return 6 * parameters * tokens


def crossover_lengths(sizes: Sizes) -> tuple[float, float]:
    """The lengths T at which the T x T products of self-attention equal its projections, and all
    else in a layer.

    4 N H T^2 = 4 D (N + K) H T                at T = D (1 + K / N):  2 D with K = N
    4 N H T^2 = (4 D (N + K) H + 4 D F) T      at T = D (1 + K / N) + D F / (N H):  6 D with F = 4 D, N H = D
    """
    pair = sizes.num_heads * sizes.keys_and_values
    projections, feed_forward = _projections(sizes), _feed_forward(sizes)
    return projections / pair, (projections + feed_forward) / pair


# Bytes
# ----------------------------------------------------------------------------------------------------


def activation_bytes(
    sizes: Sizes,
    length: int,
    *,
    batch: int = 1,
    dtype: str = "float32",
    remat: bool = False,
    keep_weights: bool = True,
) -> int:
    """Bytes of what the forward pass of a training step keeps for the gradient, without dropout.

    For each token and layer, in `dtype`: 4 D (input and output of two norms), (N + K) (H + O)
    (queries, keys, values, attended), 2 F (before and after the activation; gated 3 F), as
    Korthikanti et al. count (2022, https://arxiv.org/abs/2205.05198, section 4.1). To it the
    weights, N S in float32 and once more in a narrower `dtype`; a blockwise kernel, with
    `keep_weights=False`, has the N float32 logsumexps instead. Cross-attention adds a norm, 2 D,
    its (N + K) (H + O) and its weights. With `remat` only the input of each layer stays, D, and one
    layer at a time is there in full. A language head adds V float32 logits a token.
    """
    _at_least(1, "length", length)
    _at_least(1, "batch", batch)
    D, N, K, _, F = sizes.axes
    L, M = sizes.num_layers, sizes.num_decoder_layers
    T, size = encoder_length(sizes, length), _itemsize(dtype)
    wide = max(size, 4)  # softmax is in float32 or wider
    weights = N * (T * (wide + (size if size < wide else 0)) if keep_weights else wide)
    attention = (N + K) * sizes.keys_and_values * size + weights
    layer = (4 * D + (2 + sizes.gated) * F) * size + attention
    decoder_layer = layer + 2 * D * size + attention
    if remat:
        largest = decoder_layer if M else layer
        kept = (L + M - 1) * D * size + largest if L + M else 0
    else:
        kept = L * layer + M * decoder_layer
    stacks = 1 + (M > 0)
    kept += stacks * (sizes.embedding_norm + 2 * sizes.final_norm) * D * size
    if sizes.language_head != "none":
        kept += sizes.vocab_size * wide
    return batch * T * kept


def cache_bytes(sizes: Sizes, length: int, *, batch: int = 1, dtype: str = "float32") -> int:
    """Bytes of the keys and values that generation keeps for `length` tokens: K (H + O) for each
    token and layer.

    With a window w a ring of w + 1 tokens is enough. An encoder-decoder keeps them for
    cross-attention too.
    """
    _at_least(1, "length", length)
    _at_least(1, "batch", batch)
    K = sizes.axes[2]
    L, M = sizes.num_layers, sizes.num_decoder_layers
    tokens = length if sizes.window is None else min(length, sizes.window + 1)
    kept = M * (tokens + length) if M else L * tokens
    return batch * kept * K * sizes.keys_and_values * _itemsize(dtype)


def encoder_length(sizes: Sizes, length: int) -> int:
    """How many inputs the layers get for `length` tokens: as many, or one for each patch."""
    return math.ceil(length / sizes.patch_width) if sizes.patch_width else length


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
