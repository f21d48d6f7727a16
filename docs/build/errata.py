"""Writes docs/research/errata.md: what the source documents print, and what they should.

    python -m docs.build.errata

Everything but the notes is computed: the library goes through each worked example, and what differs
from print is listed with both numbers.
"""

import argparse
import re
from pathlib import Path

import numpy as np

from transformer_jax.walkthrough.worked import EXAMPLES, steps
from transformer_jax.walkthrough.worked.compare import Compared, as_number, compare, find

ERRATA = Path(__file__).parents[1] / "research" / "errata.md"

HEAD = """# Errata of the source documents

The documents that this library follows work many examples by hand, and some of the printed numbers
are wrong. Search this page for the number that you cannot reproduce. What should stand there was
computed by this library: `python -m transformer_jax walk --worked ID` shows the way to it, step by
step.

This page is written by `python -m docs.build.errata`, and a test keeps it so. A number counts as
right when it is off by no more than one unit of its last printed place.
"""

# What is wrong in words and formulas rather than in numbers.
WORDS = [
    (
        "Understanding Transformers and Self-Attention (2025), section 15.1; attention deep dive "
        "in NumPy",
        "Self-attention is called permutation-invariant.",
        "It is permutation-equivariant: tokens in another order give the same outputs in that "
        "order, Attention(P X) = P Attention(X). What is invariant is what forgets the order of "
        "the outputs, such as their mean. In equation 58 of the first, softmax(P^T Q K^T P) is "
        "P^T softmax(Q K^T) P, not softmax(Q K^T).",
    ),
    (
        "Understanding Transformers and Self-Attention (2025), section 17.2.4",
        "x + Sublayer(LayerNorm(x)) is printed as post-LN, Sublayer(LayerNorm(x)) + x as pre-LN, "
        "and BERT is listed under pre-LN.",
        "Both formulas are pre-LN. Post-LN, of the 2017 model, is LayerNorm(x + Sublayer(x)), and "
        "BERT is post-LN. Here: `StackConfig(norm=\"post\")` and `norm=\"pre\"`.",
    ),
    (
        "The Transformers, a complete architectural breakdown (M. P. Singh, VizuaraAI), section "
        "1.14",
        "After dropout each row of the weights is said to be a probability distribution still.",
        "Its sum is 1 on average only: the rows of listing 1.13 sum to 2.0, 0.7554, 0.9870, "
        "1.4480 and 1.0264, as is printed below them.",
    ),
    (
        "Mathematics of Transformers: A Tutorial (E. Rezaei, 2026), section 11.4",
        "The ids of one sentence, padded to max_length=20, are printed as 19.",
        "One zero is missing; mask and token types below them have 20.",
    ),
]  # fmt: skip

# Where the right numbers cannot be known, and two that are printed contradict each other.
INSTEAD = {"kid_smiles": "and merged"}


def errata() -> str:
    """The whole page."""
    lines = [HEAD, "## In words", ""]
    for where, says, correct in WORDS:
        lines += [f"- **{where}.** {says} {correct}"]
    wrong = {name: example for name, example in EXAMPLES.items() if not example["agrees"]}
    for title in dict.fromkeys(_title(example) for example in wrong.values()):
        lines += ["", f"## {title}"]
        for name, example in wrong.items():
            if _title(example) == title:
                lines += _entry(name, example)
    lines += ["", "## Right as printed"]
    right = {name: example for name, example in EXAMPLES.items() if example["agrees"]}
    for title in dict.fromkeys(_title(example) for example in right.values()):
        lines += ["", f"{title}:", ""]
        lines += [_right(name, one) for name, one in right.items() if _title(one) == title]
    return "\n".join(lines) + "\n"


def _right(name: str, example: dict) -> str:
    note = f" {example['note']}" if example["note"] else ""
    return f"- `{name}`, {_place(example)}: {example['what']}.{note}"


def _entry(name: str, example: dict) -> list[str]:
    """One example: what and where, why, the wrong numbers and the right ones, and what of it is
    right.
    """
    compared = compare(name)
    wrong = {key: one for key, one in compared.items() if one.wrong.any()}
    rows = [
        row
        for key, one in wrong.items()
        if one.step.name == key
        or one.step.name not in wrong  # not "Q_row0" where all of Q is shown
        for row in _rows(name, key, one)
    ]
    if not rows:  # the document prints a formula: what it gives, beside what it should
        rows = _formula_rows(name, example)
    lines = [
        "",
        f"### {example['what']}",
        "",
        f"`{name}`, {_place(example)}. {example['note']}",
        "",
    ]
    lines += ["```text", *_table(rows), "```"]
    right = [key for key, one in compared.items() if not one.wrong.any()]
    if right:
        lines += ["", f"Right as printed: {', '.join(right)}."]
    return lines


def _rows(name: str, key: str, one: Compared) -> list[tuple[str, str, list[str]]]:
    """(label, kind, cells) of every row with a wrong number in it."""
    decimals = EXAMPLES[name].get("decimals", {}).get(key)
    printed = np.atleast_2d(np.array(one.printed, dtype=object))
    computed, wrong = np.atleast_2d(one.computed), np.atleast_2d(one.wrong)
    rows = []
    for t in np.flatnonzero(wrong.any(axis=-1)):
        label = key
        if len(printed) > 1:
            names = one.step.rows
            label = f"{key}, {names[t] if names else f'row {t + 1}'}"
        rows.append((label, "printed", [as_printed(x, decimals) for x in printed[t]]))
        likes = printed[t] if len(printed[t]) == len(computed[t]) else [None] * len(computed[t])
        cells = [as_computed(x, like) for x, like in zip(computed[t], likes, strict=True)]
        rows.append(("", INSTEAD.get(name, "should be"), cells))
    return rows


def _formula_rows(name: str, example: dict) -> list[tuple[str, str, list[str]]]:
    told = steps(name)
    return [
        (key, find(told, key)[0].equation, [as_computed(x) for x in find(told, key)[1]])
        for key in example["recomputed"]
    ]


def _table(rows: list[tuple[str, str, list[str]]]) -> list[str]:
    label, kind = (max(len(row[i]) for row in rows) for i in (0, 1))
    cell = max(len(text) for row in rows for text in row[2])
    return [
        f"{name:<{label}}  {what:<{kind}}  " + "  ".join(f"{text:>{cell}}" for text in cells)
        for name, what, cells in rows
    ]


def as_printed(x: str | int | float, decimals: int | None = None) -> str:
    """As it stands in the document, zeros at the end included."""
    return f"{x:.{decimals}f}" if isinstance(x, float) and decimals is not None else str(x)


def as_computed(x: float, like: str | int | float | None = None) -> str:
    """Three or four digits, in the unit of what is printed; whole numbers whole, and 0 for what is
    as good as it.
    """
    if abs(x) < 1e-9:
        return "0"
    if isinstance(like, str) and like.startswith("2pi*"):
        return f"2pi*{x / as_number('2pi*1'):.4g}"
    return str(round(x)) if float(x).is_integer() else f"{x:.{4 if abs(x) >= 0.01 else 3}g}"


def _title(example: dict) -> str:
    return example["source"].partition(", file ")[0]


def _place(example: dict) -> str:
    """Section or listing, or what there is of it; another document by its title."""
    place = re.sub(r"^, file \d+(, )?", "", example["source"].removeprefix(_title(example)))
    for number in re.findall(r"file (\d+)", place):
        title = next(
            _title(other) for other in EXAMPLES.values() if f", file {number}" in other["source"]
        )
        place = place.replace(f"file {number}", title)
    return place or "the worked example"


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m docs.build.errata", description=__doc__).parse_args()
    ERRATA.write_text(errata(), encoding="utf-8")
    print(f"wrote {ERRATA}")
