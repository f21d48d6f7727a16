"""The page docs/benchmarks/benchmarks.md and its figures, from results of bench.report."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from bench.measure.records import Record, Run, kept, rounded
from bench.pages import analysis
from bench.pages.analysis import Crossing, Goal, Law, names, seconds, series, timed
from bench.pages.markdown import described, digits, how_measured, table
from bench.pages.plots import COLOURS, Panel, plain, plot, subplots
from transformer_jax.costs.power_laws import PowerLaw

# Subjects whose sections are only tables.
TITLES = {
    "multi-head attention": "Multi-head attention, written in three ways",
    "layer norm": "Layer norm",
    "feed-forward network": "Feed-forward network",
    "encoder layer": "Encoder layer",
    "encoder layer with its gradient": "Encoder layer with its gradient",
    "tokenizers": "Tokenizers",
}
ATTENTION, GRADIENT = "attention", "attention with its gradient"
COST = ("Python loops", "NumPy", "transformer_jax", "blockwise")  # the figure of the README
MEMORY = "resident memory of attention"
PARTS, SEQUENCES = "parts of an encoder layer", "layers that read a sequence"


def planned_bytes(record: Record) -> int | None:
    return record.peak_bytes


def taken_bytes(record: Record) -> int | None:
    return record.resident_bytes


def path_length(record: Record) -> int | None:
    return record.path_length


# Figures ------------------------------------------------------------------------------------------


def figures(results: dict) -> dict[str, Figure]:
    """Draw every figure that the records are enough for, by name."""
    records = kept(results).records
    panels: dict[str, list[Panel]] = {}
    with_times = names(timed(records), ATTENTION)
    if with_times:
        subjects = [s for s in (ATTENTION, GRADIENT) if names(timed(records), s)]
        panels["attention"] = [Panel(s, "milliseconds", records, s, seconds, 1e3) for s in subjects]
    if few := [r for r in records if r.implementation in COST and r.subject == ATTENTION]:
        title = "one example, 8 heads of 64, forward"
        panels["cost"] = [Panel(title, "milliseconds", few, ATTENTION, seconds, 1e3)]
    planned = [r for r in records if r.subject == ATTENTION and r.how == "compiled"]
    if planned or names(records, MEMORY):
        by_plan, beside = "planned by the compiler", "MiB beside the arguments"
        by_process, taken = "taken by the process", "MiB of resident memory"
        panels["memory"] = [
            Panel(by_plan, beside, planned, ATTENTION, planned_bytes, 2**-20),
            Panel(by_process, taken, records, MEMORY, taken_bytes, 2**-20),
        ]
    if names(records, PARTS):
        by_count, by_clock = (marks(records, PARTS, by) for by in ("counted", "clock"))
        panels["parts"] = [
            Panel("counted", "GFLOP", records, PARTS, lambda r: r.flops, 1e-9, marks=by_count),
            Panel("by the clock", "milliseconds", records, PARTS, seconds, 1e3, marks=by_clock),
        ]
    if names(records, SEQUENCES):
        by_clock, path = marks(records, SEQUENCES, "clock"), "path from the first token to the last"
        each, unit = "one layer of each", "milliseconds"
        panels["sequences"] = [
            Panel(each, unit, records, SEQUENCES, seconds, 1e3, marks=by_clock),
            Panel(path, "layers or steps", records, SEQUENCES, path_length, slopes=False),
        ]
    drawn = {name: plot([row]) for name, row in panels.items()}
    if in_turns := [r for r in records if r.subject == ATTENTION and r.ratio is not None]:
        drawn["ratios"] = draw_ratios(in_turns)
    return {f"benchmarks-{name}": figure for name, figure in drawn.items()}


def marks(records: Sequence[Record], subject: str, by: str) -> list[tuple[float | None, str]]:
    """Return where attention overtakes each other layer, with its colour.

    The length is None where attention always or never takes longer.
    """
    found = [c for c in analysis.crossings(records) if c.subject == subject]
    lengths = [getattr(crossing, by) for crossing in found]
    return [
        (T if T is not None and crossing.shortest < T else None, COLOURS[crossing.other])
        for crossing, T in zip(found, lengths, strict=True)
    ]


def draw_ratios(records: Sequence[Record]) -> Figure:
    """Draw the time of each implementation over that of transformer_jax, from interleaved calls."""
    found = names(records, ATTENTION)
    markers = dict(zip(sorted({r.length for r in records}), "osD^vPX*", strict=False))
    with subplots(1, 1, (7.5, 1.3 + 0.6 * len(found))) as (figure, axis):
        axis.axvline(1, color=COLOURS["transformer_jax"])
        for r in records:
            of_this = [other for other in records if other.implementation == r.implementation]
            shift = 0.34 * (of_this.index(r) - (len(of_this) - 1) / 2)
            y = len(found) - found.index(r.implementation) - shift
            low, high = r.ratio_quartiles
            axis.errorbar(
                r.ratio, y, xerr=[[r.ratio - low], [high - r.ratio]], marker=markers[r.length],
                color=COLOURS[r.implementation], markersize=6,
            )  # fmt: skip
            axis.annotate(
                digits(r.ratio), (high, y), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=8,
            )  # fmt: skip
        for T, marker in markers.items():
            axis.plot([], [], marker, color="#555555", label=f"T = {T}")
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
        axis.set(
            xscale="log", yticks=range(len(found), 0, -1), yticklabels=found,
            xlabel="times as long as transformer_jax, interleaved calls (median, quartiles)",
        )  # fmt: skip
        plain(axis.xaxis)
        axis.margins(x=0.12)
    return figure


# Tables -------------------------------------------------------------------------------------------


def by_length(columns: dict[str, dict[int, Any]], unit: str = "T", suffix: str = "") -> list[str]:
    """Return a table with a row for each length and a column for each implementation."""
    lengths = sorted({length for column in columns.values() for length in column})
    rows = ([T, *(column.get(T) for column in columns.values())] for T in lengths)
    return table([unit, *(name + suffix for name in columns)], rows)


def times(records: Sequence[Record], subject: str) -> list[str]:
    """Return a table of median milliseconds, with a row for each length."""
    columns = {
        name: {T: 1e3 * s for T, s in series(records, subject, name, seconds).items()}
        for name in names(timed(records), subject)
    }
    return by_length(columns, "words" if subject == "tokenizers" else "T", ", ms")


def growth(found: Sequence[Law], records: Sequence[Record], subject: str) -> list[str]:
    """Return a table of the laws of a subject's implementations."""
    header = ["implementation", "time T^e", "lengths", "T* = b/c", "fit off by", "FLOPs T^e"]
    rows = []
    for law in found:
        if law.subject == subject:
            compiling = series(records, subject, law.implementation, lambda r: r.compile_seconds)
            quadratic = law.quadratic
            rows.append(
                [
                    law.implementation,
                    exponent(law.time),
                    f"{law.lengths[0]} to {law.lengths[-1]}" if law.time else "",
                    quadratic and quadratic.crossover,
                    f"{100 * quadratic.worst:.0f}%" if quadratic else "",
                    exponent(law.flops),
                    exponent(law.memory),
                    max(compiling.values(), default=None),
                ]
            )
    return table([*header, "peak bytes T^e", "compiling, s"], rows)


def exponent(law: PowerLaw | None) -> str:
    """Format an exponent as `1.97 [1.90, 2.04]`; a fit to two lengths has no interval."""
    if law is None:
        return ""
    low, high = law.interval
    ends = f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else " (two lengths)"
    return f"{law.exponent:.2f}" + (ends if high - low > 5e-3 else "")


def rates(records: Sequence[Record], subject: str) -> list[str]:
    """Return a table of operations per second and per byte that must be moved.

    Each implementation is shown at its longest length.
    """
    rows = []
    for name in names(timed(records), subject):
        chosen = [r for r in timed(records) if (r.subject, r.implementation) == (subject, name)]
        r = max(chosen, key=lambda r: r.length)
        if r.flops:
            rows.append([name, r.length, r.flops / r.seconds / 1e9, r.flops / r.bytes_moved])
    return table(["implementation", "T", "GFLOP/s", "FLOPs a byte"], rows)


def ratios(records: Sequence[Record]) -> list[str]:
    """Return a table of all interleaved comparisons."""
    return table(
        ["time of one ÷ time of the other", "T", "median", "quartiles"],
        (
            [f"{r.subject}: {r.implementation} ÷ {r.reference}", r.length, r.ratio,
             "{} to {}".format(*map(digits, r.ratio_quartiles))]
            for r in records if r.ratio is not None
        ),
    )  # fmt: skip


def memory(records: Sequence[Record]) -> list[str]:
    """Return a table of mebibytes, by the compiler's plan and by the process."""
    columns = {}
    for name in names(records, MEMORY):
        planned = series(records, ATTENTION, name, planned_bytes)
        taken = series(records, MEMORY, name, taken_bytes)
        columns[name] = {
            T: " / ".join(digits(x / 2**20) if x else "?" for x in (planned.get(T), taken.get(T)))
            for T in sorted(r.length for r in records if r.subject == MEMORY)
        }
    return by_length(columns)


def memory_laws(found: Sequence[Law]) -> list[str]:
    """Return a table of the growth of both figures of `memory`."""
    planned = {law.implementation: law.memory for law in found if law.subject == ATTENTION}
    grown = {law.implementation: law.resident for law in found if law.resident}
    return table(
        ["memory of attention", "planned T^e", "taken T^e"],
        ([name, exponent(planned[name]), exponent(grown.get(name))]
         for name in planned if planned[name] or name in grown),
    )  # fmt: skip


def crossings(found: Sequence[Crossing]) -> list[str]:
    """Return a table of where one part takes longer than another, by count and by time."""

    def where(T: float | None, c: Crossing) -> str:
        if T is None:
            return f"above {c.longest}"
        return digits(T) if c.shortest < T else f"always from {c.shortest}"

    return table(
        ["takes longer", "than", "counted, T", "by the clock, T"],
        ([c.one, c.other, where(c.counted, c), where(c.clock, c)] for c in found),
    )


def goals(found: Sequence[Goal]) -> list[str]:
    """Return a table of goals and measurements."""
    return table(
        ["goal", "times faster, at least", "measured", ""],
        (
            [goal.claim + (f" ({goal.extrapolated})" if goal.extrapolated else ""),
             float(goal.wanted), goal.measured,
             f"{'met' if goal.met else 'missed'}: {goal.measured / goal.wanted:.2f} times the goal"]
            for goal in found
        ),
    )  # fmt: skip


def paths(records: Sequence[Record]) -> list[str]:
    """Return a table of the layers or steps between the first token and the last."""
    implementations = names(timed(records), SEQUENCES)
    return by_length({n: series(records, SEQUENCES, n, path_length) for n in implementations})


def text(records: Sequence[Record]) -> list[str]:
    """Return the lines that the terminal shows after the benchmarks."""
    found = analysis.laws(records)
    lines = []
    for subject in dict.fromkeys(r.subject for r in timed(records)):
        lines += ["", subject, *times(records, subject), "", *growth(found, records, subject)]
    for part in (ratios(records), memory(records)):
        lines += ["", *part] if part else []
    return [*lines, "", f"Laws are {analysis.RULE}."] if lines else []


# The page -----------------------------------------------------------------------------------------


class Page:
    """The lines of the page; a section without a table or figure is left out."""

    def __init__(self, run: Run, shown: dict[str, str]):
        self.records, self.sizes, self.shown = run.records, run.sizes, shown
        self.laws = analysis.laws(run.records)
        self.lines = [
            "# The cost of attention",
            "",
            "This page shows how the time, operations and memory of attention and of other layers "
            "grow with the length of a text. It is for readers who decide between layers, or "
            "between this library and plain NumPy, `jax.nn`, Flax or PyTorch. [Attention by mask "
            "and length](attention.md) has long texts and another machine, [GPU](gpu.md) an H100.",
            *warnings(run),
        ]

    def section(self, title: str, *parts: list[str]) -> None:
        body = [line for part in parts if part for line in ("", *part)]
        if any(line.startswith(("|", "!")) for line in body):
            self.lines += ["", f"## {title}", *body]

    def about(self, subject: str, text: str) -> list[str]:
        """Return the sentence about a subject's sizes."""
        return [text.format(**self.sizes[subject])] if subject in self.sizes else []

    def figure(self, name: str, says: str) -> list[str]:
        path = self.shown.get(f"benchmarks-{name}")
        return [f"![{says}]({path})"] if path else []

    def subject(self, name: str) -> list[str]:
        """Return the times, laws and rates of a subject."""
        if not names(self.records, name):
            return []
        found = (
            times(self.records, name),
            growth(self.laws, self.records, name),
            rates(self.records, name),
        )
        return [line for part in found if part for line in ("", *part)][1:]


def page(results: dict, shown: dict[str, str]) -> list[str]:
    """Return the lines of the page; `shown` holds the paths of the figures by name."""
    run = kept(results)
    page, records = Page(run, shown), run.records
    attention_sections(page)
    found = analysis.crossings(records)
    page.section(
        "The length from which attention is the larger part of a layer",
        page.about(
            PARTS,
            "Width D = {D}, F = {F}. By operation count, the two products of attention (4 T^2 D) "
            "equal the four projections (8 T D^2) at T = 2 D, and with F = 4 D all the rest of the "
            "layer (24 T D^2) at T = 6 D.",
        ),
        page.figure("parts", "operations and time of the parts of an encoder layer against length"),
        crossings([c for c in found if c.subject == PARTS]),
        page.subject(PARTS),
    )
    page.section(
        "Recurrence, convolution and self-attention",
        page.about(
            SEQUENCES,
            "Layers of width {D}: their times, the lengths where they cross, and the number of "
            "layers or steps on the path between the first token and the last.",
        ),
        page.figure(
            "sequences", "time and path length of LSTM, convolution and attention against length"
        ),
        crossings([c for c in found if c.subject == SEQUENCES]),
        page.subject(SEQUENCES),
        paths(records),
    )
    for name, title in TITLES.items():
        page.section(title, page.subject(name))
    if run.summaries:
        page.lines += ["", "## Train step", "", *run.summaries]
    command = f"python -m bench.report  # from {run.command}, {run.date[:10]}"
    return [*page.lines, *READING, *how_measured("bench.json", [command], described(run.machine))]


def attention_sections(page: Page) -> None:
    records, gradient = page.records, page.subject(GRADIENT)
    figure = page.figure("cost", "time of attention by loops, NumPy and this library, by length")
    page.lines += ["", *figure] if figure else []
    page.section("Goals", goals(analysis.goals(records)))
    page.section(
        "Attention",
        page.about(
            ATTENTION,
            "One example, {N} heads of {H} features, float32. Doubling the length quadruples the "
            "arithmetic; measured times also depend on caches and on the implementation. The "
            "columns are explained under [How to read it](#how-to-read-it).",
        ),
        page.figure("attention", "time of attention against length, both axes logarithmic"),
        page.subject(ATTENTION),
        ["With its gradient:", "", *gradient] if gradient else [],
    )
    page.section(
        "Loops against compiled code",
        ["Medians of alternating calls, so that a slow moment of the machine affects both."],
        page.figure("ratios", "time of each implementation over that of transformer_jax"),
        ratios(records),
    )
    page.section(
        "Memory of attention",
        [
            "MiB in addition to the arguments: planned by XLA (tracemalloc for NumPy) / measured "
            "growth of the process.",
        ],
        page.figure("memory", "memory against length, both axes logarithmic"),
        memory(records),
        memory_laws(page.laws),
    )


def warnings(run: Run) -> list[str]:
    load = max((r.load_average for r in run.records if r.load_average is not None), default=0.0)
    lines = []
    if run.failed:
        failed = ", ".join(f"`{name}`" for name in run.failed)
        lines += ["", f"**Failed, and left out:** {failed}."]
    if load > 1.5 * run.machine["cores"]:
        lines += [
            "",
            f"**The machine was busy** (up to {load:.1f} programs ran at once): trust the "
            "interleaved comparisons.",
        ]
    return lines


READING = f"""
## How to read it

- Times are medians of at least five calls, each waited for, on random arguments that change from
  call to call. Compilation and two warm-up calls come first. An implementation is timed only after
  its values agree with the definition.
- T^e is {analysis.RULE}. The
  interval is the 95% confidence interval of the exponent (bootstrap-t,
  `transformer_jax/costs/power_laws.py`). A fit to two lengths has an exponent but no interval.
- T* = b/c is where the quadratic part of t = a + b T + c T^2 overtakes the linear one (least
  squares of the relative errors, no coefficient negative, all lengths). "Fit off by" is the largest
  relative error of that fit.
- FLOPs are counted, matrix products only. Peak bytes are XLA's plan for one call, temporaries and
  result; for NumPy and Python they are the peak of tracemalloc. On a CPU the plan leaves out what a
  YNNPACK fusion allocates inside, such as logits and weights of attention. Trust the growth of the
  process instead.
- Crossings lie between measured lengths, on straight lines in log-log.""".split("\n")


def reduced(run: Run) -> dict:
    """Return the contents of docs/results/bench.json."""
    records = [Record(**rounded(asdict(record))) for record in run.records]
    return {
        "command": run.command,
        "date": run.date,
        "machine": run.machine,
        "sizes": run.sizes,
        # Computed from the rounded records, so that they can be reproduced from the file.
        "goals": [asdict(goal) | {"met": goal.met} for goal in analysis.goals(records)],
        "crossings": [asdict(found) for found in analysis.crossings(records)],
        "laws": [asdict(law) for law in analysis.laws(records)],
        "records": [
            {name: value for name, value in asdict(record).items() if value is not None}
            for record in records
        ],
        "summaries": run.summaries,
        **({"failed": list(run.failed)} if run.failed else {}),
    }


def compared(before: Sequence[Record], now: Sequence[Record]) -> list[str]:
    """Return a table of the times of every benchmark in both runs, the largest slowdown first."""

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
                + (f" interleaved with {now.reference}" if now.reference else ""),
                now.length,
                1e3 * before.seconds,
                1e3 * now.seconds,
                now.seconds / before.seconds,
            ]
            for before, now in pairs
        ),
    )
