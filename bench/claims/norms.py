"""Batch norm and layer norm in a padded batch."""

import jax.numpy as jnp
import numpy as np

from bench.claims.layers import normal
from bench.pages.claims import Claim
from transformer_jax.functional.normalization import batch_norm, batch_statistics, layer_norm


def changes(seed: int, B: int = 8, T: int = 12, D: int = 16) -> dict[str, dict[str, float]]:
    """By how much one example's output moves when only what stands around it changes."""
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
            "Batch norm sees padding and batch mates, layer norm does not",
            "The same example, normalised in the same batch but for what stands around it: the "
            "largest change of its normalised features (of variance 1). The statistics of batch "
            "norm are over all tokens of the batch, padding included. Running statistics cure "
            "that in evaluation, when training has already happened with the others. Layer norm "
            "reads one token.",
            ("", *found["layer norm"]),
            [(name, *row.values()) for name, row in found.items()],
        )
    ]
