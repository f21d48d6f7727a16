"""Operations of each benchmarked function, from its sizes: 2 for a multiply-add, matrix products
alone.

Norms, softmax and activations are a few operations for each of their elements and are left out, as
is usual. tests/bench/measure/test_harness.py compares these with `transformer_jax.costs.jaxpr`,
which reads them off the program.
"""


def attention(B: int, T: int, S: int, N: int, H: int) -> int:
    """Q K^T and weights V: 4 B N T S H."""
    return 4 * B * N * T * S * H


def attention_with_gradient(B: int, T: int, S: int, N: int, H: int) -> int:
    """The backward pass has four such products where the forward pass has two."""
    return 3 * attention(B, T, S, N, H)


def projections(B: int, T: int, D: int) -> int:
    """Query, key, value and output, each D x D."""
    return 8 * B * T * D**2


def feed_forward(B: int, T: int, D: int, F: int) -> int:
    """Two matrices, D x F and F x D."""
    return 4 * B * T * D * F


def encoder_layer(B: int, T: int, D: int, F: int) -> int:
    """Projections, attention and feed-forward. Attention is half of it where T = 2 D + F."""
    return projections(B, T, D) + attention(B, T, T, 1, D) + feed_forward(B, T, D, F)


def lstm(B: int, T: int, D: int) -> int:
    """Four gates, each of the input and of the state before."""
    return 16 * B * T * D**2


def convolution(B: int, T: int, D: int, width: int) -> int:
    """Each output sees `width` inputs; the zeros beyond both ends are multiplied too."""
    return 2 * B * T * width * D**2
