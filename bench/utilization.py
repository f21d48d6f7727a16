"""Measure the model-FLOPs utilisation of a training step.

    python -m bench.utilization                     bert-base, bfloat16: for a GPU
    python -m bench.utilization --model tutorial --dtype float32    for a CPU

Utilisation is the arithmetic of a step per second, divided by the rate that matrix products reach
on this device. The step is that of the training program. Its arithmetic is three times that of the
forward pass, counted on the jaxpr (Kaplan et al., 2020, https://arxiv.org/abs/2001.08361, section
2.1). The ceiling is the fastest of several square products in the same dtype, summed in float32.
The numbers are written to docs/results/utilization.json.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench.measure.harness import clock
from bench.pages.program import Program
from train.objectives.classification import make_loss
from train.optim.optimizers import make_optimizer
from train.recipes.imdb import TUTORIAL
from train.trainer.step import TrainState, make_train_step
from transformer_jax.costs.jaxpr import count
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.runtime.malloc import freed_memory_is_kept
from transformer_jax.text.batching import Batch

PROGRAM = Program("utilization", __doc__, "results/utilization.json")
BERT = ClassifierConfig(
    vocab_size=30_522,
    max_length=512,
    encoder=StackConfig(12, 768, 12, 3072, norm="post", activation="gelu", hidden_dropout_rate=0.0),
    pooling=("cls",),
)
# Configuration, texts in a batch, and tokens of a text.
MODELS = {"bert-base": (BERT, 64, 512), "tutorial": (TUTORIAL.model, 16, 256)}
EDGES = {"cpu": (1024, 2048)}  # edges of the square products
LARGE = (4096, 8192)
STEPS = 5  # per round


def ceiling(dtype: str, edges: Sequence[int], rounds: int) -> float:
    """Return the FLOP/s of the fastest square product."""
    found = []
    for n in edges:
        a, b = (jax.random.normal(jax.random.key(i), (n, n)).astype(dtype) for i in range(2))
        multiply = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
        call = lambda a=a, b=b, multiply=multiply: multiply(a, b).block_until_ready()  # noqa: E731
        call()
        found.append(2 * n**3 / min(clock(call)[0] for _ in range(rounds)))
    return max(found)


def measure(
    config: ClassifierConfig, rows: int, length: int, dtype: str, rounds: int
) -> dict[str, Any]:
    """Measure the time and the utilisation of a training step.

    The ceiling is measured before and after the steps; the higher one counts.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, config.vocab_size, (rows, length)).astype(np.int32)
    labels = rng.integers(0, 2, rows).astype(np.int32)
    index = np.arange(rows, dtype=np.int32)
    is_token, is_example = np.ones(tokens.shape, bool), np.ones(rows, bool)
    batch = jax.device_put(Batch(tokens, is_token, labels, is_example, index))
    graph, params = nnx.split(TextClassifier(config, rngs=nnx.Rngs(0)), nnx.Param)

    def forward(params):
        model = nnx.merge(graph, params)
        return model(batch.tokens, batch.is_token, implementation="reference")

    flops = 3 * count(forward, params).flops
    fit = replace(TUTORIAL.fit, dtype=dtype)
    optimizer = make_optimizer(fit.optimizer, 1000)
    tokenizer = SimpleNamespace(pad_id=0, mask_id=None, spec="random tokens")
    step = make_train_step(
        graph, make_loss(tokenizer, token_dropout=0.0, smoothing=0.0), optimizer, fit
    )
    state = TrainState.first(params, optimizer)
    edges = EDGES.get(jax.default_backend(), LARGE)
    before, seconds = ceiling(dtype, edges, rounds), []

    def several(state):
        for _ in range(STEPS):  # as in training, steps are dispatched ahead
            state, loss = step(state, batch)
        return jax.block_until_ready((state, loss))

    for i in range(rounds + 1):
        took, (state, loss) = clock(several, state)
        if not np.isfinite(float(loss)):
            raise FloatingPointError(f"the loss of round {i} is {loss}")
        if i:  # the first round compiles and allocates memory
            seconds.append(took / STEPS)
    most = max(before, ceiling(dtype, edges, rounds))
    return {
        "flops": flops,
        "seconds": median(seconds),
        "flops_per_second": flops / median(seconds),
        "ceiling": most,
        "utilization": flops / median(seconds) / most,
        "tokens_per_second": rows * length / median(seconds),
    }


def line(found: dict[str, Any]) -> str:
    return (
        f"{found['seconds']:.3g} s a step, {found['tokens_per_second']:,.0f} tokens/s: "
        f"{found['flops_per_second'] / 1e9:,.0f} of {found['ceiling'] / 1e9:,.0f} GFLOP/s, "
        f"{found['utilization']:.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("--model", choices=MODELS, default="bert-base", help="default: bert-base")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="default: bfloat16")
    add("--rows", type=int, help="texts in a batch")
    add("--length", type=int, help="tokens of a text")
    add("--layers", type=int, help="number of layers (default: the model's)")
    add("--rounds", type=int, default=9, help=f"timed rounds of {STEPS} steps (default: 9)")
    options = PROGRAM.parse(parser, arguments)
    config, rows, length = MODELS[options.model]
    if options.layers is not None:
        config = replace(config, encoder=replace(config.encoder, num_layers=options.layers))
    options.rows = rows if options.rows is None else options.rows
    options.length = length if options.length is None else options.length
    if min(options.rows, options.rounds) < 1 or not 1 <= options.length <= config.max_length:
        parser.error(f"--rows and --rounds must be 1 or more, --length 1 to {config.max_length}")
    return PROGRAM.run(options, partial(measured, options, config))


def measured(options: argparse.Namespace, config: ClassifierConfig) -> dict:
    found = measure(config, options.rows, options.length, options.dtype, options.rounds)
    print(line(found))
    sizes = {name: getattr(options, name) for name in ("model", "rows", "length", "dtype")}
    kept = {"freed_memory_kept": freed_memory_is_kept()}
    return PROGRAM.stamp(options) | kept | sizes | found


if __name__ == "__main__":
    sys.exit(main())
