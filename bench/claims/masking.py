"""The place of a causal mask: before the softmax, not after it."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from bench.claims.layers import normal
from bench.pages.claims import Claim
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.masks import causal


def masked_before(query, key, value):
    """Set future scores to -inf, as the library does."""
    return dot_product_attention(query, key, value, mask=causal())


def zeroed_after(query, key, value):
    """Set future weights to zero; the future still counts in the denominator of every weight."""
    weights = attention_weights(query, key) * causal().to_array(key.shape[1])
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value)


def renormalised_after(query, key, value):
    """Set future weights to zero and divide the others by their sum.

    The denominator that includes the future cancels.
    """
    weights = attention_weights(query, key) * causal().to_array(key.shape[1])
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value)


WAYS = {
    "masked before the softmax": masked_before,
    "zeroed after the softmax": zeroed_after,
    "zeroed after, divided by the sum": renormalised_after,
}


def influence(way, query, key, value) -> np.ndarray:
    """Return [t, s]: the size of the derivative of output t by the key and value of token s."""
    by_key, by_value = jax.jit(jax.jacrev(way, argnums=(1, 2)))(query, key, value)
    # [1, T, 1, H, 1, S, 1, H]
    squares = sum(np.square(np.asarray(part)[0, :, 0, :, 0, :, 0]) for part in (by_key, by_value))
    return np.sqrt(squares.sum(axis=(1, 3)))


def leaks(seed: int, T: int = 6, H: int = 8) -> dict[str, dict]:
    """Measure how the outputs before the last token change when that token changes."""
    random = np.random.default_rng(seed)
    query, key, value = (normal(random, (1, T, 1, H)) for _ in range(3))
    last = jnp.arange(T)[:, None, None] == T - 1
    other = jnp.where(last, normal(random, key.shape), key)
    # A future score so large that no weight remains for the others.
    loud = jnp.where(last, 1e3 * query[:, :1], key)
    reference = masked_before(query, key, value)
    found = {}
    for name, way in WAYS.items():
        output = np.asarray(way(query, key, value))
        found[name] = {
            "change": float(np.abs(output - way(query, other, value))[:, : T - 1].max()),
            "difference": float(np.abs(output - reference).max()),
            "finite": bool(np.isfinite(way(query, loud, value)).all()),
            "influence": influence(way, query, key, value),
        }
    return found


def claims(seed: int) -> list[Claim]:
    found = leaks(seed)

    def draw(drawing: Figure) -> None:
        panels = drawing.subplots(1, 3)
        scale = LogNorm(1e-3, max(row["influence"].max() for row in found.values()))
        for axes, (name, row) in zip(panels, found.items(), strict=True):
            shown = np.ma.masked_less(row["influence"], 1e-6)  # white: nothing
            picture = axes.imshow(shown, norm=scale, cmap="viridis")
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("token that changes")
        panels[0].set_ylabel("output")
        drawing.colorbar(picture, ax=panels, label="size of the derivative", shrink=0.8)

    return [
        Claim(
            "causal-leak",
            "A causal mask after the softmax leaks the future",
            "Weights that are set to zero after the softmax have already been divided by a sum "
            "that includes the future. Changing the key of the last token therefore changes "
            "every earlier output (the derivatives right of the diagonal). Dividing by the sum "
            "of the remaining weights cancels this and equals masking before the softmax in "
            "exact arithmetic. Where a future score is so large that nothing remains for the "
            "other keys, it divides 0 by 0.",
            (
                "causal mask",
                "largest change of an earlier output",
                "largest difference from masking before",
                "finite beside a future score a thousand times larger",
            ),
            [
                (name, *(row[k] for k in ("change", "difference", "finite")))
                for name, row in found.items()
            ],
            draw,
        )
    ]
