"""The page docs/research/race.md and its figure, from results of bench.imdb_race."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure

from bench.pages.markdown import digits, how_measured, table
from bench.pages.plots import plain, subplots
from bench.peers.curves import seconds_until

OURS = "the default recipe of `train.imdb`"
NETWORK = f"{OURS} without n-grams"
TUTORIAL = "the tutorial's program"
# The first is the accuracy that the tutorial prints for its test split.
BARS = (0.8074, 0.88, 0.90)
COLOURS = "#0072b2 #d55e00 #4d9221 #7b4ab5 #e69f00 #777777".split()


@dataclass(frozen=True)
class Times:
    """The times at which runs passed a bar, and the times at which the others ended below it."""

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
        """Format how many times as long as the other this took, by medians.

        A run that did not pass would have taken longer than it ran.
        """
        if other.below or not other.passed:
            return ""
        ratio = median(self.passed + self.below) / median(other.passed)
        return f"more than {at_least(ratio)}" if self.below else digits(ratio)


def at_least(value: float) -> str:
    """Format a lower bound with three digits, never rounded up."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return digits(math.floor(value / unit) * unit)


def curves_of(results: dict) -> dict[str, list[list[dict]]]:
    """Return the points of every run of every contender, ours first."""
    names = dict.fromkeys([OURS, *(run["contender"] for run in results["runs"])])
    found = {n: [r["points"] for r in results["runs"] if r["contender"] == n] for n in names}
    return {name: curves for name, curves in found.items() if curves}


def without_compiling(points: list[dict]) -> list[dict]:
    return [point | {"seconds": point["seconds"] - point["compile_seconds"]} for point in points]


def rows(results: dict) -> list[list[str]]:
    curves = curves_of(results)
    # The tutorial's own settings have the shortest name; else take the nearest.
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
        "This page compares how long programs train until they classify held-out movie reviews "
        "well. It is for readers who choose a model by its training time.\n"
    )
    yield (
        "The table shows the seconds of training until the accuracy on held-out movies first "
        "passes a bar, as the median and the range over the seeds. The first bar is the accuracy "
        f"that the tutorial prints. *Times as fast* compares medians with {TUTORIAL}. *Not in N s* "
        "means that a run of N seconds did not pass; a ratio to it is *more than* a number.\n"
    )
    yield from table(header, cells)
    yield f"\n![validation accuracy against seconds of training]({shown['race']})\n"
    yield (
        "A thin line is a run, and a dot is a linear model, which is fitted once. Dotted lines are "
        "the bars.\n\n## How to read it\n"
    )
    yield from (f"- {point}" for point in reading(results))
    yield from how_measured(
        "race.json", [f"{results['command']}  # {results['date']}"], origin(results)
    )


def origin(results: dict) -> Iterator[str]:
    """Yield list items of the data, and of the machine and the versions."""
    machine = results["machine"]
    loads = [run["load_average"] for run in results["runs"] if run.get("load_average") is not None]
    busy = f"; up to {max(loads):.1f} programs ran at once" if loads else ""
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    yield f"- Data: {results['data']}"
    yield f"- {machine['processor']}, {machine['cores']} cores; {versions}{busy}"


def reading(results: dict) -> Iterator[str]:
    """Yield the points of the list below the figure."""
    runs = results["runs"]
    yield (
        "The clock starts before the first step and excludes evaluation. For our recipe it begins "
        "with the seconds of the solver for the n-grams. Compile time is included unless the row "
        f"says otherwise. Our recipe is evaluated every {results['every']} steps, later "
        "whenever the number of steps has grown by a twentieth. A time is late by at most that "
        "much."
    )
    if mine := [run for run in runs if run["contender"] == OURS]:
        yield our_runs(mine, stopped=bool(results.get("seconds")))
    yield from (tutorial_run(run) for run in runs if "log" in run)
    if any(run["contender"] == NETWORK for run in runs):
        yield (
            "*Without n-grams* is the network of the same training. A solver fits the n-grams "
            "before, and the network is trained without them. Its clock excludes the solver's "
            "seconds."
        )
    yield "The clock of a linear model covers its whole fit, including tokenization."
    yield (
        "The seed draws the split, whole movies, the same for all contenders. Nothing is selected "
        "on it, and the test split is not read. A bar is passed at the first evaluation above it. "
        "Chance therefore helps a program that is evaluated often."
    )


def our_runs(runs: list[dict], stopped: bool) -> str:
    ends = [run["points"][-1] for run in runs]

    def middle(name: str) -> str:
        return digits(median(end[name] for end in ends))

    prepared = digits(median(run["prepare_seconds"] for run in runs))
    return (
        f"A run of our recipe takes (medians) {prepared} s before the clock starts, to draw the "
        f"split, learn the vocabulary and tokenize the texts. Then follow {middle('seconds')} s of "
        f"training{', when it was stopped' if stopped else ' to the end'}; "
        f"{middle('compile_seconds')} s of these are compile time. Evaluation takes another "
        f"{middle('validation_seconds')} s. The last accuracy is "
        f"{100 * median(end['accuracy'] for end in ends):.2f}%. The evaluated weights are "
        "the averaged ones, which the training program saves."
    )


def tutorial_run(run: dict) -> str:
    log, end = run["log"], run["points"][-1]
    best = max(point["accuracy"] for point in run["points"])
    return (
        f"{run['contender']}, seed {run['seed']}: `{log['command']}`, PyTorch {log['torch']} on "
        f"{log['device']}, {log['threads']} threads. Its highest accuracy is {100 * best:.2f}%, in "
        f"{digits(end['seconds'])} s of training and {digits(end['validation_seconds'])} s of "
        "evaluation. It too tokenizes its texts before the clock starts."
    )


def figures(results: dict) -> dict[str, Figure]:
    """Draw the held-out accuracy against seconds of training."""
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
