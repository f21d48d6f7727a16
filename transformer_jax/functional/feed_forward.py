"""The position-wise feed-forward network (Vaswani et al., 2017, section 3.3), plain and gated."""

import math
from functools import partial, wraps

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.functional.checks import check_arrays
from transformer_jax.functional.dropout import check_rate, dropout
from transformer_jax.functional.linear import linear
from transformer_jax.functional.precision import wide


def _in_float32(activation):
    """Return the activation, which then computes shorter dtypes in float32."""

    @wraps(activation)
    def activate(x):
        dtype = getattr(x, "dtype", jnp.dtype(float))
        if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize >= 4:
            return activation(x)
        # Only x is kept for the gradient: an activation costs memory, not arithmetic.
        return jax.checkpoint(lambda x: activation(wide(x)).astype(x.dtype))(x)

    return activate


@_in_float32
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the exact GELU of x.

        x Phi(x)

    Phi is the distribution function of the normal distribution (Hendrycks and Gimpel, 2016, section
    2). It is computed with erf in float32 or wider, as in PyTorch. `jax.nn.gelu` uses erfc, which
    keeps more digits below -2, where the result is nearly 0, and is slower. Raises TypeError if x
    is not floating point.

    >>> gelu(jnp.array([-1.0, 0.0, 1.0])).round(4)
    Array([-0.1587,  0.    ,  0.8413], dtype=float32)
    """
    check_arrays(x=(x, "..."))
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


# Named explicitly, because `jax.nn.gelu` without arguments is the tanh approximation.
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "gelu_tanh": _in_float32(partial(jax.nn.gelu, approximate=True)),
}
GATES = {
    "swiglu": _in_float32(jax.nn.silu),
    "geglu": ACTIVATIONS["gelu"],
    "geglu_tanh": ACTIVATIONS["gelu_tanh"],
}


def feed_forward(
    x: Float[Array, "... D"],
    in_kernel: Float[Array, "D F"],
    in_bias: Float[Array, " F"] | None,
    out_kernel: Float[Array, "F M"],
    out_bias: Float[Array, " M"] | None,
    *,
    activation: str = "gelu",
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
) -> Float[Array, "... M"]:
    """Return the output of a feed-forward network: two linear maps with an activation between.

        f(x W_1 + b_1) W_2 + b_2

    f is one of relu, gelu (exact, x Phi(x)) and gelu_tanh. The network is the same for every
    position. Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.3; the GELU is of
    Hendrycks and Gimpel, 2016, https://arxiv.org/abs/1606.08415. Dropout is applied to the values
    of f.

    Raises ValueError for an unknown activation, axes that do not fit, a rate outside [0, 1), or a
    key without a rate.

    >>> x, kernel = jnp.array([[1.0, -1.0]]), jnp.eye(2)
    >>> feed_forward(x, kernel, None, kernel, None, activation="relu")
    Array([[1., 0.]], dtype=float32)
    """
    check_arrays(
        x=(x, "... D"),
        in_kernel=(in_kernel, "D F"),
        in_bias=(in_bias, "F"),
        out_kernel=(out_kernel, "F M"),
        out_bias=(out_bias, "M"),
    )
    check_rate(dropout_rate, dropout_rng)
    hidden = _function(ACTIVATIONS, "activation", activation)(linear(x, in_kernel, in_bias))
    hidden = dropout(hidden, dropout_rate, dropout_rng)
    return linear(hidden, out_kernel, out_bias)


def gated_feed_forward(
    x: Float[Array, "... D"],
    gate_kernel: Float[Array, "D F"],
    in_kernel: Float[Array, "D F"],
    out_kernel: Float[Array, "F M"],
    *,
    gate: str = "swiglu",
    gate_bias: Float[Array, " F"] | None = None,
    in_bias: Float[Array, " F"] | None = None,
    out_bias: Float[Array, " M"] | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: PRNGKeyArray | None = None,
) -> Float[Array, "... M"]:
    """Return the output of a gated feed-forward network: one linear map gates another.

        (f(x W_g) * x W_1) W_2

    The `gate` names f: swiglu has f = silu (LLaMA), geglu the exact gelu, geglu_tanh its tanh form
    (Gemma). Shazeer, 2020, "GLU variants improve transformer", https://arxiv.org/abs/2002.05202.
    Raises as `feed_forward` does.

    >>> x, kernel = jnp.array([[1.0, -1.0]]), jnp.eye(2)
    >>> gated_feed_forward(x, kernel, kernel, kernel, gate="geglu").round(3)
    Array([[0.841, 0.159]], dtype=float32)
    """
    check_arrays(
        x=(x, "... D"),
        gate_kernel=(gate_kernel, "D F"),
        in_kernel=(in_kernel, "D F"),
        out_kernel=(out_kernel, "F M"),
        gate_bias=(gate_bias, "F"),
        in_bias=(in_bias, "F"),
        out_bias=(out_bias, "M"),
    )
    check_rate(dropout_rate, dropout_rng)
    opened = _function(GATES, "gate", gate)(linear(x, gate_kernel, gate_bias))
    hidden = dropout(opened * linear(x, in_kernel, in_bias), dropout_rate, dropout_rng)
    return linear(hidden, out_kernel, out_bias)


def _function(functions, argument, name):
    if name not in functions:
        raise ValueError(f"{argument} must be one of {', '.join(functions)}; got {name!r}")
    return functions[name]
