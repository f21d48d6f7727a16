"""The loss around a trained stack along two random directions, with and without residuals.

Li et al., 2018, https://arxiv.org/abs/1712.09913: each filter of a direction (the weights of one
output feature) is scaled to the norm of the same filter of the model, so that a step means the same
in models of different scale.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure

from bench.claims.layers import cross_entropy, fit, init_layers, layers, normal
from bench.pages.claims import Claim
from transformer_jax.functional.positions import sinusoidal_positions

D, N, F, C = 32, 4, 64, 8
LEVEL = 0.25  # of loss between two contour lines
# Axes over the inputs of one filter; the axes of layers and outputs remain.
INPUTS = {name: (1,) for name in ("query", "key", "value", "up", "down", "embed")}
INPUTS |= {"out": (1, 2), "read": (0,)}


def loss(residual: float, parameters, tokens):
    """Compute the loss of reversing a sequence of tokens: position t has to predict token T-1-t."""
    T = tokens.shape[1]
    x = parameters["embed"][tokens] + sinusoidal_positions(jnp.arange(T), D)
    stack = {name: x for name, x in parameters.items() if name not in ("embed", "read")}
    return cross_entropy(layers(stack, x, residual=residual) @ parameters["read"], tokens[:, ::-1])


WITH, WITHOUT = partial(loss, 1.0), partial(loss, 0.0)


def direction(random: np.random.Generator, parameters) -> dict[str, np.ndarray]:
    """Draw a random direction, each filter scaled to the length of the model's."""
    found = {}
    for name, value in parameters.items():
        axes, drawn = INPUTS[name], normal(random, value.shape)
        length = np.sqrt(np.square(value).sum(axes, keepdims=True))
        found[name] = drawn * length / np.sqrt(np.square(drawn).sum(axes, keepdims=True))
    return found


@partial(jax.jit, static_argnames="loss")
def surface(loss, parameters, first, second, tokens, steps):
    """Return [j, i]: the loss at parameters + steps[i] first + steps[j] second."""

    def at(place):
        moved = jax.tree.map(
            lambda p, a, b: p + place[0] * a + place[1] * b, parameters, first, second
        )
        return loss(moved, tokens)

    grid = jnp.stack(jnp.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    return lax.map(at, grid).reshape(len(steps), len(steps))


def hollows(heights: np.ndarray) -> int:
    """Count the points of the grid that are lower than their eight neighbours.

    A smooth bowl has one.
    """
    middle = heights[1:-1, 1:-1]
    rows, columns = heights.shape
    lower = np.ones_like(middle, bool)
    for down in (0, 1, 2):
        for right in (0, 1, 2):
            if (down, right) != (1, 1):
                lower &= middle < heights[down : rows - 2 + down, right : columns - 2 + right]
    return int(lower.sum())


def bend(heights: np.ndarray) -> float:
    """Return the mean size of the second differences down and across.

    It is divided by the range of the heights.
    """
    bends = [np.abs(np.diff(heights, 2, axis=axis)).mean() for axis in (0, 1)]
    return float(np.mean(bends) / np.ptp(heights))


def surfaces(
    seed: int, *, L: int = 6, T: int = 8, steps: int = 400, grid: int = 25, pairs: int = 3
):
    """Train both stacks; return their last losses and their surfaces for `pairs` directions.

    Both start from the same weights and see the same batches.
    """
    random = np.random.default_rng(seed)
    start = init_layers(random, L, D, N, F)
    start |= {"embed": normal(random, (C, D)), "read": normal(random, (D, C), D)}
    batches = random.integers(0, C, (steps, 64, T))
    tokens = random.integers(0, C, (64, T))
    found = {}
    for name, task in (("with residual connections", WITH), ("without", WITHOUT)):
        parameters, losses = fit(task, start, batches)
        parameters = jax.tree.map(np.asarray, parameters)
        drawn = np.random.default_rng(seed + 1)
        heights = [
            surface(
                task,
                parameters,
                direction(drawn, parameters),
                direction(drawn, parameters),
                tokens,
                np.linspace(-1, 1, grid, dtype=np.float32),
            )
            for _ in range(pairs)
        ]
        found[name] = {"loss": float(losses[-10:].mean()), "heights": np.asarray(heights)}
    return found


def claims(seed: int) -> list[Claim]:
    found = surfaces(seed)

    def draw(drawing: Figure) -> None:
        panels = drawing.subplots(1, 2, sharey=True)
        steps = np.linspace(-1, 1, found["without"]["heights"].shape[-1])
        highest = max(row["heights"][0].max() for row in found.values())
        levels = np.arange(0, highest + LEVEL, LEVEL)
        for axes, (name, row) in zip(panels, found.items(), strict=True):
            filled = axes.contourf(steps, steps, row["heights"][0], levels, cmap="viridis")
            axes.contour(steps, steps, row["heights"][0], levels, colors="white", linewidths=0.4)
            axes.plot(0, 0, "+", color="white", markersize=9)
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("first direction")
        panels[0].set_ylabel("second direction")
        drawing.colorbar(filled, ax=panels, label="loss", ticks=range(int(highest) + 1))

    return [
        Claim(
            "loss-surface",
            "Residual connections smooth the loss",
            "Two stacks of six layers with norms start from the same weights and are trained on "
            "the same batches to reverse sequences of eight tokens. The pictures show the loss "
            "on held-out tokens along two random, filter-normalised directions (Li et al., 2018) "
            "around the trained weights (the cross). *Hollows* are points of the grid that are "
            "lower than their eight neighbours, for three pairs of directions. Second "
            "differences measure how much the surface bends from point to point. Without "
            "residual connections the stack has hardly learnt, and the surface around it bends "
            "more and has more hollows. The two surfaces surround different points: training did "
            "not bring both stacks to the same one.",
            ("", "loss after training", "hollows", "mean second difference / range"),
            [
                (
                    name,
                    row["loss"],
                    ", ".join(str(hollows(heights)) for heights in row["heights"]),
                    float(np.mean([bend(heights) for heights in row["heights"]])),
                )
                for name, row in found.items()
            ],
            draw,
            (10.0, 4.4),
        )
    ]
