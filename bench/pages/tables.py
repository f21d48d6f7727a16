"""The tables of the report and of the terminal, as lines of Markdown."""

import math
from collections.abc import Iterable

from bench.measure.records import Record
from bench.pages import analysis
from bench.pages.analysis import Crossing, Goal, Law, names, seconds, series, timed
from transformer_jax.costs.power_laws import PowerLaw


def table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    """Columns as wide as their widest cell: to be read in a terminal too."""
    cells = [header, *rows]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(pairs)) + " |"
        for pairs in (list(zip(row, widths, strict=True)) for row in cells)
    ]  # fmt: skip
    rule = (
        "| " + " | ".join("-" * (w - 1) + (":" if i else "-") for i, w in enumerate(widths)) + " |"
    )
    return [lines[0], rule, *lines[1:]]


def digits(value: float | None) -> str:
    """Three that count."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "never"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def exponent(law: PowerLaw | None) -> str:
    """`1.97 [1.90, 2.04]`; an interval from two points has no ends."""
    if law is None:
        return ""
    low, high = law.interval
    ends = f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else " (two lengths)"
    return f"{law.exponent:.2f}" + (ends if high - low > 5e-3 else "")


def times(records: list[Record], subject: str) -> list[str]:
    """Median milliseconds, a row for each length."""
    records = timed(records)
    implementations = names(records, subject)
    columns = [series(records, subject, name, seconds) for name in implementations]
    lengths = sorted({length for column in columns for length in column})
    unit = "words" if subject == "tokenizers" else "T"
    return table(
        [unit, *(f"{name}, ms" for name in implementations)],
        (
            [str(T), *(digits(1e3 * column[T] if T in column else None) for column in columns)]
            for T in lengths
        ),
    )


def growth(found: list[Law], records: list[Record], subject: str) -> list[str]:
    """The laws of a subject's implementations."""
    rows = []
    for law in found:
        if law.subject != subject:
            continue
        compiling = series(records, subject, law.implementation, lambda r: r.compile_seconds)
        quadratic = law.quadratic
        rows.append(
            [
                law.implementation,
                exponent(law.time),
                f"{law.lengths[0]} to {law.lengths[-1]}" if law.time else "",
                digits(quadratic.crossover) if quadratic else "",
                f"{100 * quadratic.worst:.0f}%" if quadratic else "",
                exponent(law.flops),
                exponent(law.memory),
                digits(max(compiling.values())) if compiling else "",
            ]
        )
    header = ["implementation", "time T^e", "lengths", "T* = b/c", "fit off by", "FLOPs T^e"]
    return table([*header, "peak bytes T^e", "compiling, s"], rows)


def rates(records: list[Record], subject: str) -> list[str]:
    """Operations a second and operations for each byte that must be moved, at the longest length."""
    rows = []
    for name in names(timed(records), subject):
        chosen = [r for r in timed(records) if (r.subject, r.implementation) == (subject, name)]
        longest = max(chosen, key=lambda r: r.length)
        if longest.flops:
            rate, intensity = longest.flops / longest.seconds, longest.flops / longest.bytes_moved
            rows.append([name, str(longest.length), digits(rate / 1e9), digits(intensity)])
    return table(["implementation", "T", "GFLOP/s", "FLOPs a byte"], rows) if rows else []


def ratios(records: list[Record]) -> list[str]:
    """All comparisons in turns."""
    rows = [
        [
            f"{r.subject}: {r.implementation} ÷ {r.reference}",
            str(r.length),
            digits(r.ratio),
            "{} to {}".format(*map(digits, r.ratio_quartiles)),
        ]
        for r in records
        if r.ratio is not None
    ]
    return (
        table(["time of one ÷ time of the other", "T", "median", "quartiles"], rows) if rows else []
    )


def memory(records: list[Record]) -> list[str]:
    """Mebibytes, by the compiler's plan and by the process."""
    subject = "resident memory of attention"
    implementations = names(records, subject)
    lengths = sorted({r.length for r in records if r.subject == subject})
    rows = []
    for T in lengths:
        row = [str(T)]
        for name in implementations:
            planned = series(records, "attention", name, lambda r: r.peak_bytes).get(T)
            grown = series(records, subject, name, lambda r: r.resident_bytes).get(T)
            row.append(" / ".join(digits(x / 2**20) if x else "?" for x in (planned, grown)))
        rows.append(row)
    return table(["T", *implementations], rows) if rows else []


def memory_laws(found: list[Law]) -> list[str]:
    """How both figures of `memory` grow."""
    planned = {law.implementation: law.memory for law in found if law.subject == "attention"}
    grown = {law.implementation: law.resident for law in found if law.resident}
    names = [name for name in planned if planned[name] or name in grown]
    rows = [[name, exponent(planned[name]), exponent(grown.get(name))] for name in names]
    return table(["memory of attention", "planned T^e", "taken T^e"], rows) if rows else []


def crossings(found: list[Crossing]) -> list[str]:
    def where(T: float | None, c: Crossing) -> str:
        if T is None:
            return f"above {c.longest}"
        return digits(T) if c.shortest < T else f"always from {c.shortest}"

    return table(
        ["takes longer", "than", "counted, T", "by the clock, T"],
        ([c.one, c.other, where(c.counted, c), where(c.clock, c)] for c in found),
    )


def goals(found: list[Goal]) -> list[str]:
    return table(
        ["goal", "at least", "measured", ""],
        (
            [
                goal.claim + (f" ({goal.extrapolated})" if goal.extrapolated else ""),
                digits(goal.wanted),
                digits(goal.measured),
                f"{'met' if goal.met else 'missed'}, {goal.measured / goal.wanted:.2f} of it",
            ]
            for goal in found
        ),
    )


def paths(records: list[Record], subject: str) -> list[str]:
    implementations = names(timed(records), subject)
    columns = [series(records, subject, name, lambda r: r.path_length) for name in implementations]
    lengths = sorted({length for column in columns for length in column})
    return table(
        ["T", *implementations],
        ([str(T), *(str(column.get(T, "")) for column in columns)] for T in lengths),
    )


def text(records: list[Record]) -> list[str]:
    """What the terminal shows after the benchmarks."""
    found = analysis.laws(records)
    lines = []
    for subject in dict.fromkeys(r.subject for r in timed(records)):
        lines += ["", subject, *times(records, subject), "", *growth(found, records, subject)]
    for part in (ratios(records), memory(records)):
        lines += ["", *part] if part else []
    return [*lines, "", f"Laws are {analysis.RULE}."] if lines else []


def compared(before: list[Record], now: list[Record]) -> list[str]:
    """Seconds of every benchmark that both runs have, then and now, the largest slowdown first."""

    def key(record: Record) -> tuple:
        return record.subject, record.implementation, record.length, record.reference

    earlier = {key(record): record for record in before}
    pairs = [(earlier[key(r)], r) for r in now if key(r) in earlier and not r.resident_bytes]
    pairs.sort(key=lambda pair: pair[0].seconds / pair[1].seconds)
    return table(
        ["subject, implementation", "T", "before, ms", "now, ms", "now ÷ before"],
        (
            [
                f"{now.subject}, {now.implementation}"
                + (f" in turns with {now.reference}" if now.reference else ""),
                str(now.length),
                digits(1e3 * before.seconds),
                digits(1e3 * now.seconds),
                digits(now.seconds / before.seconds),
            ]
            for before, now in pairs
        ),
    )
