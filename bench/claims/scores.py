"""The scale of attention scores, and the meaning of a dot product."""

import math

import jax
import numpy as np
from matplotlib.figure import Figure

from bench.claims.layers import normal
from bench.pages.claims import COLOURS, Claim, plain
from transformer_jax.attention.dot_product import attention_weights

SCALES = {
    "q·k": lambda d: 1.0,
    "q·k / √d": lambda d: d**-0.5,
    "q·k / d": lambda d: 1 / d,
    "q·k / d²": lambda d: d**-2.0,
}


def statistics(seed: int, d: int, *, batch: int = 64, tokens: int = 64) -> dict[str, dict]:
    """Return the variance of scores and the spread of the softmax, for each scaling.

    Queries and keys have unit variance.
    """
    random = np.random.default_rng(seed)
    query, key = (normal(random, (batch, tokens, 1, d)) for _ in range(2))
    scores = np.einsum("btnd,bsnd->bts", query, key)
    weights = jax.jit(lambda q, k, scale: attention_weights(q * scale, k, scale=1.0))
    found = {}
    for name, scale in SCALES.items():
        p = np.asarray(weights(query, key, scale(d)), np.float64)
        found[name] = {
            "variance": float((scores * scale(d)).var()),
            "predicted": d * scale(d) ** 2,  # a sum of d products of variance 1, times the scale
            "entropy": float(-(p * np.log(np.maximum(p, 1e-300))).sum(-1).mean()),
            "largest": float(p.max(-1).mean()),
        }
    return found


def loop_dot(a, b) -> float:
    """Return sum_i a_i b_i, one product after the other."""
    total = 0.0
    for i in range(len(a)):
        total += float(a[i]) * float(b[i])
    return total


def cosine(a, b) -> float:
    """Return the cosine of the angle between two vectors."""
    return loop_dot(a, b) / (math.sqrt(loop_dot(a, a)) * math.sqrt(loop_dot(b, b)))


def angles(seed: int, d: int = 64) -> list[tuple]:
    """Compare the dot product with length x length x cosine for pairs in a random plane.

    The pairs have given lengths and a given angle.
    """
    plane, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, 2)))
    rows = []
    for degrees, long, other in [
        (0, 1, 1),
        (60, 1, 1),
        (60, 1, 10),
        (60, 10, 10),
        (90, 10, 10),
        (180, 1, 10),
    ]:
        angle = math.radians(degrees)
        a = long * plane[:, 0]
        b = other * (plane @ [math.cos(angle), math.sin(angle)])
        rows.append((f"{degrees}°", long, other, loop_dot(a, b), long * other * math.cos(angle)))
    return rows


def claims(seed: int) -> list[Claim]:
    d, tokens = 64, 64
    of_d = {size: statistics(seed, size, batch=16) for size in (4, 16, 64, 256, 1024)}
    found = statistics(seed, d, tokens=tokens)

    def draw(drawing: Figure) -> None:
        left, right = drawing.subplots(1, 2)
        for colour, name in zip(COLOURS, SCALES, strict=True):
            sizes = list(of_d)
            measured = [of_d[size][name]["variance"] for size in sizes]
            left.loglog(sizes, measured, "o", color=colour, label=name)
            left.loglog(
                sizes, [of_d[size][name]["predicted"] for size in sizes], color=colour, linewidth=1
            )
            right.semilogx(
                sizes, [of_d[size][name]["entropy"] for size in sizes], "o-", color=colour
            )
        right.axhline(math.log(tokens), color="#999999", linestyle=":", linewidth=1)
        plain(left, "Variance of the scores; lines: d × scale²", "d", "variance")
        plain(right, f"Entropy of the weights; dotted: {tokens} equal weights", "d", "nats")
        left.legend(frameon=False, fontsize=8)

    return [
        Claim(
            "scaling",
            "Scores divided by √d keep their variance",
            "The score of a query and a key with d components of variance 1 is a sum of d "
            "products of variance 1, so scores scaled by s have the variance d s² (here d = "
            f"{d}). Without scaling the softmax chooses a single key, the more so the larger d "
            "is. Divided by d or d², the scores are so small that the weights are nearly equal, "
            "whatever the query. The printed table of one tutorial gives 0.0002 for d², which is "
            "neither d⁻³ nor the measured value.",
            (
                "score",
                "variance",
                "d s²",
                f"entropy (at most {math.log(tokens):.2f})",
                "largest weight",
            ),
            [(name, *row.values()) for name, row in found.items()],
            draw,
        ),
        Claim(
            "dot-product",
            "A dot product is length × length × cosine",
            "Pairs of vectors at a chosen angle in a random plane of 64 dimensions. The table "
            "compares the loop over components with the product of the lengths and the cosine. "
            "Scores at the same angle differ by a factor of a hundred when the lengths differ: "
            "attention compares lengths as well as directions.",
            ("angle", "length", "length", "loop over components", "length × length × cosine"),
            angles(seed),
        ),
    ]
