"""Every function of arrays equals its loops (bench/naive.py), value and gradient, on whatever
hypothesis draws.

A row of a table is a shape with its options, compiled once for each dtype; drawn are the row, the
numbers, the mask and what is planted where nobody looks. The gradient of the loops is a central
difference in float64, along one random direction through all inputs at once: the library's gradient
times that direction must be the same number.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench import naive
from tests.helpers.implementations import forced
from transformer_jax.attention.additive import additive_attention
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.attention.softmax import masked_logsumexp, masked_softmax
from transformer_jax.functional.dropout import keep_weights
from transformer_jax.functional.feed_forward import (
    ACTIVATIONS,
    GATES,
    feed_forward,
    gated_feed_forward,
)
from transformer_jax.functional.normalization import (
    BatchStatistics,
    batch_norm,
    layer_norm,
    rms_norm,
    running_statistics,
)

STEP = 1e-6  # of the central difference
RATE = 0.3
# What a value may be off by, relative to the largest of its kind, and a slope to the sum of its
# terms' sizes.
TOLERANCE = {"float32": (1e-5, 1e-5), "bfloat16": (2e-2, 4e-2), "float64": (1e-12, 1e-7)}
CASES = {"float32": 200, "bfloat16": 40, "float64": 20}
# How many rows of a table, from the top, are compiled with a mask, and how many without.
ROWS = {"float32": (8, 1), "bfloat16": (1, 0), "float64": (1, 1)}


@dataclass(frozen=True)
class Row:
    """Sizes by their letters, and what is passed besides arrays."""

    sizes: dict[str, int]
    options: dict[str, Any] = field(default_factory=dict)

    def shape(self, letters: str) -> tuple[int, ...]:
        return tuple(1 if letter == "1" else self.sizes[letter] for letter in letters)


@dataclass(frozen=True)
class Twins:
    """A function of the library and its loops: (row, inputs, mask, key or kept weights) -> a tuple
    of outputs.
    """

    function: Callable
    loops: Callable
    rows: list[Row]
    axes: dict[str, str]  # of the inputs; those that a row names in `axes` besides
    masked: str | None = None  # the axes of the mask
    hidden: Callable = lambda row, mask: {}  # where in which input nobody looks


def rows(letters: str, *table) -> list[Row]:
    """From lines of sizes, each perhaps with options at its end."""
    read = []
    for line in table:
        options = line[-1] if isinstance(line[-1], dict) else {}
        read.append(Row(dict(zip(letters, line[: len(letters)], strict=True)), options))
    return read


# Attention
# -----------------------------------------------------------------------------------------------

# Fewer queries than keys and more, one of either, 1 < K < N, nothing that is a multiple of a block.
ATTENTION = rows(
    "BTSNKHO",
    (2, 3, 5, 6, 2, 3, 2, {"axes": {"bias": "BNTS"}}),
    (2, 5, 5, 2, 1, 5, 1, {"axes": {"bias": "1N1S"}, "soft_cap": 1.5, "scale": 0.9}),
    (2, 1, 7, 6, 2, 1, 5, {}),
    (1, 5, 1, 3, 1, 3, 3, {"soft_cap": 0.5}),
    (1, 1, 1, 1, 1, 1, 1, {"axes": {"bias": "B1T1"}}),
    (1, 11, 13, 2, 2, 3, 2, {}),
    (3, 5, 3, 6, 3, 7, 2, {"axes": {"bias": "NTS"}, "dropout_rate": RATE, "soft_cap": 2.0}),
)


# The same, with blocks of queries and keys that leave a rest.
BLOCKWISE = [
    Row(row.sizes, row.options | {"blocks": blocks})
    for row, blocks in zip(
        ATTENTION,
        (
            *((2, 3, True), (2, 3, False), (1, 3, True), (2, 1, False)),
            *((1, 1, True), (4, 5, True), (3, 2, False)),
        ),
        strict=True,
    )
]
# What NVIDIA's kernel takes: values as wide as keys, no soft cap, no dropout.
CUDNN = rows(
    "BTSNKHO",
    (2, 3, 5, 6, 2, 3, 3, {"axes": {"bias": "BNTS"}}),
    (1, 7, 3, 6, 3, 2, 2, {"scale": 0.9}),
    (2, 5, 5, 2, 1, 5, 5, {"axes": {"bias": "1N1S"}}),
    (3, 1, 7, 6, 2, 1, 1, {}),
    (1, 1, 1, 1, 1, 1, 1, {"axes": {"bias": "B1T1"}}),
)


def options(row, *left_out):
    return {name: x for name, x in row.options.items() if name not in ("axes", "blocks", *left_out)}


def call(function, names, given):
    """A function of (row, inputs, mask, `given`): the first inputs go by place, the others by name.

    `given` is what dropout needs: the key for the library, which weights are kept for the loops.
    """

    def run(row, inputs, mask, dropout, **more):
        named = {name: x for name, x in inputs.items() if name not in names}
        if "dropout_rate" in row.options:
            named[given] = dropout
        return function(*(inputs[n] for n in names), **named, **options(row), mask=mask, **more)

    return run


QKV = ("query", "key", "value")


def forced_to(implementation, **given):
    """`dot_product_attention` by this implementation, in the blocks of the row."""

    def run(row, *arguments):
        queries, keys, at_once = row.options.get("blocks", (2, 3, False))
        options = given | {"implementation": implementation}
        with forced(queries, keys, at_once=at_once):
            outputs = call(dot_product_attention, QKV, "dropout_rng")(row, *arguments, **options)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return run


def loops_of_attention(**given):
    def run(*arguments):
        outputs = call(naive.attention, QKV, "kept")(*arguments, **given)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return run


EVERYTHING = {"return_weights": True, "return_logsumexp": True}


def hidden_from_groups(row, mask):
    """A query that sees nothing; a key that no query of any head of its group sees."""
    B, S, K = row.shape("BSK")
    seen = mask.any(2).reshape(B, K, -1, S).any(2).swapaxes(1, 2)
    return {"query": ~mask.any(3).swapaxes(1, 2), "key": ~seen, "value": ~seen}


def hidden_from_heads(row, mask):
    """The same of whole rows, which all heads share."""
    return {"inputs_q": ~mask.any((1, 3)), "inputs_kv": ~mask.any((1, 2))}


def hidden_from_one_head(row, mask):
    unseen = ~mask[:, 0].any(1)
    return {"query": ~mask[:, 0].any(2), "key": unseen, "value": unseen}


MULTI_HEAD = rows(
    "BTSDENKHOM",
    (2, 3, 5, 3, 2, 6, 2, 3, 2, 5, {"axes": {"bias": "BNTS"}}),
    (1, 5, 3, 5, 3, 6, 3, 1, 2, 3, {"dropout_rate": RATE, "soft_cap": 1.5}),
    (1, 3, 3, 2, 5, 2, 1, 2, 3, 2, {"scale": 0.9, "axes": {"query_bias": "NH", "out_bias": "M"}}),
    (2, 1, 5, 3, 3, 3, 1, 2, 2, 2, {"axes": {"key_bias": "KH", "value_bias": "KO"}}),
    (1, 5, 1, 1, 2, 2, 2, 3, 1, 1, {}),
    (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, {}),
)
KERNELS = ("query_kernel", "key_kernel", "value_kernel", "out_kernel")
MULTI_HEAD_NAMES = ("inputs_q", "inputs_kv", *KERNELS)

ADDITIVE = rows(
    "BTSDEAO",
    (2, 3, 5, 3, 2, 5, 2, {"axes": {"score_bias": "A"}}),
    (1, 7, 3, 2, 5, 3, 3, {}),
    (3, 1, 7, 5, 3, 2, 1, {"axes": {"score_bias": "A"}}),
    (1, 5, 1, 1, 2, 3, 2, {}),
    (1, 1, 1, 1, 1, 1, 1, {}),
)
ADDITIVE_NAMES = (*QKV, "query_kernel", "key_kernel", "score_kernel")


def softmax_loops(row, inputs, mask, kept):
    logits = inputs["logits"]
    mask = np.ones(logits.shape, bool) if mask is None else mask
    weights, logsumexp = np.zeros(logits.shape), np.zeros(logits.shape[:1])
    for b, line in enumerate(logits.tolist()):
        weights[b] = naive.mask_before_softmax(line, mask[b].tolist())
        logsumexp[b] = naive.log_sum_exp([x for x, seen in zip(line, mask[b], strict=True) if seen])
    return weights, logsumexp


# Rows of numbers
# -------------------------------------------------------------------------------------------

NORM = rows(
    "BTD",
    (2, 3, 5, {"axes": {"bias": "D"}, "epsilon": 1e-3}),
    (3, 5, 7),
    (1, 1, 3, {"axes": {"bias": "D"}}),
    (5, 1, 1, {"axes": {"bias": "D"}}),
    (1, 7, 11, {"epsilon": 0.1}),
)
RMS = [Row(row.sizes, {k: v for k, v in row.options.items() if k != "axes"}) for row in NORM]

FEED_FORWARD = rows(
    "BTDFM",
    *(
        (2, 3, 5, 7, 3, {"activation": activation, "axes": {"in_bias": "F", "out_bias": "M"}})
        for activation in ACTIVATIONS
    ),
    (1, 1, 3, 1, 2, {"activation": "relu", "axes": {"out_bias": "M"}}),
    (3, 1, 1, 11, 1, {"activation": "gelu", "axes": {"in_bias": "F"}}),
)
GATED = rows(
    "BTDFM",
    *(
        (2, 3, 5, 7, 3, {"gate": gate, "axes": {"gate_bias": "F", "in_bias": "F", "out_bias": "M"}})
        for gate in GATES
    ),
    (1, 1, 3, 1, 2, {"gate": "swiglu", "axes": {"gate_bias": "F"}}),
)


def plain(function):
    """The loops of a function whose arguments are all named as in its signature."""
    return lambda row, inputs, mask, key: (function(**inputs, **options(row)),)


def both_norms(norm, running, statistics):
    """Training, evaluation with the running statistics, and the updated statistics."""

    def run(row, inputs, mask, key):
        x, scale, bias = inputs["x"], inputs["scale"], inputs.get("bias")
        kept = statistics(inputs["mean"], inputs["log_variance"])
        outputs = (
            norm(x, scale, bias, **options(row)),
            norm(x, scale, bias, statistics=kept, **options(row)),
        )
        return (*outputs, *running(kept, x, momentum=0.7))

    return run


def with_biases(function):
    """`feed_forward` takes its biases by place."""

    def run(row, inputs, mask, key):
        given = {"in_bias": None, "out_bias": None} | inputs
        return (function(**given, **options(row)),)

    return run


TWINS = {
    "dot_product_attention": Twins(
        partial(call(dot_product_attention, QKV, "dropout_rng"), **EVERYTHING),
        partial(call(naive.attention, QKV, "kept"), **EVERYTHING),
        ATTENTION,
        {"query": "BTNH", "key": "BSKH", "value": "BSKO"},
        "BNTS",
        hidden_from_groups,
    ),
    "blockwise": Twins(
        forced_to("blockwise", return_logsumexp=True),
        loops_of_attention(return_logsumexp=True),
        BLOCKWISE,
        {"query": "BTNH", "key": "BSKH", "value": "BSKO"},
        "BNTS",
        hidden_from_groups,
    ),
    "cudnn": Twins(
        forced_to("cudnn"),
        loops_of_attention(),
        CUDNN,
        {"query": "BTNH", "key": "BSKH", "value": "BSKO"},
        "BNTS",
        hidden_from_groups,
    ),
    "attention_weights": Twins(
        lambda row, inputs, mask, key: (
            attention_weights(**inputs, **options(row, "dropout_rate"), mask=mask),
        ),
        lambda row, inputs, mask, kept: naive.attention(
            **inputs,
            **options(row, "dropout_rate"),
            value=inputs["key"],
            mask=mask,
            return_weights=True,
        )[1:],
        [ATTENTION[0], ATTENTION[-1]],
        {"query": "BTNH", "key": "BSKH"},
        "BNTS",
        lambda row, mask: {
            name: where for name, where in hidden_from_groups(row, mask).items() if name != "value"
        },
    ),
    "multi_head_attention": Twins(
        partial(call(multi_head_attention, MULTI_HEAD_NAMES, "dropout_rng"), return_weights=True),
        partial(call(naive.multi_head_attention, MULTI_HEAD_NAMES, "kept"), return_weights=True),
        MULTI_HEAD,
        {
            **{"inputs_q": "BTD", "inputs_kv": "BSE"},
            **dict(zip(KERNELS, ("DNH", "EKH", "EKO", "NOM"), strict=True)),
        },
        "BNTS",
        hidden_from_heads,
    ),
    "additive_attention": Twins(
        partial(call(additive_attention, ADDITIVE_NAMES, None), return_weights=True),
        call(naive.additive_attention, ADDITIVE_NAMES, None),
        ADDITIVE,
        {
            **{"query": "BTD", "key": "BSE", "value": "BSO"},
            **{"query_kernel": "DA", "key_kernel": "EA", "score_kernel": "A"},
        },
        "B1TS",
        hidden_from_one_head,
    ),
    "masked_softmax": Twins(
        lambda row, inputs, mask, key: tuple(
            function(inputs["logits"], True if mask is None else mask)
            for function in (masked_softmax, masked_logsumexp)
        ),
        softmax_loops,
        rows("BS", (3, 5), (1, 7), (2, 1), (1, 1), (5, 13)),
        {"logits": "BS"},
        "BS",
        lambda row, mask: {"logits": ~mask},
    ),
    "layer_norm": Twins(
        plain(layer_norm), plain(naive.layer_norm), NORM, {"x": "BTD", "scale": "D"}
    ),
    "rms_norm": Twins(plain(rms_norm), plain(naive.rms_norm), RMS, {"x": "BTD", "scale": "D"}),
    "batch_norm": Twins(
        both_norms(
            batch_norm, running_statistics, lambda mean, log: BatchStatistics(mean, jnp.exp(log))
        ),
        both_norms(
            naive.batch_norm, naive.running_statistics, lambda mean, log: (mean, np.exp(log))
        ),
        [row for row in NORM if row.sizes["B"] * row.sizes["T"] > 1],
        {"x": "BTD", "scale": "D", "mean": "D", "log_variance": "D"},
    ),
    "feed_forward": Twins(
        with_biases(feed_forward),
        with_biases(naive.feed_forward),
        FEED_FORWARD,
        {"x": "BTD", "in_kernel": "DF", "out_kernel": "FM"},
    ),
    "gated_feed_forward": Twins(
        plain(gated_feed_forward),
        plain(naive.gated_feed_forward),
        GATED,
        {"x": "BTD", "gate_kernel": "DF", "in_kernel": "DF", "out_kernel": "FM"},
    ),
}


# The comparison
# ------------------------------------------------------------------------------------------


def random_mask(kind, shape, rng):
    mask = rng.random(shape) < rng.choice([0.2, 0.5, 0.9])
    if kind == "rows":  # of which some see nothing
        mask &= rng.random((*shape[:-1], 1)) < 0.6
    elif kind == "columns":  # which nobody sees
        mask &= rng.random((*shape[:1], *[1] * (len(shape) - 2), shape[-1])) < 0.6
    elif kind == "block":
        mask[:] = False
        corners = [np.sort(rng.integers(0, size + 1, 2)) for size in shape[-2:]]
        mask[..., slice(*corners[0]), slice(*corners[1])] = True
    elif kind == "nothing":
        mask[:] = False
    return mask


MASKS = ("random", "rows", "columns", "block", "nothing")
POISONS = (None, np.nan, np.inf, -np.inf)


@cache
def compiled(name, index, dtype, masked):
    """A program for each dtype, with a mask and without."""
    return compile_row(TWINS[name], TWINS[name].rows[index])


def compile_row(twins, row):
    """(inputs, mask, seed, cotangents) -> (outputs, gradients, which weights dropout keeps), and
    the shapes of the loops' outputs.
    """

    @jax.jit
    def run(inputs, mask, seed, cotangents):
        key = jax.random.key(seed)

        def loss(inputs):
            outputs = twins.function(row, inputs, mask, key)
            terms = [
                jnp.sum(y.astype(c.dtype) * c) for y, c in zip(outputs, cotangents, strict=True)
            ]
            return sum(terms), outputs

        kept = None
        if "dropout_rate" in row.options:
            kept = keep_weights(key, RATE, *map(jnp.arange, row.shape("BNTS")))
        grads, outputs = jax.grad(loss, has_aux=True)(inputs)
        return outputs, grads, kept

    inputs = {name: np.zeros(row.shape(letters)) for name, letters in axes_of(twins, row).items()}
    kept = np.ones(row.shape("BNTS"), bool) if "dropout_rate" in row.options else None
    return run, [np.shape(y) for y in twins.loops(row, inputs, None, kept)]


def axes_of(twins, row):
    return twins.axes | row.options.get("axes", {})


def compare(twins, row, compiled, dtype, seed, kind, poison):
    """One case: draw it, run both, and hold them against one another."""
    (run, shapes), rng = compiled, np.random.default_rng(seed)
    axes = axes_of(twins, row)
    wide = {name: rng.standard_normal(row.shape(letters)) for name, letters in axes.items()}
    direction = {name: rng.standard_normal(x.shape) for name, x in wide.items()}
    mask, hidden = None, {}
    if kind is not None and twins.masked:
        mask = random_mask(kind, row.shape(twins.masked), rng)
        hidden = twins.hidden(row, mask)
    for name, where in hidden.items():
        where = where.reshape(*where.shape, *[1] * (wide[name].ndim - where.ndim))
        direction[name] = np.where(where, 0, direction[name])
        if poison is not None:
            wide[name] = np.where(where, poison, wide[name])

    # By NumPy: JAX would compile a conversion for every shape.
    narrow = {name: x.astype(jnp.dtype(dtype)) for name, x in wide.items()}
    wide = {name: x.astype(np.float64) for name, x in narrow.items()}
    cotangents = [rng.standard_normal(shape) for shape in shapes]
    sums = np.float64 if dtype == "float64" else np.float32
    outputs, grads, kept = jax.device_get(
        run(narrow, mask, np.uint32(seed), [c.astype(sums) for c in cotangents])
    )
    loops = twins.loops(row, wide, mask, kept)

    value, slope = TOLERANCE[dtype]
    for ours, theirs in zip(outputs, loops, strict=True):
        finite = np.isfinite(theirs)  # else -inf: the log of nothing
        size = max(1.0, np.abs(theirs[finite]).max(initial=0.0))
        np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=0, atol=value * size)

    ends = []
    for step in (STEP, -STEP):
        moved = {name: x + step * direction[name] for name, x in wide.items()}
        outputs = twins.loops(row, moved, mask, kept)
        # A logsumexp of nothing is -inf at both ends.
        finite = [np.where(np.isfinite(y), y, 0) for y in outputs]
        ends.append(sum(np.sum(y * c) for y, c in zip(finite, cotangents, strict=True)))
    slope_of_loops = (ends[0] - ends[1]) / (2 * STEP)
    terms = [np.asarray(grads[name], np.float64) * direction[name] for name in wide]
    size = max(1.0, sum(np.abs(term).sum() for term in terms))
    ours = sum(term.sum() for term in terms)
    np.testing.assert_allclose(ours, slope_of_loops, rtol=0, atol=slope * size)
    for name, where in hidden.items():
        assert not grads[name][where].any(), name


# The float32 cases too are compared with differences of the loops in float64.
@pytest.fixture(
    params=["float32", *(pytest.param(d, marks=pytest.mark.slow) for d in ("bfloat16", "float64"))]
)
def dtype(request):
    promotion = "strict" if request.param == "float32" else "standard"
    with (
        jax.numpy_dtype_promotion(promotion),
        jax.default_matmul_precision("highest"),
        jax.enable_x64(request.param == "float64"),
    ):
        yield request.param


@pytest.mark.parametrize("name", TWINS)
def test_value_and_gradient_equal_the_loops(name, dtype):
    if (name, dtype) == ("cudnn", "float64"):
        pytest.skip("NVIDIA's kernel takes no float64, and XLA's in its place sums in float32")
    twins, met = TWINS[name], set()
    masked, plain = (range(min(len(twins.rows), most)) for most in ROWS[dtype])
    if twins.masked:
        table = [(i, kind) for i in masked for kind in MASKS]
        table += [(i, None) for i in plain] * len(MASKS)
    else:
        table = [(i, None) for i in masked]

    @settings(max_examples=CASES[dtype], deadline=None, derandomize=True, database=None)
    @given(st.sampled_from(table), st.integers(0, 2**32 - 1), st.sampled_from(POISONS))
    def check(drawn, seed, poison):
        index, kind = drawn
        run = compiled(name, index, dtype, kind is not None)
        compare(twins, twins.rows[index], run, dtype, seed, kind, poison)
        met.add((index, kind is not None))

    check()
    assert met == {(index, kind is not None) for index, kind in table}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_value_and_gradient_equal_the_loops_in_any_shape(name):
    twins = TWINS[name]
    letters = twins.rows[0].sizes

    @settings(max_examples=50, deadline=None, derandomize=True, database=None)
    @given(
        st.fixed_dictionaries({letter: st.integers(1, 7) for letter in letters}),
        st.sampled_from([row.options for row in twins.rows]),
        st.integers(0, 2**32 - 1),
        st.sampled_from([None, *MASKS]),
        st.sampled_from(POISONS),
    )
    def check(sizes, options, seed, kind, poison):
        if "K" in sizes:  # as many groups of heads
            sizes["K"] = min(sizes["K"], 3)
            sizes["N"] = sizes["K"] * min(sizes["N"], 3)
        if name == "cudnn":
            sizes["O"] = sizes["H"]
        assume(name != "batch_norm" or sizes["B"] * sizes["T"] > 2)
        row = Row(sizes, options)
        run = compile_row(twins, row)
        compare(twins, row, run, "float32", seed, kind, poison)

    with jax.numpy_dtype_promotion("strict"), jax.default_matmul_precision("highest"):
        check()
