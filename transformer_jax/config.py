"""Sizes and switches of a layer and of a model: frozen, plain, and checked once, here."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from transformer_jax.feed_forward import ACTIVATIONS
from transformer_jax.pooling import POOLINGS


def _positive(config, *names):
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be 1 or more; got {getattr(config, name)}")


def _rates(config, *names):
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} must be in [0, 1); got {getattr(config, name)}")


def _one_of(config, name, choices):
    if getattr(config, name) not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(choices)}; got {getattr(config, name)!r}"
        )


@dataclass(frozen=True)
class EncoderConfig:
    """A stack of encoder layers; the defaults are the base model of Vaswani et al., 2017, table 3."""

    num_layers: int = 6
    embed_dim: int = 512
    num_heads: int = 8
    hidden_dim: int = 2048
    head_dim: int | None = None  # embed_dim / num_heads when left out
    num_kv_heads: int | None = None  # fewer than num_heads: grouped-query attention
    norm: str = "post"  # where the norm stands: "post" (2017, BERT) or "pre" (GPT-2, most since)
    final_norm: bool = False  # a norm after the last layer, which a pre-norm stack usually wants
    norm_epsilon: float = 1e-5
    activation: str = "relu"
    dropout_rate: float = 0.1  # after the attention, inside and after the feed-forward network
    attention_dropout_rate: float = 0.1  # on the attention weights

    def __post_init__(self):
        _positive(self, "embed_dim", "num_heads", "hidden_dim")
        _positive(self, *(n for n in ("head_dim", "num_kv_heads") if getattr(self, n) is not None))
        _rates(self, "dropout_rate", "attention_dropout_rate")
        _one_of(self, "norm", ("pre", "post"))
        _one_of(self, "activation", ACTIVATIONS)
        if self.num_layers < 0:
            raise ValueError(f"num_layers must be 0 or more; got {self.num_layers}")
        if self.head_dim is None and self.embed_dim % self.num_heads:
            raise ValueError(
                f"num_heads must divide embed_dim, unless head_dim is given; "
                f"got {self.num_heads} heads for {self.embed_dim}"
            )
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads; got {self.num_kv_heads} for {self.num_heads}"
            )


@dataclass(frozen=True)
class ClassifierConfig:
    """Tokens in, class logits out."""

    vocab_size: int
    max_length: int
    num_classes: int = 2
    encoder: EncoderConfig = EncoderConfig()
    num_segments: int = 2
    pooling: tuple[str, ...] = ("cls",)  # of the encoder; one or more, concatenated
    region_width: int = 1  # how many neighbouring tokens are embedded together; 1 is BERT's
    region_features: int = 0  # of regions, max-pooled beside the encoder; 0 is none
    embedding_dropout_rate: float = 0.1
    head_dropout_rate: float = 0.1

    def __post_init__(self):
        _positive(self, "vocab_size", "max_length", "num_classes", "num_segments", "region_width")
        _rates(self, "embedding_dropout_rate", "head_dropout_rate")
        if self.region_features < 0:
            raise ValueError(f"region_features must be 0 or more; got {self.region_features}")
        for name in self.pooling:
            if name not in POOLINGS:
                raise ValueError(f"pooling must be among {', '.join(POOLINGS)}; got {name!r}")
        if not self.pooling:
            raise ValueError(f"pooling needs at least one of {', '.join(POOLINGS)}")
        if self.region_width % 2 == 0:
            raise ValueError(f"region_width must be odd; got {self.region_width}")


def from_dict(cls: type, values: dict) -> Any:
    """The config back from config.json; a key that is unknown, or missing and without default, is named."""
    known = {f.name: f for f in fields(cls)}
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(
            f"{cls.__name__} has no {', '.join(map(repr, unknown))}; it knows {', '.join(known)}"
        )

    def value(name):
        given, expected = values[name], known[name].type
        if is_dataclass(expected):
            return from_dict(expected, given)
        return tuple(given) if isinstance(given, list) else given

    try:
        return cls(**{name: value(name) for name in values})
    except TypeError as error:
        raise ValueError(f"{cls.__name__} cannot be made from {sorted(values)}: {error}") from None
