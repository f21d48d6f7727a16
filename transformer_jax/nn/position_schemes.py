"""Position schemes: how a model represents the order of its tokens, in one registry.

A scheme acts in up to three places; by default it does nothing in any of them:

    embed    changes the vectors of the tokens                  learned, sinusoidal
    rotary   rotates queries and keys before their product      rotary
    bias     is added to the logits of attention                alibi

A new scheme is a class and an entry of `POSITION_SCHEMES`. Configurations, the options of the
programs, caches, run folders and costs read the registry, so nothing else changes. A complete
scheme:

    class Binary(PositionScheme):
        def embed(self, x, positions, table):
            return x + binary_positions(positions, x.shape[-1]).astype(x.dtype)

    POSITION_SCHEMES["binary"] = Binary()

    LanguageModelConfig(vocab_size=11, max_length=16, positions="binary")
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float, Int

from transformer_jax.attention.bias_rule import Bias
from transformer_jax.attention.biases import alibi, alibi_slopes
from transformer_jax.functional.positions import sinusoidal_positions
from transformer_jax.functional.rotary import Rotary, rope_frequencies, yarn_temperature
from transformer_jax.nn.config import StackConfig, check_choice, check_sizes


@dataclass(frozen=True)
class RopeScaling:
    """The scaling of rotary frequencies for longer texts, as it is saved.

    All fields but the last are arguments of `rope_frequencies`. "dynamic" scales only texts that
    are longer than a model's max_length. No model here reads those, because the outputs of their
    first tokens would depend on later ones.
    """

    scaling: str
    factor: float
    original_length: int | None = None
    low: float = 1.0  # `low` and `high` are for llama3
    high: float = 4.0
    beta_slow: float = 1.0  # the others are for yarn
    beta_fast: float = 32.0
    truncate: bool = True
    attention_factor: float | None = None  # of queries and keys; None: `yarn_temperature(factor)`

    def __post_init__(self):
        check_choice(self, "scaling", ("linear", "dynamic", "ntk", "yarn", "llama3"))
        if not 1.0 <= self.factor < math.inf:
            raise ValueError(f"factor must be 1 or more; got {self.factor}")
        if self.original_length is not None:
            check_sizes(self, "original_length")
        if self.scaling == "llama3" and not (
            self.original_length and 0 < self.low < self.high < math.inf
        ):
            raise ValueError(
                "llama3 needs original_length, and low between 0 and high; got "
                f"{self.original_length}, {self.low} and {self.high}"
            )
        if self.scaling == "yarn" and not (
            self.original_length and 0 < self.beta_slow < self.beta_fast < math.inf
        ):
            raise ValueError(
                "yarn needs original_length, and beta_slow between 0 and beta_fast; got "
                f"{self.original_length}, {self.beta_slow} and {self.beta_fast}"
            )
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"attention_factor must be above 0; got {self.temperature}")

    @property
    def temperature(self) -> float:
        """The factor by which rotated queries and keys are multiplied."""
        if self.attention_factor is not None:
            return self.attention_factor
        return yarn_temperature(self.factor) if self.scaling == "yarn" else 1.0

    def frequencies(self, features: int, base: float) -> Float[Array, " R"]:
        """Return the scaled `rope_frequencies`."""
        if self.scaling == "dynamic":
            return rope_frequencies(features, base=base)
        options = {name: value for name, value in vars(self).items() if name != "attention_factor"}
        return rope_frequencies(features, base=base, **options)


class PositionScheme:
    """The base class of all schemes; by itself it represents no positions."""

    # Whether there is a learned table [max_length, D]; it is saved as
    # `embedding.position.embedding`.
    has_table = False

    def check(self, stack: StackConfig) -> None:
        """Raise ValueError if a stack of layers cannot have the scheme."""

    def token_stddev(self, features: int) -> float:
        """Return the standard deviation of the initial token table."""
        return 0.02

    def embed(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "#B T"],
        table: Callable[[Array], Array] | None,
    ) -> Float[Array, "B T D"]:
        """Return the vectors of tokens with their positions; `table` looks up the learned ones."""
        return x

    def rotary(
        self,
        positions: Int[Array, "#B T"],
        head_dim: int,
        *,
        base: float = 10_000.0,
        scaling: RopeScaling | None = None,
    ) -> Rotary | None:
        """Return the rotation of the queries and keys of self-attention, or None."""
        return None

    def bias(self, num_heads: int, **positions: Array) -> Bias | None:
        """Return the bias that is added to the logits of self-attention, or None.

        `positions` is empty, or holds the `query_positions` and `key_positions` of a cache.
        """
        return None

    def attention(
        self,
        stack: StackConfig,
        positions: Int[Array, "#B T"],
        *,
        base: float = 10_000.0,
        scaling: RopeScaling | None = None,
        **cached: Array,
    ) -> dict[str, Any]:
        """Return the `rotary` and the `bias` for the `LayerContext` of a stack."""
        return {
            "rotary": self.rotary(positions, stack.axes[2], base=base, scaling=scaling),
            "bias": self.bias(stack.num_heads, **cached),
        }


class Learned(PositionScheme):
    """Learned positions: the row of a table is added to the token's row (GPT-2, BERT)."""

    has_table = True

    def embed(self, x, positions, table):
        if table is None:
            raise ValueError("learned positions need a table; got None")
        return x + table(positions).astype(x.dtype)


class Sinusoidal(PositionScheme):
    """Sinusoidal positions: `sinusoidal_positions` are added to sqrt(D) times the token's row.

    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, sections 3.4 and 3.5.
    """

    def token_stddev(self, features):
        # Multiplied by sqrt(D), rows have variance 1. Not multiplied, as in the output layer, they
        # give logits of variance 1 for a normed vector.
        return features**-0.5

    def embed(self, x, positions, table):
        D = x.shape[-1]
        return x * math.sqrt(D) + sinusoidal_positions(positions, D).astype(x.dtype)


class RotaryPositions(PositionScheme):
    """Rotary positions: queries and keys pass `rope`.

    Su et al., 2021, https://arxiv.org/abs/2104.09864.
    """

    def check(self, stack):
        head_dim = stack.axes[2]
        if head_dim % 2:
            raise ValueError(f"rotary positions turn pairs of features; head_dim is {head_dim}")

    def rotary(self, positions, head_dim, *, base=10_000.0, scaling=None):
        if scaling is None:
            return Rotary(positions, rope_frequencies(head_dim, base=base)).with_angles()
        frequencies = scaling.frequencies(head_dim, base)
        return Rotary(positions, frequencies, scale=scaling.temperature).with_angles()


class Alibi(PositionScheme):
    """ALiBi: the bias `alibi`, a penalty on the distance.

    Press et al., 2022, https://arxiv.org/abs/2108.12409.
    """

    def bias(self, num_heads, **positions):
        return alibi(alibi_slopes(num_heads), **positions)


POSITION_SCHEMES: dict[str, PositionScheme] = {
    "learned": Learned(),
    "sinusoidal": Sinusoidal(),
    "rotary": RotaryPositions(),
    "alibi": Alibi(),
    "none": PositionScheme(),
}
