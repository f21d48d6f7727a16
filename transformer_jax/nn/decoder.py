"""The decoder (Vaswani et al., 2017, figure 1, right), with or without cross-attention.

GPT has none.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from transformer_jax.functional.pooling import last_pool
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import DEFAULT_CONTEXT, LayerContext
from transformer_jax.nn.encoder import residual
from transformer_jax.nn.kv_cache import Cache, KeysAndValues, Step, empty_cache
from transformer_jax.nn.layers import MultiHeadAttention, attention_of, feed_forward_of, norm_of
from transformer_jax.nn.remat import rematerialised


class DecoderLayer(nnx.Module):
    """Self-attention, cross-attention to a memory if there is one, and a feed-forward network.

    Each of them is inside a `residual` connection.
    """

    def __init__(self, config: StackConfig, *, cross: bool = False, rngs: nnx.Rngs):
        self.attention = attention_of(config, rngs=rngs)
        self.cross_attention = attention_of(config, rngs=rngs) if cross else None
        self.feed_forward = feed_forward_of(config, rngs=rngs)
        self.attention_norm, self.feed_forward_norm = norm_of(config), norm_of(config)
        self.cross_attention_norm = norm_of(config) if cross else None
        self.config = config

    def __call__(
        self,
        x: Float[Array, "B T D"],
        context: LayerContext = DEFAULT_CONTEXT,
        *,
        memory: tuple[Float[Array, "B M K H"], Float[Array, "B M K O"]] | None = None,
        cache: tuple[Cache, int, Step] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> tuple[Float[Array, "B T D"], tuple[Array | None, Array | None], KeysAndValues | None]:
        """Return x, the weights of self- and cross-attention, and the written layer of the cache.

        `memory` is the result of `cross_attention.keys_and_values`. With a cache, the mask is over
        the keys of the cache.
        """
        weights: list[Array | None] = [None, None]
        written = None

        def attend(y):
            nonlocal written
            if cache is None:
                attended = self.attention(y, y, context, rngs=rngs)
            else:
                kept, layer, step = cache
                new = self.attention.keys_and_values(y, rotary=context.rotary)
                written, keys, values = kept.append(layer, step, *new)
                attended = self.attention.attend(
                    y, keys, values, context, heads_first=True, rngs=rngs
                )
            if isinstance(attended, tuple):
                attended, weights[0] = attended
            return attended

        def look(y, keys, values):
            attended = self.cross().attend(y, keys, values, context.of_memory, rngs=rngs)
            if isinstance(attended, tuple):
                attended, weights[1] = attended
            return attended

        if cache is None:
            context = context.resolved(x.shape[1])
            x = context.masked_rows.zero_isolated_rows(x)
        x = residual(x, attend, self.attention_norm, self.config, rngs)
        if memory is not None:
            keys, values = memory
            look_at_memory = partial(look, keys=keys, values=values)
            x = residual(x, look_at_memory, self.cross_attention_norm, self.config, rngs)
        transform = partial(self.feed_forward, rngs=rngs)
        x = residual(x, transform, self.feed_forward_norm, self.config, rngs)
        return x, (weights[0], weights[1]), written

    def keys_and_values(
        self, memory: Float[Array, "B M D"]
    ) -> tuple[Float[Array, "B M K H"], Float[Array, "B M K O"]]:
        """Return the keys and values of the cross-attention."""
        return self.cross().keys_and_values(memory)

    def cross(self) -> MultiHeadAttention:
        """Return the cross-attention. Raises ValueError if the layer was made without it."""
        if self.cross_attention is None:
            raise ValueError("the decoder has no cross-attention; make it with cross=True")
        return self.cross_attention


class Decoder(nnx.Module):
    """A stack of `DecoderLayer`s, with a norm at the end if the configuration asks for one.

    With `remat`, each layer is computed again in the backward pass.
    """

    remat = False  # a setting of training, which is not saved with a model

    def __init__(self, config: StackConfig, *, cross: bool = False, rngs: nnx.Rngs):
        self.layers = nnx.List(
            [DecoderLayer(config, cross=cross, rngs=rngs) for _ in range(config.num_layers)]
        )
        self.final_norm = norm_of(config) if config.final_norm else None
        self.config = config

    def __call__(
        self,
        x: Float[Array, "B T D"],
        context: LayerContext = DEFAULT_CONTEXT,
        *,
        memory: tuple[tuple[Float[Array, "B M K H"], Float[Array, "B M K O"]], ...] | None = None,
        cache: Cache | None = None,
        step: Step | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "B T D"] | tuple[Any, ...]:
        """Return x after all layers, and after it, if asked for, weights, states and cache.

        The weights are two lists, of self- and of cross-attention, with an array for each layer.
        The states are the input of each layer, and x. The caller makes the mask, since only the
        caller knows the rule: causal in a language model. A cache is returned with the new tokens
        written; `step` is `cache.step(is_token)`, whose positions the mask needs too.
        """
        if (cache is None) != (step is None):
            raise ValueError("cache and step go together: step is cache.step(is_token)")
        context = context.resolved(x.shape[1], None if step is None else step.is_key.shape[1])
        maps, layers, states = ([], []), [], []
        for i, layer in enumerate(self.layers):
            states.append(x)
            call = partial(rematerialised, layer) if self.remat else layer
            x, weights, written = call(
                x,
                context,
                memory=None if memory is None else memory[i],
                cache=None if cache is None or step is None else (cache, i, step),
                rngs=rngs,
            )
            layers.append(written)
            for kept, one in zip(maps, weights, strict=True):
                kept.append(one)
        if self.final_norm is not None:
            x = self.final_norm(x)
        if cache is not None and step is not None:
            x = jnp.where(cache.overflows(step)[:, None, None], jnp.nan, x)
            cache = cache.after(layers, step)
        returned: tuple[Any, ...] = (x,)
        if context.return_weights:
            returned += (maps[0], maps[1] if memory is not None else [])
        if context.return_states:
            returned += ([*states, x],)
        if cache is not None:
            returned += (cache,)
        return returned if len(returned) > 1 else x

    def memory_of(
        self, memory: Float[Array, "B M D"], is_memory: Bool[Array, "B M"]
    ) -> tuple[tuple[Float[Array, "B M K H"], Float[Array, "B M K O"]], ...]:
        """Return the keys and values of an encoder's output for the cross-attention of each layer.

        They are computed once, whatever is generated from them.
        """
        # No query sees padding, but a NaN there would enter the gradient of the kernels as 0 * NaN.
        memory = jnp.where(is_memory[..., None], memory, 0)
        if self.remat:
            again = partial(rematerialised, method="keys_and_values")
            return tuple(again(layer, memory) for layer in self.layers)
        return tuple(layer.keys_and_values(memory) for layer in self.layers)

    def empty_cache(
        self, batch: int, capacity: int, *, window: int | None = None, dtype: DTypeLike
    ) -> Cache:
        """Return a cache for `capacity` tokens of each of `batch` examples; see `empty_cache`."""
        _, K, H, O = self.config.axes  # noqa: E741 (the letter of the axis)
        return empty_cache(
            self.config.num_layers, batch, capacity, K, H, value_dim=O, window=window, dtype=dtype
        )


def last_token(
    x: Float[Array, "B T D"], is_token: Bool[Array, "B T"] | None
) -> Float[Array, "B D"]:
    """Return the vector of the last real token of each example."""
    return x[:, -1] if is_token is None or x.shape[1] == 1 else last_pool(x, is_token)
