"""The page docs/benchmarks/plan.md, and the limits of the choice, from results of bench.plan."""

from collections.abc import Sequence
from functools import partial
from itertools import product, starmap
from math import log, prod

import numpy as np

from bench.pages.markdown import digits, milliseconds, origin, table
from bench.peers import mask_kinds
from transformer_jax.attention.kernels.dispatch import IMPLEMENTATIONS, choose_on_cpu
from transformer_jax.attention.kernels.thresholds import Case, KernelFrom, Limits
from transformer_jax.runtime.processor import Instructions

HEADINGS: dict[Instructions, str] = {
    "amx": "with AMX", "avx512": "with AVX-512", "other": "without AVX-512",
}  # fmt: skip
PASSES = {False: "forward", True: "with the gradient"}
# That a limit may be. Below, the reference and blocks take about as long.
POWERS = tuple(2**i for i in range(17, 30))
KERNEL_POWERS = tuple(2**i for i in range(8, 21))
WITHIN = 1.05  # the goal: the time of the chosen implementation over that of the fastest


def chosen(row: dict, instructions: Instructions, *, kernel: bool = True) -> str:
    """Return the implementation that is chosen for a row, with or without the kernel in C++."""
    case = Case(instructions, row["dtype"] == "bfloat16", row["gradient"], has_mask(row))
    return choose_on_cpu(case, sizes=sizes(row), has_kernel=kernel and "cpu" in row["seconds"])


def sizes(row: dict) -> tuple[int, int, int, int]:
    return row["batch"], row["heads"], row["queries"], row["keys"]


def has_mask(row: dict) -> bool:
    return row["kind"] != "full"


def of_group(rows: Sequence[dict], dtype: str, gradient: bool, masked: bool) -> list[dict]:
    """Return the rows that one of the limits is fitted to."""
    group = (dtype, gradient, masked)
    return [row for row in rows if (row["dtype"], row["gradient"], has_mask(row)) == group]


def slowdown(row: dict, instructions: Instructions, *, kernel: bool = True) -> float:
    """Return the time of the chosen implementation over that of the fastest one."""
    seconds = {name: s for name, s in row["seconds"].items() if kernel or name != "cpu"}
    return seconds[chosen(row, instructions, kernel=kernel)] / min(seconds.values())


def fitted(rows: Sequence[dict]) -> Limits:
    """Return the limits, powers of two, with which the rows take the least time without the kernel.

    That is the least product of their slowdowns. Of equal limits the lowest are returned.
    """
    ratios = [log(row["seconds"]["reference"] / row["seconds"]["blockwise"]) for row in rows]
    logits = np.array([prod(sizes(row)[1:]) for row in rows])
    batches = np.array([row["batch"] for row in rows])
    alone = batches == 1
    by_reference, by_blocks = np.maximum(ratios, 0), np.maximum(np.negative(ratios), 0)

    def loss(limits: Limits) -> float:
        fits = logits < np.where(alone, limits.one_example, limits.of_several)
        fits &= batches * logits < limits.together
        return np.where(fits, by_reference, by_blocks).sum()

    return min(starmap(Limits, product(POWERS, repeat=3)), key=loss)


def fitted_kernel(rows: Sequence[dict], instructions: Instructions) -> KernelFrom:
    """Return the numbers of logits of a head, powers of two, from which to use the kernel in C++.

    The squared logarithms of the slowdowns then have the least sum, so that one large slowdown
    counts more than several small ones. Below these numbers the library's limits choose between the
    reference and blocks.
    """
    # A single query has a limit of its own.
    rows = [row for row in rows if "cpu" in row["seconds"] and row["queries"] > 1]

    def log_slowdown(row: dict, least: int) -> float:
        uses_kernel = least <= prod(sizes(row)[2:])
        name = "cpu" if uses_kernel else chosen(row, instructions, kernel=False)
        return log(row["seconds"][name] / min(row["seconds"].values()))

    def loss(alone: bool, least: int) -> float:
        return sum(log_slowdown(row, least) ** 2 for row in rows if (row["batch"] == 1) is alone)

    return KernelFrom(*(min(KERNEL_POWERS, key=partial(loss, alone)) for alone in (True, False)))


def page(results: dict, shown: dict[str, str]) -> list[str]:
    """Return the lines of the page."""
    lines = [
        "# The choice between the implementations of attention",
        "",
        "`dot_product_attention` chooses between the reference, which stores all logits, blocks, "
        "which do not, and a kernel in C++. This page has the time of each by size, and of the "
        "chosen one in ratio to the fastest. It is for readers who want to choose themselves "
        "(`implementation=`), or who run on another processor.",
        "",
        "The thresholds in `transformer_jax/attention/kernels/thresholds.py` are set from these "
        "tables. A dash means that the implementation did not take the arguments when they were "
        "measured. *Without it* is the same ratio where the kernel in C++ is not built.",
    ]
    for machine in results["machines"]:
        heading = f"## {machine['processor']}, {HEADINGS[machine['instructions']]}"
        lines += ["", heading, "", *summary(machine), *limits(machine)]
        for kind in mask_kinds.KINDS:
            for gradient in PASSES:
                lines += section(machine, kind, gradient)
        lines += origin("plan.json", machine["runs"])
    return lines


def summary(machine: dict) -> list[str]:
    rows = machine["rows"]
    texts = []
    for kernel, says in ((True, "With the kernel"), (False, "Without it")):
        ratios = [slowdown(row, machine["instructions"], kernel=kernel) for row in rows]
        near = sum(ratio <= WITHIN for ratio in ratios)
        texts.append(
            f"{says}, the chosen implementation takes at most {WITHIN:g} times as long as the "
            f"fastest in {near} of {len(rows)} rows, and at most {digits(max(ratios))} times."
        )
    return [" ".join(texts)]


def limits(machine: dict) -> list[str]:
    """Return a table of the limits that fit the rows of one machine best."""
    cells = []
    for dtype, gradient, masked in product(("float32", "bfloat16"), PASSES, (False, True)):
        if rows := of_group(machine["rows"], dtype, gradient, masked):
            found = (*fitted(rows), *fitted_kernel(rows, machine["instructions"]))
            powers = (f"2^{limit.bit_length() - 1}" for limit in found)
            cells.append([dtype, PASSES[gradient], "yes" if masked else "no", *powers])
    header = ["dtype", "pass", "mask", "of the only example", "of each of several"]
    header += ["of all together", "kernel, one example", "kernel, several"]
    return [
        "",
        "The numbers of logits from which blocks are used in place of the reference, and, in the "
        "last columns, those of a head from which the kernel in C++ is used. They are fitted to "
        "the rows of this processor:",
        "",
        *table(header, cells),
    ]


def section(machine: dict, kind: str, gradient: bool) -> list[str]:
    rows = [r for r in machine["rows"] if (r["kind"], r["gradient"]) == (kind, gradient)]
    if not rows:
        return []
    rows.sort(key=lambda row: (row["dtype"], row["batch"], row["keys"], row["queries"]))
    names = [name for name in IMPLEMENTATIONS if any(name in row["seconds"] for row in rows)]
    instructions = machine["instructions"]
    cells = (
        [row["dtype"], row["batch"], row["queries"], row["keys"],
         *(milliseconds(row["seconds"].get(name)) for name in names),
         chosen(row, instructions), slowdown(row, instructions),
         slowdown(row, instructions, kernel=False)]
        for row in rows
    )  # fmt: skip
    header = ["dtype", "B", "T", "S", *(f"{name}, ms" for name in names)]
    header += ["chosen", "÷ fastest", "without it"]
    return ["", f"### {kind.capitalize()}, {PASSES[gradient]}", "", *table(header, cells)]
