"""The page docs/benchmarks/attention.md and its figures, from results of bench.attention."""

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from bench.measure.records import Record, rounded
from bench.pages.analysis import seconds
from bench.pages.benchmarks import taken_bytes
from bench.pages.markdown import digits, milliseconds, origin, quotient, table
from bench.pages.plots import Panel, plot
from bench.peers import contestants as who
from bench.peers import mask_kinds
from bench.peers.contestants import OURS

SAYS = {
    "full": "no mask",
    "causal": "causal mask",
    "window": f"window of {mask_kinds.WINDOW} keys on each side",
    "padded": f"padding mask, one key in {mask_kinds.REAL} is a token",
    "packed": f"{mask_kinds.TEXTS} packed texts, each query sees its own",
}
PASSES = {False: "Forward", True: "With the gradient"}


def page(results: dict, shown: dict[str, str]) -> list[str]:
    """Return the lines of the page; `shown` are the figures' paths, by name."""
    lines = [
        "# Attention compared with other implementations",
        "",
        "This page compares the time and memory of attention in this library with `jax.nn`, Flax "
        "and PyTorch, by length, mask, dtype and pass. It is for readers who choose an "
        "implementation, or a length that a machine can handle.",
        "",
        f"The tables are for one example with {who.N} heads of {who.H} features. All "
        "implementations compute the same numbers in interleaved calls. A ratio is the time of "
        f"`{OURS}` over that of another implementation within a round, as the median and, in "
        f"brackets, the quartiles; below 1 `{OURS}` is faster. GFLOP/s count only visible keys. A "
        "dash means that the measurement was left out (see *Left out*).",
    ]
    for dtype in dtypes(results):
        lines += ["", f"## {dtype}"]
        if path := shown.get(f"attention-time-{dtype}"):
            lines += ["", f"![time of attention against length, {dtype}]({path})"]
        for kind in mask_kinds.KINDS:
            for gradient in PASSES:
                lines += section(results["cells"], dtype, kind, gradient)
    lines += left_out(results["cells"])
    lines += memory(results["memory"], shown) + reading(results)
    return lines + origin("attention.json", results["runs"])


def dtypes(results: dict) -> list[str]:
    return list(dict.fromkeys(cell["dtype"] for cell in results["cells"]))


def chosen_cells(cells: Sequence[dict], **wanted) -> tuple[list[dict], list[str]]:
    """Return the timed cells with these values, and the names of all who were timed in them."""
    chosen = [
        cell
        for cell in cells
        if "seconds" in cell and all(cell[name] == value for name, value in wanted.items())
    ]
    return chosen, list(dict.fromkeys(name for cell in chosen for name in cell["seconds"]))


def section(cells: Sequence[dict], dtype: str, kind: str, gradient: bool) -> list[str]:
    chosen, names = chosen_cells(cells, dtype=dtype, kind=kind, gradient=gradient)
    if not chosen:
        return []
    chosen.sort(key=lambda cell: cell["length"])
    peers = [name for name in names if name != OURS]
    times = table(
        ["T", *(f"{name}, ms" for name in names), "GFLOP/s", "chosen", "rounds"],
        (
            [cell["length"], *(milliseconds(cell["seconds"].get(name)) for name in names),
             cell["flops_per_second"][OURS] / 1e9, cell["plan"], cell["rounds"]]
            for cell in chosen
        ),
    )  # fmt: skip
    ratios = table(
        ["T", *(f"÷ {name}" for name in peers)],
        (
            [cell["length"], *(quotient(cell["ratios"].get(name)) for name in peers)]
            for cell in chosen
        ),
    )
    return ["", f"### {PASSES[gradient]}, {SAYS[kind]}", "", *times, "", *ratios]


def left_out(cells: Sequence[dict]) -> list[str]:
    rows = [
        [
            f"{cell['kind']}, {cell['dtype']}, {PASSES[cell['gradient']].lower()}",
            cell["length"],
            name,
            reason,
        ]
        for cell in cells
        for name, reason in cell["left_out"].items()
    ]
    if not rows:
        return []
    header = ["", "T", "implementation", "reason"]
    return ["", "## Left out", "", *table(header, rows)]


def memory(found: Sequence[dict], shown: dict[str, str]) -> list[str]:
    if not found:
        return []
    lines = [
        "",
        "## Memory",
        "",
        "The growth of the resident memory of a process by one call, in MiB; float32, no mask. "
        f"Brackets show the ratio to the memory of `{OURS}` at that length.",
    ]
    if path := shown.get("attention-memory"):
        lines += ["", f"![memory of attention against length]({path})"]
    for gradient, title in PASSES.items():
        taken = {
            (row["name"], row["length"]): row["bytes"]
            for row in found
            if row["gradient"] == gradient
        }
        ours = {T: taken_bytes for (name, T), taken_bytes in taken.items() if name == OURS}
        names = list(dict.fromkeys(name for name, _ in taken))

        def text(name: str, T: int, taken=taken, ours=ours) -> str:
            if (name, T) not in taken:
                return "-"
            times = f" ({digits(taken[name, T] / ours[T])})" if name != OURS and T in ours else ""
            return digits(taken[name, T] / 2**20) + times

        lengths = sorted({T for _, T in taken})
        if lengths:
            rows = ([T, *(text(name, T) for name in names)] for T in lengths)
            lines += ["", f"{title}:", "", *table(["T", *names], rows)]
        growth = [
            f"{digits(ours[2 * T] / ours[T])} from {T}" for T in sorted(ours) if 2 * T in ours
        ]
        if growth:
            lines += ["", f"Memory of `{OURS}` at twice the length, ratio: {', '.join(growth)}."]
    return lines


def figures(results: dict) -> dict[str, Figure]:
    """Draw times by length, one row for each kind of mask, and memory by length."""
    drawn = {}
    for dtype in dtypes(results):
        records = [
            Record(kind_of(cell), name, cell["length"], s, cell["rounds"])
            for cell in chosen_cells(results["cells"], dtype=dtype)[0]
            for name, s in cell["seconds"].items()
        ]
        kinds = [k for k in mask_kinds.KINDS if any(r.subject.startswith(k) for r in records)]
        if kinds:
            rows = [
                [
                    Panel(s, "milliseconds", records, s, seconds, 1e3)
                    for s in (kind, kind + GRADIENT)
                ]
                for kind in kinds
            ]
            drawn[f"attention-time-{dtype}"] = plot(rows, height=4.2)
    records = [
        Record(
            PASSES[row["gradient"]], row["name"], row["length"], 0.0, 1, resident_bytes=row["bytes"]
        )
        for row in results["memory"]
    ]
    if records:
        memory_of = partial(Panel, ylabel="MiB of resident memory", records=records)
        row = [
            memory_of(subject, subject=subject, value=taken_bytes, unit=2**-20, slopes=False)
            for subject in dict.fromkeys(r.subject for r in records)
        ]
        drawn["attention-memory"] = plot([row])
    return drawn


GRADIENT = ", with its gradient"


def kind_of(cell: dict) -> str:
    return cell["kind"] + (GRADIENT if cell["gradient"] else "")


def reading(results: dict) -> list[str]:
    loads = [cell["load_average"] for cell in results["cells"]]
    loads = [load for load in loads if load is not None]
    busy = []
    if loads:
        busy = [
            f"- While it ran, {min(loads):.1f} to {max(loads):.1f} programs were running, this one "
            "included."
        ]
    tolerance = ", ".join(f"{rounded(x):g} in {name}" for name, x in results["tolerance"].items())
    return [
        "",
        "## How to read it",
        "",
        "- `transformer_jax` chooses its implementation itself; the column *chosen* shows which. "
        "`reference` is the same function, told to store all logits.",
        "- `jax.nn` gets `is_causal` or `local_window_size`, and `PyTorch` "
        "(`scaled_dot_product_attention`) gets `is_causal`. For other masks they get a boolean "
        "array that is made beforehand, and so do `flax.nnx` and `PyTorch, written out` (product, "
        "softmax, product) for every mask. Making that array is not timed.",
        "- Inputs are random and change from call to call. An implementation is timed only after "
        "its values agree with the definition in float64, written out: the largest error over the "
        f"largest value is at most {tolerance}, for the output and every gradient.",
        f"- A call that would need more than {results['limits']['bytes'] / 1e9:.0f} GB for logits "
        f"and weights, or {results['limits']['seconds']:.0f} s, is left out.",
        *busy,
    ]
