"""docs/benchmarks/benchmarks.md: what was measured, in sentences and tables."""

from pathlib import Path

from bench.measure.records import Record, Run
from bench.micro import test_attention as attention
from bench.micro import test_parts as parts
from bench.micro import test_sequences as sequences
from bench.pages import analysis, tables

# Subjects that are their tables alone.
TITLES = {
    "multi-head attention": "Multi-head attention, three ways to write it",
    "layer norm": "Layer norm",
    "feed-forward network": "Feed-forward network",
    "encoder layer": "Encoder layer",
    "encoder layer with its gradient": "Encoder layer with its gradient",
    "tokenizers": "Tokenizers",
}


def page(run: Run, figures: list[Path], docs: Path) -> str:
    """The whole page; `figures` are shown by their path below `docs`."""
    shown = {path.stem.removeprefix("benchmarks-"): path.relative_to(docs) for path in figures}
    laws = analysis.laws(run.records)
    subjects = list(dict.fromkeys(r.subject for r in run.records))
    lines = ["# What it costs", "", *origin(run)]

    def figure(name: str, says: str) -> list[str]:
        return ["", f"![{says}](../{shown[name].as_posix()})"] if name in shown else []

    def subject(name: str) -> list[str]:
        if name not in subjects:
            return []
        found = (
            tables.times(run.records, name),
            tables.growth(laws, run.records, name),
            tables.rates(run.records, name),
        )
        return [line for part in found if part for line in ("", *part)]

    def section(title: str, *parts: list[str]) -> None:
        body = [line for part in parts for line in part]
        if any(line.startswith(("|", "!")) for line in body):
            lines.extend(["", f"## {title}", *body])

    goals = analysis.goals(run.records)
    if goals:
        section("Goals", ["", *tables.goals(goals)])
    section(
        "Attention",
        [
            "",
            f"One example, {attention.N} heads of {attention.H} features, float32. Twice the length is four "
            "times the work.",
        ],
        figure("attention", "time of attention against length, both axes logarithmic"),
        subject("attention"),
        ["", "With its gradient:", *subject("attention with its gradient")]
        if "attention with its gradient" in subjects
        else [],
    )
    section(
        "Loops against compiled code",
        ["", "Called in turns, so that whatever slows the machine slows both; medians."],
        figure("ratios", "time of each implementation over that of transformer_jax"),
        ["", *tables.ratios(run.records)],
    )
    section(
        "Memory of attention",
        [
            "",
            "MiB beside the arguments: the compiler's plan (tracemalloc for NumPy) / what the process took.",
        ],
        figure("memory", "memory against length, both axes logarithmic"),
        ["", *tables.memory(run.records)],
        ["", *tables.memory_laws(laws)],
    )
    found = analysis.crossings(run.records)
    of_parts = [c for c in found if c.subject == "parts of an encoder layer"]
    section(
        "Where attention becomes the larger part of a layer",
        [
            "",
            f"Width D = {parts.D}, F = {parts.F}. Counted, the two products of attention (4 T^2 D) equal the four",
            "projections (8 T D^2) at T = 2 D, and with F = 4 D all the rest of the layer (24 T D^2) at T = 6 D.",
        ],
        figure("parts", "operations and time of the parts of an encoder layer against length"),
        ["", *tables.crossings(of_parts)] if of_parts else [],
        subject("parts of an encoder layer"),
    )
    of_sequences = [c for c in found if c not in of_parts]
    section(
        "Step by step, through a window, all at once",
        [
            "",
            f"Layers of width {sequences.D}; where they cross, and the path between the first token and the last.",
        ],
        figure(
            "sequences", "time and path length of LSTM, convolution and attention against length"
        ),
        ["", *tables.crossings(of_sequences)] if of_sequences else [],
        subject("layers that read a sequence"),
        ["", *tables.paths(run.records, "layers that read a sequence")]
        if "layers that read a sequence" in subjects
        else [],
    )
    for name, title in TITLES.items():
        section(title, subject(name))
    if run.summaries:
        lines += ["", "## Train step", "", *run.summaries]
    return "\n".join([*lines, *reading(), ""])


def origin(run: Run) -> list[str]:
    machine = run.machine
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    threads = ", ".join(f"{name} {n}" for name, n in machine["threads"].items())
    settings = " ".join(f"{name}={value}" for name, value in machine["settings"].items())
    load = max((r.load_average for r in run.records if r.load_average is not None), default=0.0)
    lines = [
        f"Written by `python -m bench.report` from `{run.command}`, {run.date[:10]}.",
        f"{machine['processor']}, {machine['cores']} cores; {', '.join(machine['devices'])};",
        f"Python {machine['python']}, {versions}; threads: {threads}"
        + (f"; {settings}." if settings else "."),
    ]
    if run.failed:
        lines.append(f"**Failed, and left out:** {', '.join(f'`{name}`' for name in run.failed)}.")
    if load > 1.5 * machine["cores"]:
        lines.append(
            f"**The machine was busy** (up to {load:.1f} programs ran at once): trust what was called in turns."
        )
    return lines


def reading() -> list[str]:
    return [
        "",
        "## How to read it",
        "",
        "- Times are medians of at least five calls, each waited for, on random arguments that change from call to",
        "  call, after compiling and two calls to warm up. Nothing is timed before its values agree with the definition.",
        f"- T^e is {analysis.RULE}; the interval holds the exponent with 95% (bootstrap-t, `transformer_jax/costs/power_laws.py`).",
        "  Two lengths have an exponent and no interval.",
        "- T* = b/c is where the quadratic part of t = a + b T + c T^2 overtakes the linear one (least squares of the",
        '  relative errors, no coefficient negative, all lengths); "fit off by" is its largest relative error.',
        "- FLOPs are counted, matrix products alone. Peak bytes are XLA's plan for one call, temporaries and result; of",
        "  NumPy and Python what tracemalloc sees. On a CPU the plan leaves out what a YNNPACK fusion allocates inside it,",
        "  logits and weights of attention among it: what the process took is the figure to trust.",
        "- Crossings are between measured lengths, on straight lines in log-log.",
        "- All records: `../results/bench.json`.",
    ]


def reduced(run: Run) -> dict:
    """What docs/results/bench.json holds."""
    from dataclasses import asdict

    records = [Record(**rounded(asdict(record))) for record in run.records]

    def brief(record: Record) -> dict:
        return {name: value for name, value in asdict(record).items() if value is not None}

    return {
        "command": run.command,
        "date": run.date,
        "machine": run.machine,
        # Of the rounded records, so that they can be made again from them.
        "goals": [rounded(asdict(goal) | {"met": goal.met}) for goal in analysis.goals(records)],
        "crossings": [rounded(asdict(found)) for found in analysis.crossings(records)],
        "laws": [rounded(asdict(law)) for law in analysis.laws(records)],
        "records": [brief(record) for record in records],
        "summaries": run.summaries,
        **({"failed": list(run.failed)} if run.failed else {}),
    }


def rounded(value):
    """Six digits: what lies behind them is noise, and makes two runs hard to compare."""
    if isinstance(value, float):
        # JSON has no infinity: the interval of two points has no ends.
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
