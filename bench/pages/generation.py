"""The page docs/benchmarks/generation.md, from results of bench.generation."""

from collections.abc import Sequence

from bench.pages.markdown import digits, milliseconds, origin, quotient, table

OURS, THEIRS, FLOOR = "transformer_jax", "Hugging Face", "reading the weights"
SHORT = f"{OURS} in bfloat16"


def page(results: dict, shown: dict[str, str]) -> list[str]:
    """Return the lines of the page."""
    return [
        "# What generating a token costs",
        "",
        "This page shows the time to generate a token with and without the key/value cache, and "
        "compares it with Hugging Face. It is for readers who generate text with this library on "
        "a CPU.",
        *main_number(results["decode"]),
        *(law_section(results["law"], results["laws"]) if results["law"] else []),
        *(decode_section(results["decode"]) if results["decode"] else []),
        *origin("generation.json", [results]),
    ]


def main_number(rows: Sequence[dict]) -> list[str]:
    found = next((row for row in rows if row["batch"] == 1 and THEIRS in row["ratios"]), None)
    if found is None:
        return []
    return [
        "",
        "For one text at a time, a model of GPT-2's size takes "
        f"{milliseconds(found['seconds'][OURS])} ms per token, {quotient(found['ratios'][THEIRS])} "
        f"of the time of {THEIRS} (median and quartiles).",
    ]


def law_section(rows: Sequence[dict], laws: dict[str, dict]) -> list[str]:
    counted = {
        name: f"{law['a'] / 1e6:.3g} + {law['b'] / 1e6:.3g} T + {law['c'] / 1e6:.2g} T^2"
        for name, law in laws.items()
    }
    grows = {
        name: f"T^{digits(law['exponent of the time'])} from T = {law['from']} on"
        for name, law in laws.items()
    }

    def cells(row: dict) -> list:
        cached, uncached = row["seconds"]["cached"], row["seconds"].get("uncached")
        times = "-" if uncached is None else uncached / cached
        flops = (row[f"{name}_flops"] / 1e6 for name in ("cached", "uncached"))
        return [row["length"], milliseconds(cached), milliseconds(uncached), times, *flops]

    header = ["T", "cached, ms", "uncached, ms", "uncached ÷ cached"]
    return [
        "",
        "## With and without the cache",
        "",
        "The cost of token T after T - 1 others, in a model of 4 layers of width 256. By operation "
        f"count, a step with the cache needs {counted['cached']} million operations, and "
        f"processing the whole text anew needs {counted['uncached']} million. The measured time "
        f"grows as {grows['cached']} with the cache, and as {grows['uncached']} without. Each is "
        "timed alone, with the weights in the processor's cache where they fit.",
        "",
        *table([*header, "cached, MFLOP", "uncached, MFLOP"], map(cells, rows)),
    ]


def decode_section(rows: Sequence[dict]) -> list[str]:
    first = rows[0]
    header = [
        "B",
        *(f"{name}, ms a token" for name in first["seconds"]),
        "tokens a second",
        *(f"÷ {name}" for name in first["ratios"]),
        "prompt, tokens a second",
        *(f"prompt ÷ {name}" for name in first["prompt_ratios"]),
    ]

    def cells(row: dict) -> list:
        return [
            row["batch"],
            *map(milliseconds, row["seconds"].values()),
            row["tokens_per_second"][OURS],
            *map(quotient, row["ratios"].values()),
            row["prompt_tokens_per_second"][OURS],
            *map(quotient, row["prompt_ratios"].values()),
        ]

    floor = (
        f"*{FLOOR.capitalize()}* is the time of one pass over the weights in memory, the least "
        "that a step can take. "
    )
    return [
        "",
        "## GPT-2's size, compared with Hugging Face",
        "",
        f"12 layers of width 768, 50,257 tokens, random weights in float32 where nothing else is "
        f"said; {first['tokens']} tokens after a prompt of {first['prompt']}, greedy, in batches "
        "of B texts. "
        + (floor if FLOOR in first["seconds"] else "")
        + f"Ratios are the time of `{OURS}` over that of the other; below 1 `{OURS}` is faster.",
        "",
        *table(header, map(cells, rows)),
    ]
