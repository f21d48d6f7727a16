"""Sizes and switches of a layer and of a model: frozen, plain, and checked once, here."""

import math
from dataclasses import dataclass

from transformer_jax.functional.checks import check_heads
from transformer_jax.functional.feed_forward import ACTIVATIONS, GATES
from transformer_jax.functional.pooling import POOLINGS
from transformer_jax.runtime.errors import shown

LARGEST = 2**31  # no array has an axis of that size


def _sizes(config, *names, least=1):
    for name in names:
        size = getattr(config, name)
        if size < least:
            raise ValueError(f"{name} must be {least} or more; got {shown(size)}")
        if size >= LARGEST:
            raise ValueError(f"{name} must be less than {LARGEST}; got {shown(size)}")


def _ngrams(config):
    _sizes(config, "ngrams", least=0)
    if not 1 <= config.ngram_bits <= 28:
        raise ValueError(f"ngram_bits must be from 1 to 28; got {shown(config.ngram_bits)}")


def _rates(config, *names):
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} must be in [0, 1); got {getattr(config, name)}")


def _one_of(config, name, choices):
    if getattr(config, name) not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(str, choices))}; got {getattr(config, name)!r}"
        )


@dataclass(frozen=True)
class StackConfig:
    """A stack of layers, an encoder's or a decoder's; the defaults are the base model of Vaswani et
    al., 2017, table 3.
    """

    num_layers: int = 6
    embed_dim: int = 512
    num_heads: int = 8
    hidden_dim: int = 2048
    head_dim: int | None = None  # embed_dim / num_heads when left out
    value_dim: int | None = None  # of a head's values; head_dim when left out
    num_kv_heads: int | None = None  # fewer than num_heads: grouped-query attention
    norm: str = "post"  # where the norm stands: "post" (2017, BERT) or "pre" (GPT-2, most since)
    final_norm: bool = False  # a norm after the last layer, which a pre-norm stack usually wants
    norm_kind: str = "layer"  # "layer", or "rms", which does not centre and has no bias
    norm_epsilon: float = 1e-5
    activation: str = "relu"  # or of a gated network: swiglu, geglu, geglu_tanh
    biases: bool = True  # of the linear maps
    qkv_biases: bool | None = (
        None  # of queries, keys and values (Qwen2 has these alone); None: as biases
    )
    norm_biases: bool = True  # of layer norms
    first_norm: bool = True  # False: what a pre-norm stack reads is normed already (ModernBERT)
    head_norm: bool = False  # an RMS norm of every head's queries and keys (Qwen3)
    dropout_rate: float = 0.1  # after the attention, inside and after the feed-forward network
    attention_dropout_rate: float = 0.1  # on the attention weights

    def __post_init__(self):
        _sizes(self, "embed_dim", "num_heads", "hidden_dim")
        optional = ("head_dim", "value_dim", "num_kv_heads")
        _sizes(self, *(name for name in optional if getattr(self, name) is not None))
        _sizes(self, "num_layers", least=0)
        _rates(self, "dropout_rate", "attention_dropout_rate")
        _one_of(self, "norm", ("pre", "post"))
        _one_of(self, "norm_kind", ("layer", "rms"))
        _one_of(self, "activation", (*ACTIVATIONS, *GATES))
        if not 0.0 < self.norm_epsilon < math.inf:
            raise ValueError(f"norm_epsilon must be a number above 0; got {self.norm_epsilon}")
        if not self.first_norm and self.norm != "pre":
            raise ValueError('first_norm=False leaves out a norm that norm="post" does not have')
        check_heads(self.embed_dim, self.num_heads, self.head_dim, self.num_kv_heads)

    @property
    def axes(self) -> tuple[int, int, int, int]:
        """N, K, H and O: heads, key heads, and the features of a head's keys and of its values."""
        N, H = self.num_heads, self.head_dim or self.embed_dim // self.num_heads
        return N, self.num_kv_heads or N, H, self.value_dim or H


@dataclass(frozen=True)
class ClassifierConfig:
    """Tokens in, class logits out."""

    vocab_size: int
    max_length: int
    num_classes: int = 2
    encoder: StackConfig = StackConfig()
    num_segments: int = 2
    pooling: tuple[str, ...] = ("cls",)  # of the encoder; one or more, concatenated
    region_width: int = 1  # how many neighbouring tokens are embedded together; 1 is BERT's
    region_features: int = 0  # of regions, max-pooled beside the encoder; 0 is none
    patch_width: int = 0  # so many neighbouring regions make a patch for the encoder; 0: tokens
    encoder_scale: float = 1.0  # times what is pooled of it: how loud it is beside the regions
    attends: bool = True  # False: a place sees itself alone; what attention adds is the difference
    ngrams: int = 0  # n-grams of up to so many tokens have weights of their own; 0: there are none
    ngram_bits: int = 22  # 2**ngram_bits rows of weights, found by hashing
    embedding_dropout_rate: float = 0.1
    head_dropout_rate: float = 0.1

    def __post_init__(self):
        _sizes(self, "vocab_size", "max_length", "num_classes", "num_segments", "region_width")
        _sizes(self, "region_features", "patch_width", least=0)
        _rates(self, "embedding_dropout_rate", "head_dropout_rate")
        _ngrams(self)
        if not 0 < self.encoder_scale < float("inf"):
            raise ValueError(f"encoder_scale must be above 0; got {self.encoder_scale}")
        for name in self.pooling:
            if name not in POOLINGS:
                raise ValueError(f"pooling must be among {', '.join(POOLINGS)}; got {name!r}")
        if not self.pooling:
            raise ValueError(f"pooling needs at least one of {', '.join(POOLINGS)}")
        if self.patch_width and not self.region_features:
            raise ValueError(
                f"patch_width={self.patch_width} makes patches of regions: region_features must be 1 or more"
            )
        if self.region_width % 2 == 0:
            raise ValueError(f"region_width must be odd; got {self.region_width}")


@dataclass(frozen=True)
class TextEncoderConfig:
    """Tokens in, a vector for each out: BERT and what came of it. The defaults are BERT's (Devlin
    et al., 2019).
    """

    vocab_size: int
    max_length: int = 512
    encoder: StackConfig = StackConfig(12, 768, 12, 3072, norm_epsilon=1e-12, activation="gelu")
    num_segments: int = 2  # 0: no table of them (DistilBERT)
    positions: str = "learned"  # or rotary, inside attention (ModernBERT)
    rope_base: float = 10_000.0  # of rotary positions
    window: int | None = (
        None  # how many tokens a local layer sees on each side; None: all layers see all
    )
    global_every: int = 1  # the first of so many layers sees all
    local_rope_base: float = 10_000.0  # of local layers
    pooler: bool = False  # tanh of a linear map of the first token, beside the vectors
    embedding_dropout_rate: float = 0.1

    def __post_init__(self):
        _sizes(self, "vocab_size", "max_length", "global_every")
        _sizes(self, "num_segments", *(["window"] if self.window is not None else []), least=0)
        _rates(self, "embedding_dropout_rate")
        _one_of(self, "positions", ("learned", "rotary"))
        _rotary(self)


@dataclass(frozen=True)
class EncoderClassifierConfig:
    """A text encoder and the logits of classes: what a pretrained encoder is fine-tuned as."""

    text: TextEncoderConfig
    num_classes: int = 2
    pooling: str = "cls"  # or mean
    activation: str | None = "tanh"  # of a linear map before the last; None: there is none
    head_dropout_rate: float = 0.1
    ngrams: int = 0  # n-grams of up to so many tokens have weights of their own; 0: there are none
    ngram_bits: int = 22  # 2**ngram_bits rows of weights, found by hashing

    def __post_init__(self):
        _sizes(self, "num_classes")
        _ngrams(self)
        _rates(self, "head_dropout_rate")
        _one_of(self, "pooling", ("cls", "mean"))
        _one_of(self, "activation", (None, "tanh", "relu"))
        if self.text.pooler:
            raise ValueError("a classifier has the pooler in its head: text.pooler must be False")

    @property
    def in_passages(self) -> bool:
        """Whether texts longer than the encoder holds are read, in passages of what it holds: a
        mean can be taken over them.
        """
        return self.pooling == "mean"


@dataclass(frozen=True)
class RopeScaling:
    """Rotary positions slowed down for longer texts; the arguments of `rope_frequencies` that say
    how.
    """

    scaling: str
    factor: float
    original_length: int | None = None
    low: float = 1.0  # of llama3 alone
    high: float = 4.0

    def __post_init__(self):
        _one_of(self, "scaling", ("linear", "ntk", "llama3"))
        if not 1.0 <= self.factor < math.inf:
            raise ValueError(f"factor must be 1 or more; got {self.factor}")
        if self.scaling == "llama3" and not (self.original_length and 0 < self.low < self.high):
            raise ValueError("llama3 needs original_length, and low between 0 and high")


POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "none")


@dataclass(frozen=True)
class LanguageModelConfig:
    """Tokens in, logits of the next token out; GPT-2 and LLaMA are two of these (`published.py` has
    their sizes).
    """

    vocab_size: int
    max_length: int  # how many tokens of a text are read, or written
    decoder: StackConfig = StackConfig(norm="pre", final_norm=True, activation="gelu_tanh")
    positions: str = (
        "learned"  # or sinusoidal, added to the tokens; rotary, alibi: inside attention
    )
    rope_base: float = 10_000.0  # of rotary positions
    rope_scaling: RopeScaling | None = None
    window: int | None = None  # how many tokens before its own a token sees; None: all
    tied_head: bool = True  # the table of tokens is the head's too
    embedding_dropout_rate: float = 0.1

    def __post_init__(self):
        _sizes(self, "vocab_size", "max_length")
        if self.window is not None:
            _sizes(self, "window", least=0)
        _rates(self, "embedding_dropout_rate")
        _one_of(self, "positions", POSITIONS)
        _rotary(self)
        _decoder(self)


@dataclass(frozen=True)
class SequenceToSequenceConfig:
    """One text in, another out; the defaults are the base model of Vaswani et al., 2017, table 3."""

    vocab_size: int  # one table for the source, the target and the head
    max_length: int
    encoder: StackConfig = StackConfig()
    decoder: StackConfig = StackConfig()
    positions: str = "sinusoidal"
    rope_base: float = 10_000.0
    embedding_dropout_rate: float = 0.1

    def __post_init__(self):
        _sizes(self, "vocab_size", "max_length")
        _rates(self, "embedding_dropout_rate")
        _one_of(self, "positions", POSITIONS)
        _rotary(self)
        _decoder(self)
        if self.encoder.embed_dim != self.decoder.embed_dim:
            raise ValueError(
                "encoder and decoder share a table of tokens: their embed_dim must be equal; got "
                f"{self.encoder.embed_dim} and {self.decoder.embed_dim}"
            )


def _decoder(config):
    if not config.decoder.first_norm:
        raise ValueError("first_norm=False is of encoders, whose embeddings have a norm")


def _rotary(config):
    if not 1.0 < config.rope_base < math.inf:
        raise ValueError(f"rope_base must be a number above 1; got {config.rope_base}")
    stacks = (getattr(config, name, None) for name in ("encoder", "decoder"))
    for stack in filter(None, stacks):
        head_dim = stack.axes[2]
        if config.positions == "rotary" and head_dim % 2:
            raise ValueError(f"rotary positions turn pairs of features; head_dim is {head_dim}")
