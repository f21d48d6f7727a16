"""Attention: functions, mask rules, biases, and the kernels that compute them."""

from transformer_jax.attention.additive import additive_attention
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.multi_head import multi_head_attention

__all__ = [
    "additive_attention",
    "attention_weights",
    "dot_product_attention",
    "multi_head_attention",
]
