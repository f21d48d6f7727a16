"""Rotary position embedding (RoPE): queries and keys are rotated by their positions."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.functional.angles import cos_and_sin
from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.precision import wide

LAYOUTS = ("half", "interleaved")
SCALINGS = ("linear", "ntk", "yarn", "llama3")


def rope(
    x: Float[Array, "*B T N H"],
    positions: Int[Array, "#B T"] | Int[Array, " T"],
    *,
    layout: str = "half",
    frequencies: Float[Array, " R"] | None = None,
) -> Float[Array, "*B T N H"]:
    """Rotate each pair of features by an angle that is proportional to the position.

        (a, b) -> (a cos - b sin, a sin + b cos), with the angle p f_i for pair i

    Su et al., 2021, https://arxiv.org/abs/2104.09864. The product of a query at p and a key at q
    then depends on p - q alone. The layout decides which features make pair i: "half" takes i and i
    + R (LLaMA, GPT-NeoX), "interleaved" 2i and 2i + 1 (the paper, GPT-J). Weights trained with one
    are wrong with the other. The R frequencies are `rope_frequencies(H)` by default; with fewer
    than H/2 the last features are left as they are.

    Raises ValueError for an unknown layout, an odd H, more frequencies than pairs, or positions
    that do not fit.

    >>> x = jnp.array([1.0, 0.0])[None, None, None].repeat(3, axis=1)
    >>> rope(x, jnp.arange(3))[0, :, 0].round(3)
    Array([[ 1.   ,  0.   ],
           [ 0.54 ,  0.841],
           [-0.416,  0.909]], dtype=float32)
    """
    check_arrays(x=(x, "[B] T N H"))
    frequencies = rope_frequencies(x.shape[-1]) if frequencies is None else frequencies
    _check(x, positions, layout, frequencies)
    x = jnp.asarray(x)
    return _rotate(x, *_cos_and_sin(positions, frequencies, wide(x).dtype), layout)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rotary:
    """The positions and frequencies by which self-attention rotates its queries and keys.

    Su et al., 2021, https://arxiv.org/abs/2104.09864. Rotated vectors are multiplied by `scale`,
    which is `yarn_temperature` for YaRN. A pytree whose `layout` and `scale` are static, so that
    `jit`, `vmap` and `checkpoint` take it as an argument. `turn` raises as `rope` does.
    `with_angles` computes cosines and sines for several calls of `turn`; whoever replaces the
    positions or frequencies of its result also sets `cos_sin=None`.

    >>> rotary = Rotary(jnp.arange(2)[None], rope_frequencies(2))
    >>> rotary.turn(jnp.ones((1, 2, 1, 2)))[0, :, 0].round(3)
    Array([[ 1.   ,  1.   ],
           [-0.301,  1.382]], dtype=float32)
    """

    # Any, because JAX also builds the pytree with placeholders in place of arrays.
    positions: Int[Array, "#B T"] | Any
    frequencies: Float[Array, " R"] | Any
    layout: str = field(default="half", metadata={"static": True})
    scale: float = field(default=1.0, metadata={"static": True})
    # The cosine and the sine of the angles; None until they are computed.
    cos_sin: tuple[Float[Array, "..."], Float[Array, "..."]] | Any = None

    def with_angles(self) -> "Rotary":
        """Return the rotation with its cosines and sines, so that all layers share them."""
        dtype = wide(self.frequencies).dtype
        found = _cos_and_sin(self.positions, self.frequencies, dtype)
        return replace(self, cos_sin=found)

    def turn(self, x: Float[Array, "*B T N H"]) -> Float[Array, "*B T N H"]:
        """Return queries or keys rotated by `rope` and multiplied by `scale`."""
        _check(x, self.positions, self.layout, self.frequencies)
        x = jnp.asarray(x)
        turned, found = wide(x), self.cos_sin
        if found is None or found[0].dtype != turned.dtype:  # float64 needs more accurate ones
            found = _cos_and_sin(self.positions, self.frequencies, turned.dtype)
        cos, sin = found
        turned = _rotate(turned, cos, sin, self.layout)
        return (turned if self.scale == 1.0 else turned * self.scale).astype(x.dtype)


def rope_frequencies(
    features: int,
    *,
    base: float = 10_000.0,
    scaling: str | None = None,
    factor: float = 1.0,
    original_length: int | None = None,
    low: float = 1.0,
    high: float = 4.0,
    beta_slow: float = 1.0,
    beta_fast: float = 32.0,
    truncate: bool = True,
) -> Float[Array, " R"]:
    """Return the frequencies of the pairs of features, scaled for longer texts if asked for.

        f_i = base^(-2i/H), i = 0..H/2-1

    A `scaling` slows them down for texts `factor` times as long as those of the training:

        linear   f_i / factor: every position is pressed into the known range
        ntk      the base grows to base * factor^(H/(H-2)): fast pairs keep their speed, the slowest
                 is divided by factor
        yarn     pairs that turn more than `beta_fast` times in original_length keep their speed,
                 those that turn less than `beta_slow` times are divided by factor, those between in
                 proportion to their number i; `truncate` rounds the bounds to whole numbers i
        llama3   pairs that turn more than `high` times in original_length keep their speed, those
                 that turn less than `low` times are divided by factor, those between in proportion
                 to their turns

    linear: Chen et al., 2023, https://arxiv.org/abs/2306.15595; yarn: Peng et al., 2023,
    https://arxiv.org/abs/2309.00071, section 3.2; llama3: Grattafiori et al., 2024,
    https://arxiv.org/abs/2407.21783, as released. YaRN also sharpens the logits: pass scale =
    `yarn_temperature(factor)` to `Rotary`.

    Raises ValueError for an odd number of features, a base of 1 or less, an unknown scaling, a
    factor below 1 or one without a scaling, for yarn and llama3 without `original_length`, and for
    a `low` or a `beta_slow` that is not below `high` or `beta_fast`.

    >>> rope_frequencies(4)
    Array([1.  , 0.01], dtype=float32)
    >>> rope_frequencies(4, scaling="linear", factor=2.0)
    Array([0.5  , 0.005], dtype=float32)
    """
    if features < 2 or features % 2:
        raise ValueError(f"features must be even and 2 or more: they turn in pairs; got {features}")
    if not base > 1.0:
        raise ValueError(f"base must be above 1; got {base}")
    if scaling is not None and scaling not in SCALINGS:
        raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, or None; got {scaling!r}")
    if not factor >= 1.0:
        raise ValueError(f"factor must be 1 or more; got {factor}")
    if scaling is None and factor != 1.0:
        raise ValueError(f"factor={factor} needs a scaling, one of {', '.join(SCALINGS)}")
    length = original_length or 0
    if scaling in ("yarn", "llama3") and not length > 0:
        raise ValueError(
            f'scaling="{scaling}" needs original_length, the length of the training texts'
        )
    _check_bounds(low=low, high=high)
    _check_bounds(beta_slow=beta_slow, beta_fast=beta_fast)
    if scaling == "ntk" and features > 2:
        base = base * factor ** (features / (features - 2))
    frequencies = base ** (-jnp.arange(0, features, 2, dtype=jnp.float32) / features)
    if scaling == "linear":
        return frequencies / factor
    if scaling == "yarn":
        share = _slowed(features, base, length, (beta_slow, beta_fast), truncate)
        return frequencies * (1 - share) + frequencies / factor * share
    if scaling == "llama3":
        turns = length * frequencies / (2 * math.pi)
        kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
        return frequencies * kept + frequencies / factor * (1 - kept)
    return frequencies


def yarn_temperature(factor: float) -> float:
    """Return the factor by which YaRN multiplies queries and keys.

        0.1 ln(factor) + 1

    Peng et al., 2023, https://arxiv.org/abs/2309.00071, equation 22. Raises ValueError for a factor
    below 1.

    >>> round(yarn_temperature(4.0), 4)
    1.1386
    """
    if not factor >= 1.0:
        raise ValueError(f"factor must be 1 or more; got {factor}")
    return 0.1 * math.log(factor) + 1.0


def _check(x, positions, layout, frequencies):
    check_arrays(frequencies=(frequencies, "R"))
    pattern = "int T" if 1 in (np.ndim(positions), np.ndim(x) - 2) else "int #B T"
    check_arrays(x=(x, "[B] T N H"), positions=(positions, pattern))
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout!r}")
    pairs = len(frequencies)
    if 2 * pairs > x.shape[-1]:
        raise ValueError(f"{pairs} frequencies turn {2 * pairs} features; x has {x.shape[-1]}")


def _cos_and_sin(positions, frequencies, dtype):
    """Return the cosine and the sine of the angles, [#B, T, 1, R] or [T, 1, R]."""
    # Frequencies in bfloat16 must not round the positions: bfloat16 cannot represent 257.
    turns = jnp.asarray(positions).astype(dtype)
    return cos_and_sin((turns[..., None] * frequencies.astype(dtype))[..., None, :])


def _rotate(x, cos, sin, layout):
    """Return the pairs (a cos - b sin, a sin + b cos), and the other features as they are."""
    pairs, x_wide = cos.shape[-1], wide(x)
    turned, rest = x_wide[..., : 2 * pairs], x_wide[..., 2 * pairs :]
    half = layout == "half"
    a, b = jnp.split(turned, 2, axis=-1) if half else (turned[..., ::2], turned[..., 1::2])
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = jnp.concatenate([a, b], -1) if half else jnp.stack([a, b], -1).reshape(turned.shape)
    return jnp.concatenate([turned, rest], axis=-1).astype(x.dtype)


def _check_bounds(**bounds: float) -> None:
    """Check that two numbers of turns are above 0 and in order."""
    (low, least), (high, most) = bounds.items()
    if not 0 < least < most:
        raise ValueError(f"{low} and {high} must be 0 < {low} < {high}; got {least} and {most}")


def _slowed(
    features: int, base: float, length: int, turns: tuple[float, float], truncate: bool
) -> Float[Array, " R"]:
    """Return how far each pair is slowed: 0 from turns[1] in `length` on, 1 up to turns[0]."""

    def pair(turns):  # length * base^(-2i/H) = 2 pi turns, solved for i
        return features * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

    first, last = pair(turns[1]), pair(turns[0])
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, features - 1)
    pairs = jnp.arange(features // 2, dtype=jnp.float32)
    return jnp.clip((pairs - first) / (last - first or 1e-3), 0.0, 1.0)
