"""Order and position codes: what attention can know of order, and how scores depend on distance."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from bench.claims.layers import init_layers, layers, normal
from bench.pages.claims import COLOURS, Claim, plain
from transformer_jax.functional.pooling import mean_pool
from transformer_jax.functional.positions import sinusoidal_positions
from transformer_jax.functional.rotary import rope


def reordered(seed: int, T: int = 12, D: int = 32) -> dict[str, dict[str, float]]:
    """Measure a random encoder f on tokens x and on the same tokens in another order P x."""
    random = np.random.default_rng(seed)
    parameters = init_layers(random, 4, D, 4, 2 * D)
    x = normal(random, (1, T, D))
    order = np.roll(random.permutation(T), 1)
    encoder = jax.jit(layers)
    everywhere = jnp.ones((1, T), bool)
    found = {}
    for name, code in {
        "none": np.zeros((T, D), np.float32),
        "sinusoidal": sinusoidal_positions(jnp.arange(T), D),
    }.items():
        output = encoder(parameters, x + code)
        other = encoder(parameters, x[:, order] + code)
        pooled, other_pooled = mean_pool(output, everywhere), mean_pool(other, everywhere)
        found[name] = {
            "from f(x)": float(jnp.abs(other - output).max()),
            "from P f(x)": float(jnp.abs(other - output[:, order]).max()),
            "of the mean": float(jnp.abs(other_pooled - pooled).max()),
        }
    return found


def rotation(offset: int, features: int, base: float = 10_000.0) -> np.ndarray:
    """Return R_k, which rotates each pair (sin p f, cos p f) by k f for every p."""
    turn = np.zeros((features, features))
    for i in range(0, features, 2):
        angle = offset / base ** (i / features)
        turn[i : i + 2, i : i + 2] = [
            [np.cos(angle), np.sin(angle)],
            [-np.sin(angle), np.cos(angle)],
        ]
    return turn


def rotation_errors(offset: int, features: int = 64, length: int = 1000) -> tuple[float, float]:
    """Return the largest |PE(p + k) - R_k PE(p)| over all positions p.

    The second number is the same with the rotation of the next offset.
    """
    code = np.asarray(sinusoidal_positions(jnp.arange(length + offset), features), np.float64)
    here, there = code[:length], code[offset:]
    return tuple(
        float(np.abs(there - here @ rotation(turn, features).T).max())
        for turn in (offset, offset + 1)
    )


def score_maps(seed: int, T: int = 64, H: int = 32) -> dict[str, np.ndarray]:
    """Return [m, n]: the score of one query at position m and one key at position n."""
    random = np.random.default_rng(seed)
    query, key = (np.broadcast_to(normal(random, (H,)), (1, T, 1, H)) for _ in range(2))
    positions = jnp.arange(T)
    code = np.asarray(sinusoidal_positions(positions, H))[None, :, None]
    turned = {
        f"RoPE, {layout}": [rope(jnp.asarray(x), positions, layout=layout) for x in (query, key)]
        for layout in ("half", "interleaved")
    }
    pairs = {**turned, "sinusoids added": [query + code, key + code]}
    return {
        name: np.einsum("tnh,snh->ts", *(np.asarray(x[0], np.float64) for x in pair)) / H**0.5
        for name, pair in pairs.items()
    }


def spreads(scores: np.ndarray) -> tuple[float, float]:
    """Return two standard deviations: the largest within a distance, and that between distances.

    The latter is taken over the means of the distances.
    """
    diagonals = [np.diagonal(scores, k) for k in range(-len(scores) + 2, len(scores) - 1)]
    return max(float(d.std()) for d in diagonals), float(np.std([d.mean() for d in diagonals]))


def _draw_rotation(drawing: Figure) -> None:
    left, right = drawing.subplots(1, 2)
    code = np.asarray(sinusoidal_positions(jnp.arange(200), 64))
    left.imshow(code.T, aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
    left.set_title("PE(p): 64 features of 200 positions", loc="left", fontsize=10)
    left.set_xlabel("p")
    left.set_ylabel("feature")
    for width, colour, p in zip((5, 2.5, 1), COLOURS, (0, 40, 100), strict=False):
        right.plot(code[p : p + 100] @ code[p], color=colour, linewidth=width, label=f"p = {p}")
    plain(right, "PE(p) · PE(p + k): one curve for every p", "k", "dot product")
    right.legend(frameon=False, fontsize=8)


def _draw_scores(maps: dict[str, np.ndarray], drawing: Figure) -> None:
    for axes, (name, scores) in zip(drawing.subplots(1, len(maps)), maps.items(), strict=True):
        size = np.abs(scores).max()
        axes.imshow(scores, cmap="RdBu", vmin=-size, vmax=size)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("position of the key")
        axes.set_ylabel("position of the query")


def claims(seed: int) -> list[Claim]:
    maps = score_maps(seed)
    order = reordered(seed)
    return [
        Claim(
            "order",
            "Without positions, attention is equivariant to order; the mean of its outputs is "
            "invariant",
            "A random encoder f of four layers is applied to random tokens x and to the same "
            "tokens reordered, P x. Without positions f(P x) = P f(x): each output moves with "
            "its token (equivariance). The outputs do change, so they are not invariant, as "
            "texts often say; only their mean is. With positions neither holds. The table shows "
            "the changes of f(P x).",
            ("positions", *(f"largest change {what}" for what in order["none"])),
            [(name, *row.values()) for name, row in order.items()],
        ),
        Claim(
            "rotation",
            "PE(p + k) is one rotation of PE(p), the same for every p",
            "R_k rotates the pair (sin p f, cos p f) by k f, an angle that does not depend on p. "
            "The largest error over a thousand positions is that of float32 angles. For "
            "comparison the last column uses a wrong rotation, R of k + 1.",
            ("k", "largest error with R of k", "with R of k + 1"),
            [(k, *rotation_errors(k)) for k in (1, 10, 100, 1000)],
            _draw_rotation,
        ),
        Claim(
            "rope",
            "With RoPE a score depends only on the distance",
            "One query and one key, at every pair of 64 positions. With RoPE the scores at one "
            "distance do not vary (each diagonal of the pictures has one colour). With sinusoids "
            "added to the same vectors they do.",
            ("positions", "largest spread within a distance", "spread between distances"),
            [(name, *spreads(scores)) for name, scores in maps.items()],
            partial(_draw_scores, maps),
        ),
    ]
