"""The page docs/research/race.md: when each contender of bench.imdb_race passed a bar."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure

from bench.pages.markdown import digits, table
from bench.pages.plots import plain, subplots
from bench.peers.curves import seconds_until

OURS = "the default recipe of `train.imdb`"
NETWORK = f"{OURS} without n-grams"
TUTORIAL = "the tutorial's program"
# The first is what the tutorial prints for its test split.
BARS = (0.8074, 0.88, 0.90)
COLOURS = "#0072b2 #d55e00 #4d9221 #7b4ab5 #e69f00 #777777".split()


@dataclass(frozen=True)
class Times:
    """When the runs that passed a bar did, and when the others were last seen below it."""

    passed: list[float]
    below: list[float]

    @classmethod
    def of(cls, curves: list[list[dict]], bar: float) -> "Times":
        found = [(seconds_until(points, bar), points[-1]["seconds"]) for points in curves]
        return cls([s for s, _ in found if s is not None], [end for s, end in found if s is None])

    def __str__(self) -> str:
        count = len(self.passed) + len(self.below)
        if not self.passed:
            return f"not in {at_least(min(self.below))} s"
        low, high = digits(min(self.passed)), digits(max(self.passed))
        if self.below:
            return f"{len(self.passed)} of {count} runs, {low} to {high}"
        return digits(median(self.passed)) + (f" ({low} to {high})" if count > 1 else "")

    def slower_than(self, other: "Times") -> str:
        """How many times as long as the other, by medians. A run that did not pass would have taken
        longer than it ran.
        """
        if other.below or not other.passed:
            return ""
        ratio = median(self.passed + self.below) / median(other.passed)
        return f"more than {at_least(ratio)}" if self.below else digits(ratio)


def at_least(value: float) -> str:
    """Three digits, never rounded up: what a bound may say."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return digits(math.floor(value / unit) * unit)


def curves_of(results: dict) -> dict[str, list[list[dict]]]:
    """The points of every run of every contender, ours first."""
    names = dict.fromkeys([OURS, *(run["contender"] for run in results["runs"])])
    found = {n: [r["points"] for r in results["runs"] if r["contender"] == n] for n in names}
    return {name: curves for name, curves in found.items() if curves}


def without_compiling(points: list[dict]) -> list[dict]:
    return [point | {"seconds": point["seconds"] - point["compile_seconds"]} for point in points]


def rows(results: dict) -> list[list[str]]:
    curves = curves_of(results)
    # As the tutorial has it (the shortest name), or else what comes nearest.
    yardstick = min((name for name in curves if name.startswith(TUTORIAL)), key=len, default=None)
    shown = {}
    for name, found in curves.items():
        shown[name] = found
        if name in (OURS, NETWORK):
            shown[f"{name}, compiling left out"] = [without_compiling(points) for points in found]
    cells = []
    for name, found in shown.items():
        row = [name, str(len(found))]
        for bar in BARS:
            times = Times.of(found, bar)
            row.append(str(times))
            if yardstick is not None:
                row.append(Times.of(curves[yardstick], bar).slower_than(times))
        cells.append(row)
    header = ["", "runs"]
    for bar in BARS:
        header += [f"{100 * bar:g}%, seconds"] + ["times as fast"] * (yardstick is not None)
    return [header, *cells]


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page."""
    header, *cells = rows(results)
    yield "# The race to a good classifier\n"
    yield (
        f"`{results['command']}` on {results['data']}. Seconds of training until the accuracy on "
        "reviews of movies that are not trained on first passes a bar: the median, and the range "
        "over the seeds. The first bar is the accuracy that the tutorial prints. *Times as fast* "
        f"is against {TUTORIAL} by the medians; *not in N s*: it ran so long and did not pass, so "
        "a ratio is *more than*.\n"
    )
    yield from table(header, cells)
    yield f"\n![validation accuracy against seconds of training]({shown['race']})\n"
    yield (
        "A thin line is a run, a dot a linear model, which is fitted once; dotted, the bars.\n\n"
        "## How to read it\n"
    )
    yield from (f"- {point}" for point in reading(results))


def reading(results: dict) -> Iterator[str]:
    """Yield the points of the list below the figure."""
    runs, machine = results["runs"], results["machine"]
    yield (
        "The clock runs from before the first step; scoring is left out. Of ours the seconds of "
        "the solver for the n-grams count first. Compiling is in, where the row does not say "
        f"otherwise. Ours is scored every {results['every']} steps, later after every twentieth "
        "more: a time is late by so much at most."
    )
    if mine := [run for run in runs if run["contender"] == OURS]:
        yield our_runs(mine, stopped=bool(results.get("seconds")))
    yield from (tutorial_run(run) for run in runs if "log" in run)
    if any(run["contender"] == NETWORK for run in runs):
        yield (
            "*Without n-grams* is the same training: the n-grams are fitted by a solver before it, "
            "and it does not see them. Its clock is less by the solver's seconds."
        )
    yield "The clock of a linear model is the whole of its fit, reading the texts included."
    yield (
        "The seed draws the split, whole movies, the same for all contenders; nothing is chosen on "
        "it, and the test split is not read. Passing is the first look above the bar: with many "
        "looks, luck helps, and it helps whoever looks often."
    )
    loads = [run["load_average"] for run in runs if run.get("load_average") is not None]
    busy = f" Up to {max(loads):.1f} programs ran at once." if loads else ""
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    yield (
        f"{machine['processor']}, {machine['cores']} cores; {versions}; {results['date']}.{busy} "
        "All points: `../results/race.json`."
    )


def our_runs(runs: list[dict], stopped: bool) -> str:
    ends = [run["points"][-1] for run in runs]

    def middle(name: str) -> str:
        return digits(median(end[name] for end in ends))

    prepared = digits(median(run["prepare_seconds"] for run in runs))
    return (
        f"Of a run of ours (medians): before the clock, {prepared} s to draw the split, learn the "
        f"words and cut the texts; then {middle('seconds')} s of "
        f"training{', then it was stopped' if stopped else ' to the end'}, "
        f"{middle('compile_seconds')} s of them to compile; {middle('validation_seconds')} s of "
        f"scoring beside it. At the end {100 * median(end['accuracy'] for end in ends):.2f}% are "
        "right. What is scored are the averaged weights, as the program keeps them."
    )


def tutorial_run(run: dict) -> str:
    log, end = run["log"], run["points"][-1]
    best = max(point["accuracy"] for point in run["points"])
    return (
        f"{run['contender']}, seed {run['seed']}: `{log['command']}`, PyTorch {log['torch']} on "
        f"{log['device']}, {log['threads']} threads; at most {100 * best:.2f}% in "
        f"{digits(end['seconds'])} s, {digits(end['validation_seconds'])} s of scoring beside it. "
        "It cuts its texts before the clock too."
    )


def figures(results: dict) -> dict[str, Figure]:
    """Return validation accuracy against seconds of training."""
    with subplots(1, 1, (8, 5.2)) as (figure, axis):
        for bar in BARS:
            axis.axhline(bar, color="#999999", linestyle=":", linewidth=1)
        for i, (name, curves) in enumerate(curves_of(results).items()):
            colour = COLOURS[i % len(COLOURS)]
            for points in curves:
                x, y = ([point[key] for point in points] for key in ("seconds", "accuracy"))
                marker = "o" if len(points) == 1 else ""
                axis.plot(x, y, color=colour, linewidth=0.8, marker=marker, markersize=4)
            label = name.replace("`", "")
            axis.plot([], [], color=colour, marker=marker, markersize=4, label=label)
        axis.set(xscale="log", xlabel="seconds of training", ylabel="validation accuracy")
        plain(axis.xaxis)
        figure.legend(frameon=False, loc="outside upper left", fontsize=9)
    return {"race": figure}
