"""After the benchmarks: one table over all lengths, and the law that the times follow.

The growth from T to 2T is the exponent e of time = c T^e that joins the two medians: 2 is the T^2
of attention, less means that something else still takes most of the time (dispatch, softmax, memory).
"""

import math
from statistics import median

import numpy as np
import pytest


@pytest.hookimpl(trylast=True)  # below pytest-benchmark's own tables
def pytest_terminal_summary(terminalreporter, config):
    session = getattr(config, "_benchmarksession", None)
    finished = [bench for bench in session.benchmarks if bench] if session else []
    for bench in finished:
        if "summary" in bench.extra_info:
            terminalreporter.write_line(bench.extra_info["summary"])
    records = [
        bench.extra_info | {"median": bench.stats.median}
        for bench in finished
        if "subject" in bench.extra_info
    ]
    for subject in dict.fromkeys(record["subject"] for record in records):
        terminalreporter.write_sep("-", f"{subject}: median milliseconds, and growth T^e")
        of_subject = [record for record in records if record["subject"] == subject]
        terminalreporter.write_line("\n".join(table(of_subject)))


def table(records: list[dict]) -> list[str]:
    """The lines of one subject's table, from what the harness stored."""
    timed = [record for record in records if "implementation" in record]
    ratios = {record["length"]: record for record in records if "ratio" in record}
    names = list(dict.fromkeys(record["implementation"] for record in timed))
    milliseconds = {name: {} for name in names}
    for record in timed:
        milliseconds[record["implementation"]][record["length"]] = 1e3 * record["median"]
    lengths = sorted({record["length"] for record in records})
    others = [name for name in names if name not in ("jitted", "jax.nn")]

    lines = [
        f"{'T':>5}"
        + "".join(f"{name:>11}{'e':>6}" for name in names)
        + "".join(f"{'jitted÷' + name:>14}" for name in others)
        + f"{'jitted÷jax.nn':>15} [quartiles]"
    ]
    for shorter, length in zip([None, *lengths], lengths, strict=False):
        line = f"{length:5}"
        for name in names:
            line += _number(milliseconds[name].get(length), 11)
            line += _exponent(growth(milliseconds[name], shorter, length))
        for name in others:
            line += _number(ratio(milliseconds, name, length), 14)
        line += in_turns(ratios.get(length))
        lines.append(line)

    lines += [
        "- not measured. e against the length before. jitted÷jax.nn is the median of calls in turns.",
        *busy(records),
        "Law over the longer half of its lengths: "
        + ", ".join(law(name, milliseconds[name]) for name in names),
        "Compiling one shape, not in the times: "
        + ", ".join(f"{name} {compile_time(timed, name)}" for name in names),
    ]
    return lines


def busy(records: list[dict]) -> list[str]:
    """A warning where other programs ran beside: their share of the time is in every figure."""
    load = max(record["load_average"] for record in records)
    cpus = records[0]["cpu_count"]
    if load <= 1.5 * cpus:
        return []
    return [
        f"Busy machine (load {load:.1f} on {cpus} cores): trust only what was called in turns, "
        "and set OPENBLAS_NUM_THREADS=1, or NumPy's threads wait for each other."
    ]


def growth(times: dict[int, float], shorter: int | None, length: int) -> float | None:
    if shorter not in times or length not in times:
        return None
    return math.log(times[length] / times[shorter]) / math.log(length / shorter)


def ratio(times: dict[str, dict], name: str, length: int) -> float | None:
    ours, theirs = times.get("jitted", {}).get(length), times[name].get(length)
    return ours / theirs if ours and theirs else None


def in_turns(record: dict | None) -> str:
    if record is None:
        return f"{'-':>15}"
    low, high = record["ratio_quartiles"]
    return f"{record['ratio']:15.2f} [{low:.2f}, {high:.2f}]"


def law(name: str, times: dict[int, float]) -> str:
    """Least squares through log time against log length: an exponent, and no law from one length."""
    lengths = sorted(times)[len(times) // 2 - (len(times) < 4) :]
    if len(lengths) < 2:
        return f"{name} -"
    exponent, _ = np.polyfit(np.log(lengths), np.log([times[T] for T in lengths]), 1)
    return f"{name} T^{exponent:.2f} ({lengths[0]}..{lengths[-1]})"


def compile_time(timed: list[dict], name: str) -> str:
    seconds = [record["compile_seconds"] for record in timed if record["implementation"] == name]
    return "nothing" if None in seconds else f"{median(seconds):.2f} s"


def _exponent(value: float | None) -> str:
    return f"{'-':>6}" if value is None else f"{value:6.2f}"


def _number(value: float | None, width: int) -> str:
    """Three digits that count: a column runs from microseconds to seconds."""
    if value is None:
        return f"{'-':>{width}}"
    text = f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return f"{text:>{width}}"
