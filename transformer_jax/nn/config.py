"""The configuration of a stack of layers, and the checks that all configurations share."""

import math
from dataclasses import dataclass

from transformer_jax.functional.checks import check_heads
from transformer_jax.functional.feed_forward import ACTIVATIONS, GATES
from transformer_jax.runtime.errors import shown

LARGEST = 2**31  # no array has an axis of that size


def check_sizes(config, *names, least=1):
    """Check that sizes are `least` or more and below 2**31. Raises ValueError if one is not."""
    for name in names:
        size = getattr(config, name)
        if size < least:
            raise ValueError(f"{name} must be {least} or more; got {shown(size)}")
        if size >= LARGEST:
            raise ValueError(f"{name} must be less than {LARGEST}; got {shown(size)}")


def check_rates(config, *names):
    """Check that rates are in [0, 1). Raises ValueError if one is not."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} must be in [0, 1); got {getattr(config, name)}")


def check_choice(config, name, choices):
    """Check that an option is one of the choices. Raises ValueError if it is not."""
    if getattr(config, name) not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(str, choices))}; got {getattr(config, name)!r}"
        )


@dataclass(frozen=True)
class StackConfig:
    """The sizes and options of a stack of layers, an encoder's or a decoder's.

    The defaults are the base model of Vaswani et al., 2017, table 3.
    """

    num_layers: int = 6
    embed_dim: int = 512
    num_heads: int = 8
    hidden_dim: int = 2048
    head_dim: int | None = None  # of queries and keys; None: embed_dim / num_heads
    value_dim: int | None = None  # of a head's values; None: head_dim
    num_kv_heads: int | None = None  # fewer than num_heads: grouped-query attention
    norm: str = "post"  # after a sublayer: "post" (2017, BERT); before: "pre" (GPT-2, most since)
    final_norm: bool = False  # a norm after the last layer, usual in a pre-norm stack
    norm_kind: str = "layer"  # "layer", or "rms", which does not centre and has no bias
    norm_epsilon: float = 1e-5
    activation: str = "relu"  # or gelu, gelu_tanh; of a gated network: swiglu, geglu, geglu_tanh
    biases: bool = True  # of the linear maps
    qkv_biases: bool | None = None  # of queries, keys, values (Qwen2: only these); None: as biases
    norm_biases: bool = True  # of layer norms
    first_norm: bool = True  # False: the input of a pre-norm stack is normed already (ModernBERT)
    head_norm: bool = False  # an RMS norm of every head's queries and keys (Qwen3)
    dropout_rate: float = 0.1  # after the attention, inside and after the feed-forward network
    attention_dropout_rate: float = 0.1  # on the attention weights
    # Inside the feed-forward network; None: dropout_rate. BERT and GPT-2 have no dropout there.
    hidden_dropout_rate: float | None = None

    def __post_init__(self):
        check_sizes(self, "embed_dim", "num_heads", "hidden_dim")
        optional = ("head_dim", "value_dim", "num_kv_heads")
        check_sizes(self, *(name for name in optional if getattr(self, name) is not None))
        check_sizes(self, "num_layers", least=0)
        check_rates(self, "dropout_rate", "attention_dropout_rate")
        if self.hidden_dropout_rate is not None:
            check_rates(self, "hidden_dropout_rate")
        check_choice(self, "norm", ("pre", "post"))
        check_choice(self, "norm_kind", ("layer", "rms"))
        check_choice(self, "activation", (*ACTIVATIONS, *GATES))
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
