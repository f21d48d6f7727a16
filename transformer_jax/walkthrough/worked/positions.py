"""Worked examples of positions: sinusoids, binary codes, and adding a position to a token."""

import numpy as np

from transformer_jax.functional import positions as library
from transformer_jax.walkthrough.step import Step
from transformer_jax.walkthrough.worked.notation import compiled, numbers, tell

sinusoids = compiled(library.sinusoidal_positions, static_argnums=1)
bits_of = compiled(library.binary_positions, static_argnums=1)
lookup = compiled(library.lookup)


def position_sum(example: dict) -> list[Step]:
    tokens = example["inputs"]["tokens"]
    x, places = (numbers(example["inputs"][name]) for name in ("X_tok", "P"))
    ids = np.arange(len(tokens))
    return [
        tell("X_tok", "one row a token", x, "T D", tokens),
        tell("P", "one row a position", places, "T D"),
        tell("X", "X_tok + P", lookup(x, ids) + lookup(places, ids), "T D", tokens),
    ]


def sinusoid_d6(example: dict) -> list[Step]:
    position, features = example["inputs"]["position"], example["inputs"]["d_model"]
    angles = position / 10_000 ** (np.arange(0, features, 2) / features)
    return [
        tell("angles", "p / 10000^(2i/D)", angles, "pair"),
        tell("pe", "sin and cos of each angle in turn",
             sinusoids(np.array(position), features), "D"),
    ]  # fmt: skip


def sinusoid_d512(example: dict) -> list[Step]:
    inputs = example["inputs"]
    dimensions = np.array(inputs["dimensions"])
    divisors = 10_000 ** ((dimensions - dimensions % 2) / inputs["d_model"])
    code = sinusoids(np.array(inputs["position"]), inputs["d_model"])[dimensions]
    columns = [f"d{d}" for d in dimensions]
    return [
        tell("divisors", "10000^(2i/D)", divisors, "D", columns=columns),
        tell("angles", "p / 10000^(2i/D)", inputs["position"] / divisors, "D", columns=columns),
        tell("pe", "sin of it where even, cos where odd", code, "D", columns=_names(dimensions)),
    ]  # fmt: skip


def sinusoid_wavelengths(example: dict) -> list[Step]:
    """Compute the wavelengths from the angle 2 pi / wavelength of each pair at position 1."""
    features = example["inputs"]["d_model"]
    code = sinusoids(np.array(1), features)
    turns = np.arctan2(code[0::2], code[1::2])
    dimensions = np.array([0, 2, 50, 254, 510])
    pairs = np.array([2, 50, 254])
    return [
        tell("turns", "1 / 10000^(d/D), from sin and cos at position 1", turns[dimensions // 2],
             "D", columns=_names(dimensions)),
        tell("wavelengths", "2 pi 10000^(d/D)", 2 * np.pi / turns[dimensions // 2], "D",
             columns=[f"d{d}" for d in dimensions]),
        tell("of_pairs", "the same with d the number of the pair: 2 pi 10000^(2d/D)",
             2 * np.pi / turns[pairs], "pair", columns=[f"pair{d}" for d in pairs]),
    ]  # fmt: skip


def sinusoid_bounded(example: dict) -> list[Step]:
    positions = np.array(example["inputs"]["positions"])
    return [
        tell("positions", "as given", positions, "T"),
        tell("sin", "sin(p), feature 0 of the code", sinusoids(positions, 2)[:, 0], "T"),
    ]


def sinusoid_table(example: dict) -> list[Step]:
    inputs = example["inputs"]
    dimensions = np.array(inputs["dimensions"])
    table = sinusoids(np.array(inputs["positions"]), inputs["d_model"])[:, dimensions]
    rows = [f"p{p}" for p in inputs["positions"]]
    return [
        tell("divisors", "10000^(2i/D)",
             10_000 ** ((dimensions - dimensions % 2) / inputs["d_model"]),
             "D", columns=[f"divisor{d}" for d in dimensions]),
        tell("pe", "sin(p / divisor) where even, cos where odd", table, "T D", rows,
             _names(dimensions)),
    ]  # fmt: skip


def binary_positions(example: dict) -> list[Step]:
    positions, bits = example["inputs"]["positions"], example["inputs"]["bits"]
    code = bits_of(np.array(positions), bits)
    return [
        tell("positions", "as given", positions, "T"),
        tell(
            "code",
            "the bits of p, the most significant first",
            code,
            "T bit",
            [f"p{p}" for p in positions],
            note="From 67 to 68 three bits change at once: neighbouring positions can differ much.",
        ),
    ]


def _names(dimensions) -> list[str]:
    return [f"dim{d}" for d in dimensions]


WORKED = {
    function.__name__: function
    for function in (
        position_sum,
        sinusoid_d6,
        sinusoid_d512,
        sinusoid_wavelengths,
        sinusoid_bounded,
        sinusoid_table,
        binary_positions,
    )
}
