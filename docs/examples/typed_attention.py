# pyright: strict
"""Attend over a batch and over one text, and call a model; type checkers know every type."""

from typing import assert_type

import jax
from flax import nnx

import transformer_jax as tj
from transformer_jax.attention.mask_rule import Mask
from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.models.text_encoder import TextEncoder
from transformer_jax.nn.config import StackConfig


def attend(x: jax.Array, is_token: jax.Array) -> jax.Array:
    """Return self-attention, of x [B, T, N, H] or [T, N, H], over the real tokens so far."""
    return tj.dot_product_attention(x, x, x, mask=tj.causal() & tj.padding(is_token))


assert_type(~tj.causal() | tj.sliding_window(1, 0), Mask)

key = jax.random.key(0)
x, is_token = jax.random.normal(key, (2, 5, 4, 8)), jax.random.bernoulli(key, 0.8, (2, 5))
assert_type(attend(x[0], is_token[0]), jax.Array)  # one text

output, weights = tj.dot_product_attention(x, x, x, return_weights=True)
assert_type(output, jax.Array)

bias = tj.alibi(tj.alibi_slopes(4))
both = tj.dot_product_attention(x, x, x, bias=bias, return_weights=True, return_logsumexp=True)
assert_type(both, tuple[jax.Array, jax.Array, jax.Array])

encoder = TextEncoder(TextEncoderConfig(13, 5, StackConfig(1, 8, 2, 16)), rngs=nnx.Rngs(0))
tokens = jax.random.randint(key, (2, 5), 0, 13)
assert_type(encoder(tokens, is_token), jax.Array)
vectors, maps = encoder(tokens, is_token, return_weights=True)
assert_type(vectors, jax.Array)
assert_type(maps, list[jax.Array])  # the attention weights of each layer
print(*(array.shape for array in both))
