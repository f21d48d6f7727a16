"""The configurations of the models: frozen dataclasses, checked when they are made."""

import math
from dataclasses import dataclass

from transformer_jax.functional.pooling import POOLINGS
from transformer_jax.nn.config import StackConfig, check_choice, check_rates, check_sizes
from transformer_jax.nn.position_schemes import POSITION_SCHEMES, RopeScaling
from transformer_jax.runtime.errors import shown


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
    """Tokens in, a vector for each out: BERT and what came of it. The defaults are BERT's (Devlin
    et al., 2019).
    """

    vocab_size: int
    max_length: int = 512
    encoder: StackConfig = StackConfig(12, 768, 12, 3072, norm_epsilon=1e-12, activation="gelu")
    num_segments: int = 2  # 0: no table of them (DistilBERT)
    positions: str = "learned"  # one of `POSITION_SCHEMES`; rotary in ModernBERT
    rope_base: float = 10_000.0  # of rotary positions
    window: int | None = (
        None  # how many tokens a local layer sees on each side; None: all layers see all
    )
    global_every: int = 1  # the first of so many layers sees all
    local_rope_base: float = 10_000.0  # of local layers
    pooler: bool = False  # tanh of a linear map of the first token, beside the vectors
    embedding_dropout_rate: float = 0.1

    def __post_init__(self):
        check_sizes(self, "vocab_size", "max_length", "global_every")
        check_sizes(self, "num_segments", *(["window"] if self.window is not None else []), least=0)
        check_rates(self, "embedding_dropout_rate")
        _check_positions(self)


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
        check_sizes(self, "num_classes")
        _check_ngrams(self)
        check_rates(self, "head_dropout_rate")
        check_choice(self, "pooling", ("cls", "mean"))
        check_choice(self, "activation", (None, "tanh", "relu"))
        if self.text.pooler:
            raise ValueError("a classifier has the pooler in its head: text.pooler must be False")

    @property
    def vocab_size(self) -> int:
        """Rows of the encoder's table of tokens."""
        return self.text.vocab_size

    @property
    def in_passages(self) -> bool:
        """Whether texts longer than the encoder holds are read, in passages of what it holds: a
        mean can be taken over them.
        """
        return self.pooling == "mean"


@dataclass(frozen=True)
class LanguageModelConfig:
    """Tokens in, logits of the next token out; GPT-2 and LLaMA are two of these (`published.py` has
    their sizes).
    """

    vocab_size: int
    max_length: int  # how many tokens of a text are read, or written
    decoder: StackConfig = StackConfig(norm="pre", final_norm=True, activation="gelu_tanh")
    positions: str = "learned"  # one of `POSITION_SCHEMES`
    rope_base: float = 10_000.0  # of rotary positions
    rope_scaling: RopeScaling | None = None
    window: int | None = None  # how many tokens before its own a token sees; None: all
    tied_head: bool = True  # the table of tokens is the head's too
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
    """Configuration of a model that reads one text and writes another.

    The defaults are the base model of Vaswani et al., 2017, table 3.
    """

    vocab_size: int  # one table for the source, the target and the head
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
                "encoder and decoder share a table of tokens: their embed_dim must be equal; got "
                f"{self.encoder.embed_dim} and {self.decoder.embed_dim}"
            )


def _check_decoder(config):
    if not config.decoder.first_norm:
        raise ValueError("first_norm=False is of encoders, whose embeddings have a norm")


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
