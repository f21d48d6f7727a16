"""Measure the cost of generating a token, with and without the cache, beside Hugging Face.

    python -m bench.generation                  everything, about ten minutes
    python -m bench.generation --parts law      a small model: the cost of a token by its position
    python -m bench.generation --parts decode   GPT-2's size, after a prompt of 64 tokens
    python -m bench.generation --page           measure nothing, write the page

A cached step reads every weight once, whatever it computes. One text at a time can therefore go no
faster than memory delivers the weights, and that floor is measured in the same rounds. Hugging Face
(`transformers` on PyTorch, with its own choice of attention) is included if both are installed. The
numbers are written to docs/results/generation.json, the tables to docs/benchmarks/generation.md.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench.measure import machine
from bench.measure.turns import summary, take_turns
from bench.pages.generation import FLOOR, OURS, SHORT, THEIRS, page
from bench.pages.program import Program
from transformer_jax.costs.jaxpr import count
from transformer_jax.costs.power_laws import fit_power_law, fit_quadratic
from transformer_jax.generation.generate import generate
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained.loading import cast
from transformer_jax.runtime.errors import InputError

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

PARTS = ("law", "decode")
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
UNCACHED = 1024  # the longest text that is processed anew for every token
BATCHES, PROMPT, NEW = (1, 8, 32), 64, 32
ATTEMPTS = 10  # at timing a token that takes less time than the noise of a call


def split(config: LanguageModelConfig):
    return nnx.split(LanguageModel(config, rngs=nnx.Rngs(0)), nnx.Param)


def law(config: LanguageModelConfig, lengths: Sequence[int], seconds: float) -> list[dict]:
    """Measure the cost of token T after T - 1 others, for each T of `lengths`.

    It is computed by one step of a cache of T slots, and by processing the whole text anew.
    """
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
            # Of the reference, which computes every pair; how many blocks are visited is only known
            # at run time.
            "uncached_flops": count(partial(whole, implementation="reference"), params).flops,
        }
        step = jax.jit(cached, donate_argnums=1)
        state = [cache]

        def call(step=step, state=state):
            # Write to the same slot again, so that the length stays the same.
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
        # One after the other: a pass over the whole text would take the weights of the cached step
        # out of the processor's cache.
        row["seconds"] = {
            name: median(take_turns({name: one}, seconds, least=7)[name])
            for name, one in calls.items()
        }
        rows.append(row)
        shown = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in row["seconds"].items())
        print(f"T={T}: {shown}", flush=True)
    return rows


def laws_of(rows: list[dict]) -> dict[str, dict]:
    """Fit the counted operations of a token as a + b T + c T^2, and the exponent of its time.

    The exponent is fitted to the longer half of the lengths.
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
    """Return a call that reads every weight once: the compiled sum of all of them."""
    leaves = jax.tree.leaves(params)
    # Equal parts for the cores, each summed in one pass.
    total = jax.jit(lambda leaves: sum(leaf.sum() for leaf in leaves))
    return lambda: total(leaves).block_until_ready()


def hugging_face(batch: int, new: int) -> Callable[[int], object]:
    """Return a call that generates greedy tokens with a random GPT-2 of the same size."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    model = GPT2LMHeadModel(GPT2Config(pad_token_id=0, eos_token_id=None)).eval().to(device)
    prompt = torch.zeros((batch, PROMPT), dtype=torch.long, device=device)
    options = {"do_sample": False, "attention_mask": torch.ones_like(prompt)}

    def call(number: int):
        with torch.inference_mode():
            tokens = model.generate(prompt, max_new_tokens=number, min_new_tokens=number, **options)
            return tokens.cpu()  # waits for a GPU

    return call


def timed(
    calls: dict[str, Callable], writers: Iterable[str], new: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds of every call, and of each writer's token and the floor, by round.

    More rounds follow until the median of every token is positive: the difference of two short
    calls may be below their noise. Raises InputError if it still is after ATTEMPTS.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ATTEMPTS):
        for name, found in take_turns(calls, 0.0, least=rounds).items():
            times[name] += found
        by = {FLOOR: times[FLOOR]} if FLOOR in times else {}
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
    config: LanguageModelConfig,
    batches: Sequence[int],
    new: int,
    rounds: int,
    *,
    with_floor: bool = True,
) -> list[dict]:
    """Measure the seconds of a token after the prompt, by batch size.

    It is the time of 1 + `new` tokens minus that of 1 token, divided by `new`. With `with_floor`
    the time of reading the weights, and our time with bfloat16 weights, are measured too.
    """
    graph, params = split(config)
    models, rows = {OURS: nnx.merge(graph, params)}, []
    if with_floor:
        models[SHORT] = cast(models[OURS], jnp.bfloat16)
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401

        with_theirs = True
    except ModuleNotFoundError:
        with_theirs = False
    for batch in batches:
        prompt = np.zeros((batch, PROMPT), np.int32)

        def write(model: LanguageModel, number: int, prompt=prompt):
            return generate(model, prompt, max_tokens=number).tokens.block_until_ready()

        writers: dict[str, Callable] = {n: partial(write, model) for n, model in models.items()}
        writers |= {THEIRS: hugging_face(batch, new)} if with_theirs else {}
        calls: dict[str, Callable] = {FLOOR: floor(params)} if with_floor else {}
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


PROGRAM = Program(
    "generation", __doc__, "results/generation.json", "benchmarks/generation.md",
    ("law", "laws", "decode"), page,
)  # fmt: skip


def main(
    arguments: Sequence[str] | None = None,
    small: LanguageModelConfig = SMALL,
    large: LanguageModelConfig = GPT2,
) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to measure (default: both)")
    add("--lengths", type=int, nargs="+", default=LENGTHS, metavar="T", help="lengths of the law")
    add("--batches", type=int, nargs="+", default=BATCHES, metavar="B", help="default: 1 8 32")
    add("--tokens", type=int, default=NEW, metavar="N", help=f"generated tokens (default: {NEW})")
    add("--rounds", type=int, default=5, help="rounds of decode (default: 5)")
    add("--seconds", type=float, default=1.0, help="per contestant of the law (default: 1)")
    options = PROGRAM.parse(parser, arguments)
    if min(options.batches) < 1 or options.tokens < 1 or options.rounds < 1:
        parser.error("--batches, --tokens and --rounds must be 1 or more")
    both = {length for length in options.lengths if length <= UNCACHED}  # as the fits need
    if len(both) < 3 or not 2 <= min(options.lengths) <= max(options.lengths) <= 4096:
        parser.error(f"--lengths must be 2 to 4096, and three or more of them up to {UNCACHED}")
    return PROGRAM.run(options, partial(measured, options, small, large))


def measured(
    options: argparse.Namespace, small: LanguageModelConfig, large: LanguageModelConfig
) -> dict:
    rows, written = [], []
    if "law" in options.parts:
        rows = law(small, sorted(options.lengths), options.seconds)
    if "decode" in options.parts:
        written = decode(large, options.batches, options.tokens, options.rounds)
    laws = laws_of(rows) if rows else {}
    return PROGRAM.stamp(options) | {"seed": 0, "law": rows, "laws": laws, "decode": written}


if __name__ == "__main__":
    sys.exit(main())
