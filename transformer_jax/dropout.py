"""Dropout (Srivastava et al., 2014) with bits from a counter, computed where they are used.

`jax.random.bernoulli` on a CPU can cost more than the layer it regularises: its generator is a loop that writes
the bits to memory. The same Threefry-2x32 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3",
table 2: passes BigCrush from 13 rounds on), written out on the element's index, is fused into the product.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

ROUNDS = 13
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def dropout(x: Float[Array, "..."], rate: float, rng: PRNGKeyArray | None) -> Float[Array, "..."]:
    """x / (1 - rate) where kept, 0 where dropped; x itself when `rng` is None (evaluation) or rate is 0."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"the dropout rate must be in [0, 1); got {rate}")
    if rng is None or rate == 0.0:
        return x
    return jnp.where(keep(rng, rate, x.shape), x / (1.0 - rate), jnp.zeros((), x.dtype))


def keep(rng: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """True with probability 1 - rate (to 2**-32), independently for every element."""
    return random_words(rng, shape) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def random_words(rng: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Uniform uint32 words: word i is the first output of Threefry-2x32-13 on the counter (i, 0)."""
    key = jax.random.bits(rng, (2,), jnp.uint32)  # the same for every kind of JAX key
    index = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        index = index * jnp.uint32(size) + lax.broadcasted_iota(jnp.uint32, shape, axis)
    return _threefry(key[0], key[1], index)


def _threefry(key0: Array, key1: Array, counter: Array) -> Array:
    keys = (key0, key1, key0 ^ key1 ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = counter + keys[0], jnp.broadcast_to(keys[1], counter.shape)
    for i in range(ROUNDS):
        x0 = x0 + x1
        rotation = ROTATIONS[i % 8]
        x1 = (x1 << rotation) | (x1 >> (32 - rotation))
        x1 = x1 ^ x0
        if i % 4 == 3:  # a key injection after every fourth round
            injection = i // 4 + 1
            x0 = x0 + keys[injection % 3]
            x1 = x1 + keys[(injection + 1) % 3] + jnp.uint32(injection)
    return x0
