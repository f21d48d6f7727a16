"""Batch norm and layer norm in a padded batch."""

import jax.numpy as jnp
import numpy as np

from bench.claims.layers import normal
from bench.pages.claims import Claim
from transformer_jax.functional.normalization import batch_norm, batch_statistics, layer_norm


def changes(seed: int, B: int = 8, T: int = 12, D: int = 16) -> dict[str, dict[str, float]]:
    """Return how much the output of one example changes when only the rest of its batch changes."""
    random = np.random.default_rng(seed)
    batch = normal(random, (B, T, D)) + normal(random, (D,))
    mates = np.concatenate([batch[:1], 2 * normal(random, (B - 1, T, D))])
    padded = np.concatenate([batch, np.zeros_like(batch)], axis=1)
    around = {"other examples": mates, "as much padding as text": padded, "alone": batch[:1]}

    ones = jnp.ones(D)
    running = batch_statistics(jnp.asarray(batch))
    norms = {
        "batch norm, of the batch": lambda x: batch_norm(x, ones),
        "batch norm, running statistics": lambda x: batch_norm(x, ones, statistics=running),
        "layer norm": lambda x: layer_norm(x, ones),
    }
    return {
        name: {
            what: float(np.abs(norm(jnp.asarray(x))[0, :T] - norm(jnp.asarray(batch))[0]).max())
            for what, x in around.items()
        }
        for name, norm in norms.items()
    }


def claims(seed: int) -> list[Claim]:
    found = changes(seed)
    return [
        Claim(
            "batch-norm",
            "Batch norm depends on padding and on other examples, layer norm does not",
            "The same example is normalised in a batch whose other content changes. The table "
            "shows the largest change of its normalised features (of variance 1). Batch norm "
            "computes its statistics over all tokens of the batch, padding included. Running "
            "statistics avoid this in evaluation, but training has already depended on the other "
            "examples. Layer norm reads one token only.",
            ("", *found["layer norm"]),
            [(name, *row.values()) for name, row in found.items()],
        )
    ]
