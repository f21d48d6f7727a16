"""Normalisation of activations: over the features of one token (layer, RMS), or over all tokens."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.precision import wide


def layer_norm(
    x: Float[Array, "... D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None,
    *,
    epsilon: float = 1e-5,
) -> Float[Array, "... D"]:
    """Return the layer normalisation of x over the last axis.

        scale (x - mean) / sqrt(variance + epsilon) + bias

    Ba et al., 2016, https://arxiv.org/abs/1607.06450. The statistics are in float32 or wider.
    epsilon is 1e-12 in BERT, 1e-5 in GPT-2. Raises ValueError if axes do not fit or epsilon is
    below 0.

    >>> layer_norm(jnp.array([0.2, 0.4, 0.6, 0.8]), jnp.ones(4)).round(2)
    Array([-1.34, -0.45,  0.45,  1.34], dtype=float32)
    """
    _check(x, scale, bias, epsilon)
    x = jnp.asarray(x)
    x_wide = wide(x)
    # Two passes, because E[x^2] - E[x]^2, the default of nnx.LayerNorm, loses every digit when the
    # mean is large.
    centred = x_wide - x_wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return _affine(centred * lax.rsqrt(variance + epsilon), scale, bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "... D"], scale: Float[Array, " D"], *, epsilon: float = 1e-6
) -> Float[Array, "... D"]:
    """Return the RMS normalisation of x over the last axis: a layer norm that does not centre.

        scale x / sqrt(mean(x^2) + epsilon)

    Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467; epsilon as in LLaMA. The statistics
    are in float32 or wider. Raises ValueError if axes do not fit or epsilon is below 0.

    >>> rms_norm(jnp.array([3.0, 4.0]), jnp.ones(2)).round(3)
    Array([0.849, 1.131], dtype=float32)
    """
    _check(x, scale, None, epsilon)
    x = jnp.asarray(x)
    x_wide = wide(x)
    power = jnp.square(x_wide).mean(axis=-1, keepdims=True)
    return _affine(x_wide * lax.rsqrt(power + epsilon), scale, None).astype(x.dtype)


class BatchStatistics(NamedTuple):
    """The mean and the variance of every feature that `batch_norm` uses, of a batch or running.

    >>> BatchStatistics(mean=jnp.zeros(1), variance=jnp.ones(1)).variance
    Array([1.], dtype=float32)
    """

    mean: Float[Array, " D"]
    variance: Float[Array, " D"]


def batch_norm(
    x: Float[Array, "... D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None,
    *,
    statistics: BatchStatistics | None = None,
    epsilon: float = 1e-5,
) -> Float[Array, "... D"]:
    """Return the batch normalisation of x: each feature over all axes but the last.

        scale (x - mean) / sqrt(variance + epsilon) + bias

    Ioffe and Szegedy, 2015, https://arxiv.org/abs/1502.03167, algorithm 1. Without `statistics`
    those of x are used (training): every token, padding included, then affects every other. With
    running statistics (evaluation) tokens do not affect each other. Raises ValueError if axes do
    not fit or epsilon is below 0.

    >>> x = jnp.array([[7.0], [2.0], [5.0], [4.0]])
    >>> batch_norm(x, jnp.array([0.5]), jnp.array([0.1]))[:, 0].round(3)
    Array([ 0.793, -0.593,  0.239, -0.039], dtype=float32)
    """
    _check(x, scale, bias, epsilon)
    if statistics is None:
        statistics = batch_statistics(x)
    mean, variance = _pair("statistics", statistics, x)
    x = jnp.asarray(x)
    y = wide(x)
    mean, variance = mean.astype(y.dtype), variance.astype(y.dtype)
    y = (y - mean) * lax.rsqrt(variance + epsilon)
    return _affine(y, scale, bias).astype(x.dtype)


def batch_statistics(x: Float[Array, "... D"]) -> BatchStatistics:
    """Return the mean and the (biased) variance of each feature over all axes but the last.

    They are computed in float32 or wider, in two passes. Ioffe and Szegedy, 2015,
    https://arxiv.org/abs/1502.03167, algorithm 1. Raises ValueError if there is no row.

    >>> batch_statistics(jnp.array([[7.0], [2.0], [5.0], [4.0]])).variance
    Array([3.25], dtype=float32)
    """
    check_arrays(x=(x, "... D"))
    if not x.size:
        raise ValueError(f"x must hold a row and a feature at least; got the shape {x.shape}")
    rows = wide(x).reshape(-1, x.shape[-1])
    mean = rows.mean(axis=0)
    return BatchStatistics(mean, jnp.square(rows - mean).mean(axis=0))


def running_statistics(
    running: BatchStatistics, x: Float[Array, "... D"], *, momentum: float = 0.9
) -> BatchStatistics:
    """Return the running statistics updated with those of x, for use in evaluation.

        momentum * running + (1 - momentum) * statistics of x

    The variance that is averaged is the unbiased one, n / (n - 1) times the batch's (Ioffe and
    Szegedy, 2015, algorithm 2; PyTorch does so, Flax does not). Raises ValueError for fewer than
    two rows or a momentum outside [0, 1].

    >>> running = BatchStatistics(jnp.zeros(1), jnp.ones(1))
    >>> running_statistics(running, jnp.array([[0.0], [2.0]])).variance
    Array([1.1], dtype=float32)
    """
    if not 0.0 <= momentum <= 1.0:
        raise ValueError(f"momentum must be in [0, 1]; got {momentum}")
    mean, variance = batch_statistics(x)
    running_mean, running_variance = _pair("running", running, x)
    rows = x.size // x.shape[-1]
    if rows < 2:
        raise ValueError(f"a variance needs at least two rows; got the shape {x.shape}")
    variance = variance * (rows / (rows - 1))

    def updated(old, new):
        old = jnp.asarray(old)
        return (momentum * old.astype(new.dtype) + (1 - momentum) * new).astype(old.dtype)

    return BatchStatistics(updated(running_mean, mean), updated(running_variance, variance))


def _pair(name, statistics, x):
    if not isinstance(statistics, tuple) or len(statistics) != 2:
        raise TypeError(
            f"{name} must be a pair of a mean and a variance; got {type(statistics).__name__}"
        )
    mean, variance = statistics
    check_arrays(x=(x, "... D"), mean=(mean, "D"), variance=(variance, "D"))
    return mean, variance


def _check(x, scale, bias, epsilon):
    check_arrays(x=(x, "... D"), scale=(scale, "D"), bias=(bias, "D"))
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be 0 or more; got {epsilon}")


def _affine(y, scale, bias):
    y = y * scale.astype(y.dtype)
    return y if bias is None else y + bias.astype(y.dtype)
