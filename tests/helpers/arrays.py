"""Arrays that NumPy draws and rounds: JAX would compile a program for each shape."""

import jax
import jax.numpy as jnp
import numpy as np


def normal(seed: int, *shape: int) -> np.ndarray:
    """Draw float64 numbers from the standard normal distribution."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def jax_normal(seed: int, *shape: int, dtype=jnp.float32) -> jax.Array:
    """Return the numbers of `normal`, rounded, as an array of JAX."""
    return jax.device_put(normal(seed, *shape).astype(dtype))


def rounded(*arrays) -> list[np.ndarray]:
    """Return arrays of NumPy, which are cut and changed without compiling anything."""
    return [np.asarray(x).astype(np.float32) for x in arrays]


def float32(*arrays) -> list[jax.Array]:
    """Return arrays of JAX, or dictionaries of them, with these numbers, rounded."""
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x, np.float32)), list(arrays))
