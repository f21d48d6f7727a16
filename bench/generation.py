"""What writing a token costs: with the cache and without it, by length and by batch, beside Hugging
Face.

    python -m bench.generation                      everything, some ten minutes
    python -m bench.generation --parts law          of a small model, the cost of a token by the length before it
    python -m bench.generation --parts decode       GPT-2's size, random weights, after a prompt of 64 tokens
    python -m bench.generation --page               nothing is measured: docs/benchmarks/generation.md from the numbers

A cached step reads every weight once, whatever it computes, so one text at a time can go no faster
than memory gives the weights: that floor is measured in the same rounds. Hugging Face
(`transformers` on PyTorch, eager attention left to its own choice) is beside it where both are
installed. The numbers go to docs/results/generation.json, the tables to
docs/benchmarks/generation.md.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench.measure import machine
from bench.measure.turns import summary, take_turns
from bench.pages.attention import origin, quotient
from bench.pages.benchmarks import rounded
from bench.pages.results import add_output, rewrite, write_page, write_results
from bench.pages.tables import digits, table
from transformer_jax.costs.jaxpr import count
from transformer_jax.costs.power_laws import fit_power_law, fit_quadratic
from transformer_jax.generation.generate import generate
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.nn.config import StackConfig
from transformer_jax.runtime.errors import InputError

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

PROGRAM = "python -m bench.generation"
PARTS = ("law", "decode")
OURS, THEIRS, FLOOR = "transformer_jax", "Hugging Face", "reading the weights"
SMALL = LanguageModelConfig(
    256, 4096, decoder=StackConfig(4, 256, 4, 1024, norm="pre", final_norm=True), positions="rotary"
)
GPT2 = LanguageModelConfig(
    50_257,
    1024,
    decoder=StackConfig(
        12, 768, 12, 3072, norm="pre", final_norm=True, activation="gelu_tanh", dropout_rate=0.0
    ),
)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
UNCACHED = 1024  # the longest text that is read anew for every token
BATCHES, PROMPT, NEW = (1, 8, 32), 64, 32
ATTEMPTS = 10  # to measure a token that takes less than two calls of the prompt differ by


def split(config: LanguageModelConfig):
    return nnx.split(LanguageModel(config, rngs=nnx.Rngs(0)), nnx.Param)


def law(config: LanguageModelConfig, lengths: Sequence[int], seconds: float) -> list[dict]:
    """A token after T - 1 others: one step of a cache of T slots, and the whole text read anew."""
    graph, params = split(config)
    rows = []
    for T in lengths:
        cache = nnx.merge(graph, params).start(1, T)
        cache = jax.tree.map(lambda x, T=T: x + (T - 1) if x.dtype == jnp.int32 else x, cache)
        token, every = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool)

        def cached(params, cache, token=token, every=every):
            return nnx.merge(graph, params).next_logits(token, every, cache)

        def whole(params, implementation=None, T=T):
            tokens = jnp.zeros((1, T), jnp.int32)
            return nnx.merge(graph, params)(tokens, last=True, implementation=implementation)

        row = {
            "length": T,
            "cached_flops": count(cached, params, cache).flops,
            # Every pair, as the reference computes them: how many blocks are visited is known when
            # they run.
            "uncached_flops": count(partial(whole, implementation="reference"), params).flops,
        }
        step = jax.jit(cached, donate_argnums=1)
        state = [cache]

        def call(step=step, state=state):
            # The same slot again: the length stays what it was.
            lengths = jnp.copy(state[0].lengths)
            logits, new = step(params, state[0])
            state[0] = type(new)(new.layers, lengths, new.window, new.memory, new.is_memory)
            return logits.block_until_ready()

        calls: dict[str, Callable] = {"cached": call}
        if T <= UNCACHED:
            again = jax.jit(whole)
            calls["uncached"] = lambda again=again: again(params).block_until_ready()
        for one in calls.values():
            one()
        times = take_turns(calls, seconds, least=7)
        row |= {"seconds": summary(times, "cached")["seconds"]}
        rows.append(row)
        shown = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in row["seconds"].items())
        print(f"T={T}: {shown}", flush=True)
    return rows


def laws_of(rows: list[dict]) -> dict[str, dict]:
    """Counted operations of a token as a + b T + c T^2; of the time, the exponent over the longer
    half of the lengths.
    """
    found = {}
    for name in ("cached", "uncached"):
        counted = [(row["length"], row[f"{name}_flops"]) for row in rows]
        timed = [(row["length"], row["seconds"][name]) for row in rows if name in row["seconds"]]
        longer = timed[len(timed) // 2 :]
        flops = fit_quadratic(*zip(*counted, strict=True))
        found[name] = {
            "a": flops.a,
            "b": flops.b,
            "c": flops.c,
            "worst": flops.worst,
            "exponent of the time": fit_power_law(*zip(*longer, strict=True)).exponent,
            "from": longer[0][0],
        }
    return found


def floor(params) -> Callable[[], object]:
    """Reads every weight once: the sum of all of them, compiled."""
    leaves = jax.tree.leaves(params)
    # Equal parts for the cores, each summed in one pass.
    total = jax.jit(lambda leaves: sum(leaf.sum() for leaf in leaves))
    return lambda: total(leaves).block_until_ready()


def hugging_face(batch: int, new: int) -> Callable[[int], object]:
    """Greedy tokens of a GPT-2 of the same size with random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(pad_token_id=0, eos_token_id=None)).eval()
    prompt = torch.zeros((batch, PROMPT), dtype=torch.long)
    options = {"do_sample": False, "attention_mask": torch.ones_like(prompt)}

    def call(number: int):
        with torch.inference_mode():
            return model.generate(prompt, max_new_tokens=number, min_new_tokens=number, **options)

    return call


def timed(
    calls: dict[str, Callable], writers: Iterable[str], new: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of every call, and of the floor and each writer's token, round by round.

    More rounds follow until a token's median is positive: the difference of two short calls may be
    below their noise.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ATTEMPTS):
        for name, found in take_turns(calls, 0.0, least=rounds).items():
            times[name] += found
        by = {FLOOR: times[FLOOR]}
        for name in writers:
            pairs = zip(times[f"{name}, text"], times[f"{name}, prompt"], strict=True)
            by[name] = [(text - first) / new for text, first in pairs]
        slowest = {name: median(seconds) for name, seconds in by.items()}
        if min(slowest.values()) > 0:
            return times, by
    lost = min(slowest, key=slowest.get)
    raise InputError(
        f"--tokens {new}, --rounds {rounds}: the time of {lost} is lost in the noise; raise either"
    )


def decode(
    config: LanguageModelConfig, batches: Sequence[int], new: int, rounds: int
) -> list[dict]:
    """Seconds of a token after the prompt: of 1 + `new` tokens less those of 1, over `new`."""
    graph, params = split(config)
    model, rows = nnx.merge(graph, params), []
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401

        with_theirs = True
    except ModuleNotFoundError:
        with_theirs = False
    for batch in batches:
        prompt = np.zeros((batch, PROMPT), np.int32)

        def ours(number: int, prompt=prompt):
            return generate(model, prompt, max_tokens=number).tokens.block_until_ready()

        writers = {OURS: ours} | ({THEIRS: hugging_face(batch, new)} if with_theirs else {})
        calls: dict[str, Callable] = {FLOOR: floor(params)}
        for name, write in writers.items():
            calls[f"{name}, prompt"] = lambda write=write: write(1)
            calls[f"{name}, text"] = lambda write=write: write(1 + new)
        for call in calls.values():
            call()
        times, by = timed(calls, writers, new, rounds)
        prompts = {name: times[f"{name}, prompt"] for name in writers}
        found = summary(by, OURS)
        row = {
            "batch": batch,
            "prompt": PROMPT,
            "tokens": new,
            "seconds": found["seconds"],
            "ratios": found["ratios"],
            "rounds": found["rounds"],
            "tokens_per_second": {name: batch / found["seconds"][name] for name in writers},
            "prompt_tokens_per_second": {
                name: batch * PROMPT / s for name, s in summary(prompts, OURS)["seconds"].items()
            },
            "prompt_ratios": summary(prompts, OURS)["ratios"],
            "load_average": machine.load_average(),
        }
        rows.append(row)
        shown = ", ".join(f"{name} {1e3 * s:.4g} ms" for name, s in row["seconds"].items())
        print(f"B={batch}: {shown} a token", flush=True)
    return rows


def page(results: dict) -> list[str]:
    lines = ["# What writing a token costs", "", *origin([results])]
    if rows := results["law"]:
        laws = results["laws"]
        shown = {
            name: f"{law['a'] / 1e6:.3g} + {law['b'] / 1e6:.3g} T + {law['c'] / 1e6:.2g} T^2"
            for name, law in laws.items()
        }
        grows = {
            name: f"T^{digits(law['exponent of the time'])} from T = {law['from']} on"
            for name, law in laws.items()
        }
        lines += [
            "",
            "## With the cache and without",
            "",
            "A model of 4 layers of width 256; the token after T - 1 others. Counted, in millions of operations: a step of",
            f"the cache {shown['cached']}; the whole text read anew {shown['uncached']}. The time of the first grows as",
            f"{grows['cached']}, of the other as {grows['uncached']}.",
            "",
            *table(
                ["T", "cached, ms", "uncached, ms", "uncached ÷ cached", "cached, MFLOP", "uncached, MFLOP"],
                (
                    [
                        str(row["length"]),
                        digits(1e3 * row["seconds"]["cached"]),
                        digits(1e3 * row["seconds"]["uncached"]) if "uncached" in row["seconds"] else "-",
                        digits(row["seconds"]["uncached"] / row["seconds"]["cached"])
                        if "uncached" in row["seconds"]
                        else "-",
                        digits(row["cached_flops"] / 1e6),
                        digits(row["uncached_flops"] / 1e6),
                    ]
                    for row in rows
                ),
            ),
        ]  # fmt: skip
    if rows := results["decode"]:
        lines += [
            "",
            "## GPT-2's size, beside Hugging Face",
            "",
            f"12 layers of width 768, 50,257 tokens, float32, random weights; {rows[0]['tokens']} tokens behind a prompt of {rows[0]['prompt']}, greedy.",
            f"`{FLOOR}` is the time in which one pass reads them from memory. Ratios are of `{OURS}` over the other's time.",
            "",
            *table(
                ["B", *(f"{name}, ms a token" for name in rows[0]["seconds"]), "tokens a second",
                 *(f"÷ {name}" for name in rows[0]["ratios"]), "prompt, tokens a second",
                 *(f"prompt ÷ {name}" for name in rows[0]["prompt_ratios"])],
                (
                    [
                        str(row["batch"]),
                        *(digits(1e3 * s) for s in row["seconds"].values()),
                        digits(row["tokens_per_second"][OURS]),
                        *(quotient(r) for r in row["ratios"].values()),
                        digits(row["prompt_tokens_per_second"][OURS]),
                        *(quotient(r) for r in row["prompt_ratios"].values()),
                    ]
                    for row in rows
                ),
            ),
        ]  # fmt: skip
    return [*lines, "", "All numbers: `../results/generation.json`."]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: both")
    add("--lengths", type=int, nargs="+", default=LENGTHS, metavar="T", help="of the law")
    add("--batches", type=int, nargs="+", default=BATCHES, metavar="B", help="default: 1 8 32")
    add("--tokens", type=int, default=NEW, metavar="N", help=f"that are written (default: {NEW})")
    add("--rounds", type=int, default=5, help="of decode (default: 5)")
    add("--seconds", type=float, default=1.0, help="for a contestant of the law (default: 1)")
    add_output(parser)
    return parser


def main(
    arguments: Sequence[str] | None = None,
    small: LanguageModelConfig = SMALL,
    large: LanguageModelConfig = GPT2,
) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser()
    options = parser.parse_args(arguments)
    if min(options.batches) < 1 or options.tokens < 1 or options.rounds < 1:
        parser.error("--batches, --tokens and --rounds must be 1 or more")
    if len(options.lengths) < 3 or not 2 <= min(options.lengths) <= max(options.lengths) <= 4096:
        parser.error("--lengths must be three or more, 2 to 4096")
    path = options.docs / "results/generation.json"

    def write(results: dict) -> Path:
        return write_page(options.docs / "benchmarks/generation.md", page(results))

    if options.page:
        return rewrite(path, PROGRAM, ("law", "laws", "decode"), write)
    start = time.perf_counter()
    try:
        rows = (
            law(small, sorted(options.lengths), options.seconds) if "law" in options.parts else []
        )
        results = {
            "command": shlex.join([*PROGRAM.split(), *arguments]),
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "seed": 0,
            "law": rounded(rows),
            "laws": rounded(laws_of(rows)) if rows else {},
            "decode": rounded(decode(large, options.batches, options.tokens, options.rounds))
            if "decode" in options.parts
            else [],
        }
    except InputError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    results |= {"seconds": round(time.perf_counter() - start), "machine": machine.describe()}
    write_results(path, results)
    print(write(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
