"""The configurations of the models: frozen dataclasses that check their values."""

import math
from dataclasses import dataclass

from transformer_jax.functional.pooling import POOLINGS
from transformer_jax.nn.config import StackConfig, check_choice, check_rates, check_sizes
from transformer_jax.nn.position_schemes import POSITION_SCHEMES, RopeScaling
from transformer_jax.runtime.errors import shown


@dataclass(frozen=True)
class ClassifierConfig:
    """The configuration of a `TextClassifier`, which maps tokens to class logits."""

    vocab_size: int
    max_length: int
    num_classes: int = 2
    encoder: StackConfig = StackConfig()
    num_segments: int = 2
    pooling: tuple[str, ...] = ("cls",)  # poolings of the encoder's output, concatenated
    region_width: int = 1  # number of neighbouring tokens that are embedded together; BERT has 1
    region_features: int = 0  # max-pooled features of regions next to the encoder; 0: none
    patch_width: int = 0  # number of neighbouring regions in a patch; 0: the encoder reads tokens
    encoder_scale: float = 1.0  # scale of the encoder's output, relative to the region features
    attends: bool = True  # False: each position attends to itself only, to measure attention's gain
    ngrams: int = 0  # n-grams of up to this many tokens have weights of their own; 0: none
    ngram_bits: int = 22  # n-grams are hashed to 2**ngram_bits rows of weights
    embedding_dropout_rate: float = 0.1
    head_dropout_rate: float = 0.1

    def __post_init__(self):
        check_sizes(self, "vocab_size", "max_length", "num_classes", "num_segments", "region_width")
        check_sizes(self, "region_features", "patch_width", least=0)
        check_rates(self, "embedding_dropout_rate", "head_dropout_rate")
        _check_ngrams(self)
        if not 0 < self.encoder_scale < float("inf"):
            raise ValueError(f"encoder_scale must be above 0; got {self.encoder_scale}")
        for name in self.pooling:
            if name not in POOLINGS:
                raise ValueError(f"pooling must be among {', '.join(POOLINGS)}; got {name!r}")
        if not self.pooling:
            raise ValueError(f"pooling needs at least one of {', '.join(POOLINGS)}")
        if self.patch_width and not self.region_features:
            raise ValueError(
                f"patch_width={self.patch_width} makes patches of regions: region_features "
                "must be 1 or more"
            )
        if self.region_width % 2 == 0:
            raise ValueError(f"region_width must be odd; got {self.region_width}")


@dataclass(frozen=True)
class TextEncoderConfig:
    """The configuration of a `TextEncoder`, which maps tokens to one vector for each.

    It covers BERT and its successors. The defaults are BERT's (Devlin et al., 2019).
    """

    vocab_size: int
    max_length: int = 512
    encoder: StackConfig = StackConfig(12, 768, 12, 3072, norm_epsilon=1e-12, activation="gelu")
    num_segments: int = 2  # 0: no segment embeddings, as in DistilBERT
    positions: str = "learned"  # one of `POSITION_SCHEMES`; rotary in ModernBERT
    rope_base: float = 10_000.0  # of rotary positions
    window: int | None = None  # tokens on each side that a local layer attends to; None: all global
    global_every: int = 1  # one layer in every `global_every` is global, starting with the first
    local_rope_base: float = 10_000.0  # of rotary positions in local layers
    pooler: bool = False  # also has a pooler: tanh of a linear map of the first token's vector
    tied_head: bool = True  # the head of a masked language model uses the token embedding table
    embedding_dropout_rate: float = 0.1

    def __post_init__(self):
        check_sizes(self, "vocab_size", "max_length", "global_every")
        check_sizes(self, "num_segments", *(["window"] if self.window is not None else []), least=0)
        check_rates(self, "embedding_dropout_rate")
        _check_positions(self)


@dataclass(frozen=True)
class EncoderClassifierConfig:
    """The configuration of an `EncoderClassifier`: a pretrained text encoder with a class head."""

    text: TextEncoderConfig
    num_classes: int = 2
    pooling: str = "cls"  # "cls" or "mean"
    activation: str | None = "tanh"  # of a linear layer before the last; None: no such layer
    head_dropout_rate: float = 0.1
    ngrams: int = 0  # n-grams of up to this many tokens have weights of their own; 0: none
    ngram_bits: int = 22  # n-grams are hashed to 2**ngram_bits rows of weights

    def __post_init__(self):
        check_sizes(self, "num_classes")
        _check_ngrams(self)
        check_rates(self, "head_dropout_rate")
        check_choice(self, "pooling", ("cls", "mean"))
        check_choice(self, "activation", (None, "tanh", "relu"))
        if self.text.pooler:
            raise ValueError("a classifier has the pooler in its head: text.pooler must be False")

    @property
    def vocab_size(self) -> int:
        """The number of rows of the token embedding table."""
        return self.text.vocab_size

    @property
    def in_passages(self) -> bool:
        """Whether a text longer than max_length is read in passages of max_length tokens.

        This needs mean pooling, which can average over passages.
        """
        return self.pooling == "mean"


@dataclass(frozen=True)
class LanguageModelConfig:
    """The configuration of a `LanguageModel`, which maps tokens to logits of the next token.

    GPT-2 and LLaMA are two of these (`costs/published.py` has their sizes).
    """

    vocab_size: int
    max_length: int  # maximum number of tokens, read and generated ones together
    decoder: StackConfig = StackConfig(norm="pre", final_norm=True, activation="gelu_tanh")
    positions: str = "learned"  # one of `POSITION_SCHEMES`
    rope_base: float = 10_000.0  # of rotary positions
    rope_scaling: RopeScaling | None = None
    window: int | None = None  # number of previous tokens that a token attends to; None: all
    tied_head: bool = True  # the head uses the token embedding table
    embedding_dropout_rate: float = 0.1

    def __post_init__(self):
        check_sizes(self, "vocab_size", "max_length")
        if self.window is not None:
            check_sizes(self, "window", least=0)
        check_rates(self, "embedding_dropout_rate")
        _check_positions(self)
        _check_decoder(self)


@dataclass(frozen=True)
class SequenceToSequenceConfig:
    """The configuration of a `SequenceToSequence` model, which reads one text and writes another.

    The defaults are the base model of Vaswani et al., 2017, table 3.
    """

    vocab_size: int  # source, target and head share one embedding table
    max_length: int
    encoder: StackConfig = StackConfig()
    decoder: StackConfig = StackConfig()
    positions: str = "sinusoidal"
    rope_base: float = 10_000.0
    embedding_dropout_rate: float = 0.1

    def __post_init__(self):
        check_sizes(self, "vocab_size", "max_length")
        check_rates(self, "embedding_dropout_rate")
        _check_positions(self)
        _check_decoder(self)
        if self.encoder.embed_dim != self.decoder.embed_dim:
            raise ValueError(
                "encoder and decoder share an embedding table: their embed_dim must be equal; got "
                f"{self.encoder.embed_dim} and {self.decoder.embed_dim}"
            )


def _check_decoder(config):
    if not config.decoder.first_norm:
        raise ValueError("first_norm=False is only for encoders, whose embeddings have a norm")


def _check_positions(config):
    check_choice(config, "positions", tuple(POSITION_SCHEMES))
    if not 1.0 < config.rope_base < math.inf:
        raise ValueError(f"rope_base must be a number above 1; got {config.rope_base}")
    for name in ("encoder", "decoder"):
        if hasattr(config, name):
            POSITION_SCHEMES[config.positions].check(getattr(config, name))


def _check_ngrams(config):
    check_sizes(config, "ngrams", least=0)
    if not 1 <= config.ngram_bits <= 28:
        raise ValueError(f"ngram_bits must be from 1 to 28; got {shown(config.ngram_bits)}")
