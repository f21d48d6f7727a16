"""Scaling laws from single measurements: growth of time, operations and memory, and crossings."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.measure.records import Record
from transformer_jax.costs.power_laws import (
    PowerLaw,
    Quadratic,
    crossing,
    fit_power_law,
    fit_quadratic,
)

# A power law is fitted to the lengths whose value is at least this many times that of the shortest.
# At shorter lengths the overhead of a call (microseconds in JAX, milliseconds without jit) is still
# a part of the time.
ABOVE_SHORTEST = 10
RULE = f"fitted to the lengths that take at least {ABOVE_SHORTEST} times as long as the shortest"


@dataclass(frozen=True)
class Law:
    """The growth of one implementation of one subject with the length.

    A law is None if there are too few lengths to fit it.
    """

    subject: str
    implementation: str
    lengths: tuple[int, ...]  # to which the law of time is fitted
    time: PowerLaw | None
    quadratic: Quadratic | None
    flops: PowerLaw | None
    memory: PowerLaw | None
    resident: PowerLaw | None


@dataclass(frozen=True)
class Crossing:
    """The length from which `one` takes longer than `other`, by operation count and by time.

    It is the shortest measured length if `one` always takes longer, and None if it never does.
    """

    subject: str
    one: str
    other: str
    counted: float | None
    clock: float | None
    shortest: int
    longest: int


@dataclass(frozen=True)
class Goal:
    """A goal that was set before it was measured; `extrapolated` tells what was not run."""

    claim: str
    wanted: float
    measured: float
    extrapolated: str = ""

    @property
    def met(self) -> bool:
        return self.measured >= self.wanted


def timed(records: list[Record]) -> list[Record]:
    """Return the records without interleaved ratios and without memory of child processes."""
    return [r for r in records if r.ratio is None and r.resident_bytes is None]


def names(records: list[Record], subject: str) -> list[str]:
    """Return the implementations of a subject, in the order of the records."""
    return list(dict.fromkeys(r.implementation for r in records if r.subject == subject))


def series(
    records: list[Record], subject: str, implementation: str, of: Callable[[Record], float | None]
) -> dict[int, float]:
    """Return the values by length, shortest first; lengths without a value are left out."""
    chosen = [r for r in records if (r.subject, r.implementation) == (subject, implementation)]
    return {r.length: of(r) for r in sorted(chosen, key=lambda r: r.length) if of(r)}


def seconds(record: Record) -> float | None:
    return record.seconds if record.ratio is None and record.resident_bytes is None else None


def asymptotic(values: dict[int, float]) -> dict[int, float]:
    """Return the values at the lengths that RULE keeps."""
    if not values:
        return {}
    least = ABOVE_SHORTEST * values[min(values)]
    return {length: value for length, value in values.items() if value >= least}


def power_law(values: dict[int, float]) -> PowerLaw | None:
    values = asymptotic(values)
    return fit_power_law(list(values), list(values.values())) if len(values) > 1 else None


def laws(records: list[Record]) -> list[Law]:
    """Fit the laws of each implementation of each subject."""
    found = []
    for subject, name in dict.fromkeys((r.subject, r.implementation) for r in records):

        def of(value, subject=subject, name=name):
            return series(records, subject, name, value)

        times = of(seconds)
        found.append(
            Law(
                subject,
                name,
                tuple(asymptotic(times)),
                power_law(times),
                fit_quadratic(list(times), list(times.values())) if len(times) > 3 else None,
                power_law(of(lambda r: r.flops)),
                power_law(of(lambda r: r.peak_bytes)),
                power_law(of(lambda r: r.resident_bytes)),
            )
        )
    return found


def cross(records: list[Record], subject: str, one: str, other: str) -> Crossing | None:
    """Return where `one` overtakes `other`.

    Return None if fewer than two lengths were measured of both.
    """

    def overtakes(of: Callable[[Record], float | None]) -> tuple[list[int], float | None]:
        first, second = (series(records, subject, name, of) for name in (one, other))
        both = sorted(first.keys() & second.keys())
        if len(both) < 2:
            return both, None
        return both, crossing(both, [first[T] for T in both], [second[T] for T in both])

    lengths, clock = overtakes(seconds)
    if len(lengths) < 2:
        return None
    counted = overtakes(lambda r: r.flops)[1]
    return Crossing(subject, one, other, counted, clock, lengths[0], lengths[-1])


PAIRS = [
    ("parts of an encoder layer", "attention", "projections"),
    ("parts of an encoder layer", "attention", "all but attention"),
    ("layers that read a sequence", "self-attention", "convolution"),
    ("layers that read a sequence", "self-attention", "dilated stack"),
    ("layers that read a sequence", "self-attention", "LSTM"),
]


def crossings(records: list[Record]) -> list[Crossing]:
    return [found for pair in PAIRS if (found := cross(records, *pair))]


# Goals for skipping masked blocks: speed-up over full attention; 0.75 and 0.2 of its time.
SKIPPING = {"causal": 4 / 3, "window": 5.0}


def goals(records: list[Record]) -> list[Goal]:
    """Return the goals whose measurements are all there."""
    found = []
    loops = power_law(series(records, "attention", "Python loops", seconds))
    compiled = series(records, "attention", "transformer_jax", seconds)
    if loops and 512 in compiled:
        longest = max(series(records, "attention", "Python loops", seconds))
        found.append(
            Goal(
                "compiled attention against Python loops, T = 512, 8 heads of 64",
                1000,
                float(loops(512)) / compiled[512],
                f"loops of T = 512 extrapolated by T^{loops.exponent:.2f} from T <= {longest}",
            )
        )
    for r in records:
        if (r.subject, r.implementation, r.length) != (
            "attention",
            "NumPy, loop over queries",
            128,
        ):
            continue
        if r.ratio:
            claim = "compiled attention against NumPy's loop over queries, T = 128, interleaved"
            found.append(Goal(claim, 8, r.ratio))
    for r in records:
        if r.subject == "attention that skips" and r.reference in SKIPPING and r.ratio:
            claim = f"full attention against {r.reference}, T = {r.length}, interleaved"
            found.append(Goal(claim, SKIPPING[r.reference], r.ratio))
    return found
