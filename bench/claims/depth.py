"""The gradient at the first layer of a deep stack, with and without residual connections."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from bench.claims.layers import cross_entropy, init_layers, layers, normal
from bench.pages.claims import COLOURS, Claim, plain

# Residual connection, norm.
STACKS = {
    "residual and norm": (1.0, True),
    "norm alone": (0.0, True),
    "residual alone": (1.0, False),
    "neither": (0.0, False),
}


def first_gradients(
    seed: int, depths: tuple[int, ...], *, draws: int = 8, T: int = 16, D: int = 32, C: int = 8
) -> dict[str, np.ndarray]:
    """Return the norms of the gradient of the first layer [depth, draw], by stack.

    Weights and labels are random.
    """
    random = np.random.default_rng(seed)
    stacks = [init_layers(random, max(depths), D, 4, 2 * D) for _ in range(draws)]
    parameters = jax.tree.map(lambda *x: np.stack(x), *stacks)
    x = normal(random, (draws, 4, T, D))
    read = normal(random, (draws, D, C), D)
    labels = random.integers(0, C, (draws, 4, T))

    @partial(jax.jit, static_argnames="norm")
    @partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None, None))
    def norm_of_gradient(parameters, x, read, labels, depth, residual, norm):
        def loss(parameters):
            y = layers(parameters, x, residual=residual, norm=norm, depth=depth)
            return cross_entropy(y @ read, labels)

        gradient = jax.grad(loss)(parameters)
        return jnp.sqrt(sum(jnp.square(part[0]).sum() for part in gradient.values()))

    return {
        name: np.array(
            [norm_of_gradient(parameters, x, read, labels, d, residual, norm) for d in depths]
        )
        for name, (residual, norm) in STACKS.items()
    }


def claims(seed: int) -> list[Claim]:
    depths = (1, 2, 4, 8, 16, 32, 64)
    found = first_gradients(seed, depths)

    def draw(drawing: Figure) -> None:
        axes = drawing.subplots()
        for colour, (name, norms) in zip(COLOURS, found.items(), strict=True):
            shown = np.where(np.isfinite(norms) & (norms > 0), norms, np.nan)
            kept = np.isfinite(shown).all(axis=1)
            at, shown = np.array(depths)[kept], shown[kept]
            axes.loglog(at, np.median(shown, axis=1), "o-", color=colour, label=name, base=2)
            axes.fill_between(at, shown.min(1), shown.max(1), color=colour, alpha=0.15, linewidth=0)
        axes.set_yscale("log", base=10)
        axes.set_ylim(1e-12, 1e12)
        plain(axes, "Gradient of the first layer: median and range of 8 draws", "layers", "norm")
        axes.legend(frameon=False, fontsize=8, loc="lower left")

    def shown(norms: np.ndarray) -> str | float:
        return float(np.median(norms)) if np.isfinite(norms).all() else "overflow"

    return [
        Claim(
            "gradient-depth",
            "Residual connections together with norms keep the gradient stable",
            "The norm of the gradient that reaches the first layer: the median of 8 random "
            "stacks of attention and feed-forward layers, at initialisation. With neither "
            "residual connections nor norms it shrinks with every layer and vanishes. With "
            "residual connections alone it grows without bound. With norms alone its median "
            "stays the same, but draws come to differ by orders of magnitude (last column: "
            "largest over smallest, at the greatest depth). With both it stays stable.",
            ("", *map(str, depths), "spread"),
            [
                (name, *map(shown, norms), float(norms[-1].max() / norms[-1].min()))
                if np.isfinite(norms[-1]).all() and norms[-1].min() > 0
                else (name, *map(shown, norms), "-")
                for name, norms in found.items()
            ],
            draw,
            (8.0, 4.2),
        )
    ]
