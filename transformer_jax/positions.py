"""Where a token stands: sinusoidal and learned codes, and counting positions from a mask."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def sinusoidal_positions(
    positions: Int[Array, "..."], features: int, *, base: float = 10_000.0
) -> Float[Array, "... D"]:
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D)).

    Vaswani et al., 2017, section 3.5. PE(p + k) is the same rotation of PE(p) for every p.
    """
    even = jnp.arange(0, features, 2, dtype=jnp.float32)
    angles = positions[..., None].astype(jnp.float32) / base ** (even / features)
    code = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    # An odd number of features ends on a sine.
    return code.reshape(*positions.shape, -1)[..., :features]


def lookup(table: Float[Array, "L D"], positions: Int[Array, "..."]) -> Float[Array, "... D"]:
    """Rows of a table: a token embedding, or a learned position. The same as one_hot(positions) @ table.

    An index outside the table is a mistake that a gather would hide: it yields NaN.
    """
    return table.at[positions].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def count_positions(is_token: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """0, 1, 2, ... over the real tokens of each row, so that padding on the left moves nothing.

    [[0, 0, 1, 1, 1]] -> [[0, 0, 0, 1, 2]]
    """
    return jnp.maximum(jnp.cumsum(is_token, axis=-1, dtype=jnp.int32) - 1, 0)
