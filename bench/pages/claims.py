"""A claim with its measurement, and the page that shows all of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from bench.pages.markdown import how_measured, table

INK, GRID = "#444444", "#e6e6e6"
COLOURS = ("#1f5fa8", "#d1495b", "#3a7d44", "#b8860b")


@dataclass(frozen=True)
class Claim:
    """A claim and its measurement: a table, and a figure where it shows more."""

    name: str  # names its figure and its entry in the JSON file
    title: str
    text: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    draw: Callable[[Figure], None] | None = None
    size: tuple[float, float] = (10.0, 3.6)  # inches


def cell(value: Any) -> str:
    """Format a cell: a float with three significant digits, counts and words as they are."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value == 0:
        return "0"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def entry(claim: Claim) -> dict[str, Any]:
    """Return the entry of a claim in the JSON file: all of its section but the figure."""
    return {
        "title": claim.title,
        "text": claim.text,
        "figure": claim.draw is not None,
        "header": list(claim.header),
        "rows": [list(row) for row in claim.rows],
    }


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page from the contents of the JSON file."""
    claims = results["claims"]
    yield "# Claims, measured\n"
    yield (
        "This page measures statements that texts about transformers make. It is for readers who "
        "want to see whether and how far they hold. Each statement is also tested, with smaller "
        "sizes, in `tests/bench/test_claims_report.py`.\n"
    )
    yield from (f"- [{claim['title']}](#{name})" for name, claim in claims.items())
    for name, claim in claims.items():
        yield f'\n<a id="{name}"></a>\n\n## {claim["title"]}\n\n{claim["text"]}\n'
        if claim["figure"]:
            yield f"![{claim['title']}](../figures/claims-{name}.png)\n"
        yield from table(claim["header"], ([cell(value) for value in row] for row in claim["rows"]))
    yield from origin(results)


def origin(results: dict[str, Any]) -> list[str]:
    """Return the last block of the page: the command, the versions and the machine."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("jax", "flax", "numpy"))
    return how_measured(
        "claims.json",
        [f"{results['command']}  # {results['date']}, {results['seconds']} s"],
        [
            f"- {versions}, Python {machine['python']}, {', '.join(machine['devices'])}, "
            f"{machine['cores']} cores"
        ],
    )


def figure(claim: Claim) -> Figure:
    """Draw the figure of a claim in the common style."""
    drawn = Figure(figsize=claim.size, dpi=130, layout="constrained")  # not pyplot: no global state
    claim.draw(drawn)
    for axes in drawn.axes:
        axes.tick_params(colors=INK, labelsize=9)
        for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
            text.set_color(INK)
    return drawn


def plain(axes, title: str, x: str, y: str) -> None:
    """Set the title, labels and grid of a line drawing."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
