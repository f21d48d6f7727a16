"""The position-wise feed-forward network (Vaswani et al., 2017, section 3.3) and its activations."""

from functools import partial

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from transformer_jax.dropout import dropout
from transformer_jax.linear import linear

# GELU by name, because `jax.nn.gelu` alone is the tanh approximation. Hendrycks and Gimpel, 2016.
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
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
    """f(x W_1 + b_1) W_2 + b_2, with f one of relu, gelu (exact, x Phi(x)) and gelu_tanh."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {activation!r}")
    hidden = ACTIVATIONS[activation](linear(x, in_kernel, in_bias))
    hidden = dropout(hidden, dropout_rate, dropout_rng)
    return linear(hidden, out_kernel, out_bias)
