"""Dropout (Srivastava et al., 2014, https://jmlr.org/papers/v15/srivastava14a.html).

The random bits come from a counter. On a CPU `jax.random.bernoulli` can cost more than the layer it
regularises, because its generator is a loop that writes the bits to memory. Here the same
Threefry-2x32 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3", table 2: passes
BigCrush from 13 rounds on) is written out as a function of the element's index, so that XLA fuses
it into the product.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from transformer_jax.functional.checks import check_arrays

ROUNDS = 13
BITS, LANES = 8, 64  # of `kept_bits`
Words = tuple[Array, Array]
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def dropout(x: Float[Array, "..."], rate: float, rng: PRNGKeyArray | None) -> Float[Array, "..."]:
    """Return x with elements dropped at random and the others scaled up.

        x / (1 - rate) where kept, 0 where dropped

    The expectation is x. If `rng` is None (evaluation), x is returned as it is. Srivastava et al.,
    2014, https://jmlr.org/papers/v15/srivastava14a.html, with the scaling in training. Raises
    ValueError for a rate outside [0, 1), and for a key without a rate.

    >>> dropout(jnp.ones(8), 0.5, jax.random.key(1))
    Array([0., 2., 0., 0., 2., 0., 2., 2.], dtype=float32)
    >>> dropout(jnp.ones(2), 0.5, None)
    Array([1., 1.], dtype=float32)
    """
    check_arrays(x=(x, "..."))
    check_rate(rate, rng)
    if rng is None:
        return x
    x = jnp.asarray(x)
    return jnp.where(keep(rng, rate, x.shape), x / (1.0 - rate), jnp.zeros((), x.dtype))


def dropout_weights(
    weights: Float[Array, "B N T S"], rate: float, rng: PRNGKeyArray | Words | None
) -> Float[Array, "B N T S"]:
    """Return attention weights after `dropout`, drawn by `keep_weights`.

    The same weights are dropped whichever implementation computes them, and in whichever blocks.
    """
    if not isinstance(rng, tuple):
        check_rate(rate, rng)
    if rng is None:
        return weights
    kept = keep_weights(rng, rate, *map(jnp.arange, weights.shape))
    return jnp.where(kept, weights / (1.0 - rate), jnp.zeros((), weights.dtype))


def check_rate(rate: float, rng: PRNGKeyArray | None) -> None:
    """Check that a dropout rate and a key make sense together.

    Raises ValueError for a rate outside [0, 1) and for a key with a rate of 0. Raises TypeError for
    a key that is not an array.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"the dropout rate must be in [0, 1); got {rate}")
    if rng is not None and not hasattr(rng, "dtype"):
        raise TypeError(
            "a key for dropout must be an array, such as jax.random.key(0); "
            f"got {type(rng).__name__}"
        )
    if rng is not None and rate == 0.0:
        raise ValueError(
            "a key for dropout was given and the dropout rate is 0: "
            "pass a rate, or None for the key"
        )


def keep(rng: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """Return True with probability 1 - rate (to 2**-32), independently for every element."""
    return random_words(rng, shape) >= _threshold(rate)


def keep_weights(
    rng: PRNGKeyArray | Words,
    rate: float,
    batch: Int[Array, " B"],
    heads: Int[Array, " N"],
    queries: Int[Array, " T"],
    keys: Int[Array, " S"],
) -> Bool[Array, "B N T S"]:
    """Return True with probability 1 - rate for each attention weight, drawn by its indices.

    `batch`, `heads`, `queries` and `keys` are the indices, `rng` is a key or its `key_words`. A
    weight's bit depends on the key and its own four indices alone: Threefry on (example, head)
    makes the key of a head, and Threefry under that key on the query and two keys makes two words.
    The two keys are LANES apart. A block, a device or an implementation that asks for a part
    therefore gets that part of the whole.
    """
    words = rng if isinstance(rng, tuple) else key_words(rng)
    one, two = (word[:, :, None, None] for word in _head_words(words, batch, heads))
    pair, is_second = keys // (2 * LANES) * LANES + keys % LANES, keys // LANES % 2 == 1
    first, second = _threefry(one, two, queries[:, None], pair[None])
    return jnp.where(is_second, second, first) >= _threshold(rate)


def kept_bits(
    words: Words, rate: float, sizes: tuple[int, int, int, int]
) -> UInt8[Array, "B N G T 64"]:
    """Return `keep_weights` of all weights of the sizes B, N, T and S, one bit for each weight.

    Bit j of number l in group g is for key (BITS g + j) LANES + l, so that a block of LANES keys
    has the same bit of consecutive numbers. T is rounded up to a multiple of LANES.
    """
    B, N, T, S = sizes
    T = -(-T // LANES) * LANES
    head_words = _head_words(words, jnp.arange(B), jnp.arange(N))
    one, two = (word[:, :, None, None, None] for word in head_words)
    group = jnp.arange(-(-S // (BITS * LANES)))[:, None, None]
    queries, lanes = jnp.arange(T)[:, None], jnp.arange(LANES)
    bits = jnp.uint8(0)
    for j in range(0, min(BITS, -(-S // LANES)), 2):
        pair = (BITS * group + j) // 2 * LANES + lanes
        for k, word in enumerate(_threefry(one, two, queries, pair)):
            bits = bits | (word >= _threshold(rate)).astype(jnp.uint8) << (j + k)
    return bits


def unpacked_bits(
    bits: UInt8[Array, "B N G t 64"], sizes: tuple[int, int, int, int]
) -> Bool[Array, "B N T S"]:
    """Return `keep_weights` of all weights from its `kept_bits`."""
    B, N, T, S = sizes
    each = (bits[..., None, :] >> jnp.arange(BITS, dtype=jnp.uint8)[:, None]) & 1  # B N G t j l
    return jnp.moveaxis(each, 2, 3).reshape(B, N, bits.shape[3], -1)[:, :, :T, :S] == 1


def _head_words(words, batch, heads):
    """Return the two words [B, N] that are the key of each head."""
    found = _threefry(*words, *jnp.broadcast_arrays(batch[:, None], heads[None]))
    # Without the barrier XLA would compute them again for each of the head's weights.
    return lax.optimization_barrier(found)


def random_words(rng: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Return uniform uint32 words.

    Word i is the first output of Threefry-2x32-13 on the counter (i, 0).
    """
    index = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        index = index * jnp.uint32(size) + lax.broadcasted_iota(jnp.uint32, shape, axis)
    return _threefry(*key_words(rng), index, jnp.uint32(0))[0]


def key_words(rng: PRNGKeyArray) -> Words:
    """Return two words that are drawn with the key, and stand for it.

    A loop draws them once, before it begins: a key must not be used twice.
    """
    words = jax.random.bits(rng, (2,), jnp.uint32)  # the same for every kind of JAX key
    return words[0], words[1]


def _threshold(rate: float) -> Array:
    return jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def _threefry(key0: Array, key1: Array, counter0: Array, counter1: Array) -> tuple[Array, Array]:
    keys = (key0, key1, key0 ^ key1 ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = counter0.astype(jnp.uint32) + keys[0], counter1.astype(jnp.uint32) + keys[1]
    x0, x1 = jnp.broadcast_arrays(x0, x1)
    for i in range(ROUNDS):
        x0 = x0 + x1
        rotation = ROTATIONS[i % 8]
        x1 = (x1 << rotation) | (x1 >> (32 - rotation))
        x1 = x1 ^ x0
        if i % 4 == 3:  # a key injection after every fourth round
            injection = i // 4 + 1
            x0 = x0 + keys[injection % 3]
            x1 = x1 + keys[(injection + 1) % 3] + jnp.uint32(injection)
    return x0, x1
