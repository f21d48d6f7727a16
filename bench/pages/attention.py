"""docs/benchmarks/attention.md: what bench/attention.py measured, in figures and tables."""

from pathlib import Path

from bench.measure.records import Record
from bench.pages import figures
from bench.pages.benchmarks import rounded
from bench.pages.tables import digits, table
from bench.peers import contestants as who
from bench.peers import mask_kinds
from bench.peers.contestants import OURS
from transformer_jax.runtime.files import write_text

SAYS = {
    "full": "every key",
    "causal": "the keys up to its own",
    "window": f"{mask_kinds.WINDOW} keys on each side",
    "padded": f"one key in {mask_kinds.REAL}, the rest is padding",
    "packed": f"its own text of {mask_kinds.TEXTS} in a row",
}
PASSES = {False: "Forward", True: "With the gradient"}


def write_page(results: dict, docs: Path) -> list[Path]:
    """The page and its figures; the paths that were written."""
    drawn = draw(results, docs / "figures")
    shown = [f"../{path.relative_to(docs).as_posix()}" for path in drawn]
    text = docs / "benchmarks/attention.md"
    text.parent.mkdir(parents=True, exist_ok=True)
    write_text(text, "\n".join(lines(results, shown)) + "\n")
    return [text, *drawn]


def lines(results: dict, shown: list[str]) -> list[str]:
    page = ["# Attention beside its peers", "", *origin(results["runs"])]
    page += [
        "",
        f"One example, {who.N} heads of {who.H} features. All are called in turns and compute the same numbers; a ratio",
        f"is the time of `{OURS}` over that of the other within a round, the median and in brackets the quartiles:",
        "below 1 it is the faster one. GFLOP/s count what is visible alone. Dashes stand for what was left out.",
    ]
    for dtype in dict.fromkeys(cell["dtype"] for cell in results["cells"]):
        figure = next((path for path in shown if path.endswith(f"time-{dtype}.svg")), None)
        page += ["", f"## {dtype}"]
        page += ["", f"![time of attention against length, {dtype}]({figure})"] if figure else []
        for kind in mask_kinds.KINDS:
            for gradient, title in PASSES.items():
                page += section(results["cells"], dtype, kind, gradient, title)
    page += left_out(results["cells"])
    page += short(results["short"])
    page += memory(results["memory"], shown)
    return [*page, *reading(results)]


def section(cells: list[dict], dtype: str, kind: str, gradient: bool, title: str) -> list[str]:
    chosen = [
        cell
        for cell in cells
        if (cell["dtype"], cell["kind"], cell["gradient"]) == (dtype, kind, gradient)
    ]
    chosen = sorted((cell for cell in chosen if "seconds" in cell), key=lambda cell: cell["length"])
    if not chosen:
        return []
    names = list(dict.fromkeys(name for cell in chosen for name in cell["seconds"]))
    times = table(
        ["T", *(f"{name}, ms" for name in names), "GFLOP/s", "chosen", "rounds"],
        (
            [
                str(cell["length"]),
                *(milliseconds(cell["seconds"].get(name)) for name in names),
                digits(cell["flops_per_second"][OURS] / 1e9),
                cell["plan"],
                str(cell["rounds"]),
            ]
            for cell in chosen
        ),
    )
    peers = [name for name in names if name != OURS]
    ratios = table(
        ["T", *(f"÷ {name}" for name in peers)],
        (
            [str(cell["length"]), *(quotient(cell["ratios"].get(name)) for name in peers)]
            for cell in chosen
        ),
    )
    return ["", f"### {title}, a query sees {SAYS[kind]}", "", *times, "", *ratios]


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else digits(1e3 * seconds)


def quotient(ratio: dict | None) -> str:
    """`0.61 [0.58, 0.66]`"""
    if ratio is None:
        return "-"
    low, high = (digits(end) if end is not None else "?" for end in ratio["quartiles"])
    return f"{digits(ratio['median'])} [{low}, {high}]"


def left_out(cells: list[dict]) -> list[str]:
    rows = [
        [
            f"{cell['kind']}, {cell['dtype']}, {PASSES[cell['gradient']].lower()}",
            str(cell["length"]),
            name,
            reason,
        ]
        for cell in cells
        for name, reason in cell["left_out"].items()
    ]
    return ["", "## Left out", "", *table(["", "T", "who", "why"], rows)] if rows else []


def short(cells: list[dict]) -> list[str]:
    """Whether the plan draws its line where the blocks begin to pay."""
    chosen = [cell for cell in cells if "seconds" in cell]
    if not chosen:
        return []
    page = [
        "",
        "## From how many logits on blocks are faster",
        "",
        "B examples of T tokens, float32, no mask; `transformer_jax/attention/kernels/dispatch.py` draws the line. Where the last column is",
        "below 1, blocks are faster.",
        "",
    ]
    rows = [
        [
            str(cell["logits"]),
            str(cell["batch"]),
            str(cell["length"]),
            "gradient" if cell["gradient"] else "forward",
            cell["plan"],
            quotient(cell["ratios"].get("reference")),
            quotient(cell.get("ratios of blockwise", {}).get("reference")),
        ]
        for cell in sorted(chosen, key=lambda cell: (cell["gradient"], cell["logits"]))
    ]
    header = ["logits", "B", "T", "pass", "chosen", "chosen ÷ reference", "blockwise ÷ reference"]
    return [*page, *table(header, rows)]


def memory(found: list[dict], shown: list[str]) -> list[str]:
    if not found:
        return []
    figure = next((path for path in shown if path.endswith("memory.svg")), None)
    page = [
        "",
        "## Memory",
        "",
        "MiB by which one call raises the resident memory of a process of its own; float32, no mask. In brackets, how",
        f"many times what `{OURS}` takes at that length.",
    ]
    page += ["", f"![memory of attention against length]({figure})"] if figure else []
    for gradient, title in PASSES.items():
        chosen = [row for row in found if row["gradient"] == gradient]
        ours = {row["length"]: row["bytes"] for row in chosen if row["name"] == OURS}
        names = list(dict.fromkeys(row["name"] for row in chosen))
        taken = {(row["name"], row["length"]): row["bytes"] for row in chosen}

        def text(name: str, T: int, taken=taken, ours=ours) -> str:
            if (name, T) not in taken:
                return "-"
            times = f" ({digits(taken[name, T] / ours[T])})" if name != OURS and T in ours else ""
            return digits(taken[name, T] / 2**20) + times

        rows = [
            [str(T), *(text(name, T) for name in names)]
            for T in sorted({row["length"] for row in chosen})
        ]
        if rows:
            page += ["", f"{title}:", "", *table(["T", *names], rows)]
        growth = [
            f"{digits(ours[2 * T] / ours[T])} from {T}" for T in sorted(ours) if 2 * T in ours
        ]
        if growth:
            page += ["", f"`{OURS}` at twice the length takes so many times: {', '.join(growth)}."]
    return page


def draw(results: dict, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {
        f"time-{dtype}": figures.by_kind(
            [record(cell, name) for cell in of_dtype for name in cell["seconds"]],
            list(mask_kinds.KINDS),
        )
        for dtype in dict.fromkeys(cell["dtype"] for cell in results["cells"])
        if (of_dtype := [c for c in results["cells"] if c["dtype"] == dtype and "seconds" in c])
    }
    if results["memory"]:
        drawn["memory"] = figures.resident(
            [
                Record(PASSES[row["gradient"]], row["name"], row["length"], 0.0, 1, resident_bytes=row["bytes"])
                for row in results["memory"]
            ]
        )  # fmt: skip
    return [
        figures.save(figure, folder / f"attention-{name}.svg") for name, figure in drawn.items()
    ]


def record(cell: dict, name: str) -> Record:
    """For the figures: a subject is a kind of mask and a pass."""
    subject = cell["kind"] + (", with its gradient" if cell["gradient"] else "")
    return Record(subject, name, cell["length"], cell["seconds"][name], cell["rounds"])


def origin(runs: list[dict]) -> list[str]:
    """Where the numbers come from: one line a run, and the machine of the last."""
    found = [f"Written by `{run['command']}`, {run['date']}, {run['seconds']} s, seed {run['seed']}." for run in runs if "machine" in run]  # fmt: skip
    machine = next((run["machine"] for run in reversed(runs) if "machine" in run), None)
    if machine is None:
        return found
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    threads = ", ".join(f"{name} {n}" for name, n in machine["threads"].items())
    settings = " ".join(f"{name}={value}" for name, value in machine["settings"].items())
    return [
        *found,
        f"{machine['processor']}, {machine['cores']} cores; {', '.join(machine['devices'])};",
        f"Python {machine['python']}, {versions}; threads: {threads}"
        + (f"; {settings}." if settings else "."),
    ]


def reading(results: dict) -> list[str]:
    loads = [cell["load_average"] for part in ("cells", "short") for cell in results[part]]
    loads = [load for load in loads if load is not None]
    tolerance = ", ".join(f"{rounded(x):g} in {name}" for name, x in results["tolerance"].items())
    return [
        "",
        "## How to read it",
        "",
        "- `transformer_jax` chooses by itself (the column says what); `reference` is the same function told to store all",
        "  logits. `jax.nn` has `is_causal` and `local_window_size`, `PyTorch` (`scaled_dot_product_attention`) `is_causal`;",
        "  where they have no name for a mask they get a boolean array made beforehand, `flax.nnx` and `PyTorch, written out`",
        "  (product, softmax, product) always. Making that array is not timed.",
        "- Inputs are random and change from call to call. Before it is timed, what a contestant computes is compared with",
        f"  the definition in float64, written out: largest error over largest value at most {tolerance}, of the",
        "  output and of every gradient.",
        f"- A call that would need more than {results['limits']['bytes'] / 1e9:.0f} GB for logits and weights, or "
        f"{results['limits']['seconds']:.0f} s, is left out.",
        *([f"- Load of the machine while it ran: {min(loads):.1f} to {max(loads):.1f} programs, this one included."] if loads else []),
        "- All numbers: `../results/attention.json`.",
    ]  # fmt: skip
