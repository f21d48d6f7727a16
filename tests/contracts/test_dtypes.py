"""The dtypes of every public function: any floating dtype in any argument, in every mode of JAX.

The result has the dtype of the first array, or float32 where there is none, and the values of
float64 up to rounding.
"""

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.helpers.arrays import normal
from tests.helpers.implementations import attend

B, T, S, N, K, H, O, D, F = 2, 5, 7, 6, 2, 4, 3, 11, 13  # noqa: E741
SHORT = ("float16", "bfloat16")
DTYPES = (*SHORT, "float32", "float64")
TOLERANCE = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-5, "float64": 2e-5}
IS_TOKEN = jax.device_put(np.arange(T) < np.array([[T], [3]]))
TOKENS = jax.device_put(np.arange(B * T, dtype=np.int32).reshape(B, T) % 5)
QKV = {"query": (B, T, N, H), "key": (B, S, K, H), "value": (B, S, K, O)}
HEADS = {
    "inputs_q": (B, T, D),
    "inputs_kv": (B, S, F),
    "query_kernel": (D, N, H),
    "key_kernel": (F, K, H),
    "value_kernel": (F, K, O),
    "out_kernel": (N, O, D),
}


# Sums run over blocks of keys; what else meets in a block meets in one block too, and a loop of one
# step is compiled in a third of the time.
BLOCKS_OF_KEYS = {"implementation": "blockwise", "blocks": (T, 3), "at_once": True}
ONE_BLOCK = {"implementation": "blockwise", "blocks": (T, S), "at_once": True}


def attention(**options):
    def run(query, key, value, bias):
        return attend(query, key, value, bias=bias, mask=tj.causal(), **options)

    return run


def with_all_options(query, key, value, bias):
    output, *_ = attend(
        query, key, value, bias=tj.alibi(tj.alibi_slopes(N)) + bias, soft_cap=3.0,
        dropout_rate=0.3, dropout_rng=jax.random.key(0), return_logsumexp=True, **ONE_BLOCK,
    )  # fmt: skip
    return output


# The function of its arrays, and their shapes.
FUNCTIONS = {
    "reference": (attention(implementation="reference"), {**QKV, "bias": (N, T, S)}),
    "blockwise": (attention(**BLOCKS_OF_KEYS), {**QKV, "bias": (N, T, S)}),
    "all options": (with_all_options, {**QKV, "bias": (T, S)}),
    "dot_product_attention of one example": (
        lambda *arrays: tj.dot_product_attention(*arrays, mask=tj.causal()),
        {name: shape[1:] for name, shape in QKV.items()},
    ),
    "attention_weights": (
        lambda query, key, bias: tj.attention_weights(query, key, bias=bias),
        {"query": QKV["query"], "key": QKV["key"], "bias": (T, S)},
    ),
    "alibi": (
        lambda query, key, value, slopes: tj.dot_product_attention(
            query, key, value, bias=tj.alibi(slopes)
        ),
        {**QKV, "slopes": (N,)},
    ),
    "relative_bias": (
        lambda query, key, value, table: attend(
            query, key, value, bias=tj.relative_bias(table), **ONE_BLOCK
        ),
        {**QKV, "table": (32, N)},
    ),
    "multi_head_attention": (tj.multi_head_attention, HEADS),
    "multi_head_attention with all": (
        lambda *arrays: tj.multi_head_attention(
            *arrays[:6],
            query_bias=arrays[6], out_bias=arrays[7], query_scale=arrays[8], key_scale=arrays[8],
            bias=arrays[9], mask=IS_TOKEN[:, None, None, :1],
            dropout_rate=0.3, dropout_rng=jax.random.key(0),
        ),
        {**HEADS, "query_bias": (N, H), "out_bias": (D,), "scales": (H,), "bias": (T, S)},
    ),
    "multi_head_attention with rope": (
        lambda x, q, k, v, out, frequencies: tj.multi_head_attention(
            x, x, q, k, v, out, rotary=tj.Rotary(jnp.arange(T)[None], frequencies)
        ),
        {"x": (B, T, D), "q": (D, N, H), "k": (D, K, H), "v": (D, K, O), "out": (N, O, D),
         "frequencies": (H // 2,)},
    ),
    "additive_attention": (
        lambda *arrays: tj.additive_attention(*arrays[:6], score_bias=arrays[6]),
        {"query": (B, T, D), "key": (B, S, F), "value": (B, S, O), "query_kernel": (D, H),
         "key_kernel": (F, H), "score_kernel": (H,), "score_bias": (H,)},
    ),
    "rope": (
        lambda x, frequencies: tj.rope(x, jnp.arange(T), frequencies=frequencies),
        {"x": (B, T, N, H), "frequencies": (2,)},
    ),
    "linear": (tj.linear, {"x": (B, D), "kernel": (D, F), "bias": (F,)}),
    "layer_norm": (tj.layer_norm, {"x": (B, D), "scale": (D,), "bias": (D,)}),
    "rms_norm": (tj.rms_norm, {"x": (B, D), "scale": (D,)}),
    "batch_norm": (tj.batch_norm, {"x": (B, T, D), "scale": (D,), "bias": (D,)}),
    "batch_norm in evaluation": (
        lambda x, scale, mean, variance: tj.batch_norm(
            x, scale, statistics=tj.BatchStatistics(mean, variance**2 + 1)
        ),
        {"x": (B, T, D), "scale": (D,), "mean": (D,), "variance": (D,)},
    ),
    "running_statistics": (
        lambda mean, variance, x: tj.running_statistics(tj.BatchStatistics(mean, variance), x)[0],
        {"mean": (D,), "variance": (D,), "x": (B, T, D)},
    ),
    "feed_forward": (
        tj.feed_forward,
        {"x": (B, D), "in_kernel": (D, F), "in_bias": (F,), "out_kernel": (F, O), "out_bias": (O,)},
    ),
    "gated_feed_forward": (
        lambda x, gate, kernel, out, bias: tj.gated_feed_forward(
            x, gate, kernel, out, gate_bias=bias, dropout_rate=0.3, dropout_rng=jax.random.key(0)
        ),
        {"x": (B, D), "gate": (D, F), "kernel": (D, F), "out": (F, O), "bias": (F,)},
    ),
    "gelu": (tj.gelu, {"x": (B, D)}),
    "dropout": (lambda x: tj.dropout(x, 0.3, jax.random.key(0)), {"x": (B, D)}),
    "cls_pool": (lambda x: tj.cls_pool(x, IS_TOKEN), {"x": (B, T, D)}),
    "last_pool": (lambda x: tj.last_pool(x, IS_TOKEN), {"x": (B, T, D)}),
    "mean_pool": (lambda x: tj.mean_pool(x, IS_TOKEN), {"x": (B, T, D)}),
    "max_pool": (lambda x: tj.max_pool(x, IS_TOKEN), {"x": (B, T, D)}),
    "layer_weighted_pool": (
        lambda layers, logits: tj.layer_weighted_pool(layers, IS_TOKEN, logits),
        {"layers": (3, B, T, D), "logits": (3,)},
    ),
    "lookup": (lambda table: tj.lookup(table, TOKENS), {"table": (5, D)}),
    "region_embedding": (
        lambda table, presence: tj.region_embedding(table, TOKENS, IS_TOKEN, presence),
        {"table": (3, 5, D), "presence": (B, T)},
    ),
    "to_front": (lambda x: tj.to_front(TOKENS, IS_TOKEN, x)[2], {"presence": (B, T)}),
    "max_patches": (lambda x: tj.max_patches(x, IS_TOKEN, 2)[0], {"x": (B, T, D)}),
    "ngram_shares": (lambda: tj.ngram_shares(*tj.ngram_rows(TOKENS, IS_TOKEN, 2, 5)), {}),
    "ngram_evidence": (
        lambda weight, square, share, presence: tj.ngram_evidence(
            weight, square**2, tj.ngram_rows(TOKENS, IS_TOKEN, 2, 5)[0], share**2, presence
        ),
        {"weight": (32, 2), "square": (32, 2), "share": (B, T, 2), "presence": (B, T)},
    ),
    "sinusoidal_positions": (lambda: tj.sinusoidal_positions(TOKENS, D), {}),
    "integer_positions": (lambda: tj.integer_positions(TOKENS), {}),
    "normalised_positions": (lambda: tj.normalised_positions(TOKENS, 5), {}),
    "one_hot_positions": (lambda: tj.one_hot_positions(TOKENS, 5), {}),
    "binary_positions": (lambda: tj.binary_positions(TOKENS, 3), {}),
    "rope_frequencies": (
        lambda: tj.rope_frequencies(8, scaling="yarn", factor=2.0, original_length=64), {}
    ),
    "alibi_slopes": (lambda: tj.alibi_slopes(N), {}),
}  # fmt: skip
WIDE = {"attention_weights", "ngram_evidence"}  # in float32 or wider
# These return no floating-point numbers, or none that depend on an array's dtype.
OTHERS = {
    "BatchStatistics", "Rotary", "attention_plan", "batch_statistics", "causal",
    "count_in_segments", "count_positions", "dense", "dot_product_attention", "load", "ngram_rows",
    "padding", "prefix", "relative_buckets", "segments", "sliding_window", "visited_blocks",
    "yarn_temperature",
}  # fmt: skip


def drawn(shapes, dtypes):
    """The same numbers in any dtypes."""
    arrays = (normal(i, *shape) for i, shape in enumerate(shapes.values()))
    return [x.astype("bfloat16").astype(d) for x, d in zip(arrays, dtypes, strict=True)]


@contextmanager
def modes(promotion="standard", x64=False):
    with jax.numpy_dtype_promotion(promotion), jax.enable_x64(x64):
        yield


@contextmanager
def checks():
    """All checks of JAX: for NaN, leaked tracers, reused keys and implicit transfers."""
    with (
        jax.debug_nans(True),
        jax.checking_leaks(),
        jax.debug_key_reuse(True),
        jax.transfer_guard("disallow"),
    ):
        yield


def mixtures(number, x64):
    """The dtypes of some arguments: all alike, all mixed, and one unlike the others."""
    # Short arrays alone meet no float64 in either mode.
    found = {(dtype,) * number for dtype in (DTYPES[2:] if x64 else DTYPES)}
    found |= {tuple(DTYPES[(i + start) % 4] for i in range(number)) for start in range(4)}
    for i in range(number):
        found.add(tuple("float64" if j == i else "float32" for j in range(number)))
    if not x64:  # JAX reads float64 as float32, and what is left is traced once
        found = {tuple("float32" if d == "float64" else d for d in dtypes) for dtypes in found}
    return sorted(found)


def test_every_public_function_is_here():
    tried = {name.partition(" ")[0] for name in FUNCTIONS}
    assert set(tj.__all__) - OTHERS <= tried


@pytest.mark.parametrize("x64", [False, True], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_mixture_of_dtypes_is_traced_and_keeps_the_first(name, x64):
    """Under strict promotion, where a conversion that is not written raises an error."""
    function, shapes = FUNCTIONS[name]

    def value_and_gradients(*arrays):
        output, pullback = jax.vjp(function, *arrays)
        return output, pullback(output)

    for dtypes in mixtures(len(shapes), x64):
        with modes("strict", x64):
            arrays = list(map(jax.ShapeDtypeStruct, shapes.values(), map(jnp.dtype, dtypes)))
            output, gradients = jax.eval_shape(value_and_gradients, *arrays)
            first = arrays[0].dtype if arrays else np.dtype(np.float32)
            assert output.dtype == (np.promote_types(first, np.float32) if name in WIDE else first)
            assert [g.dtype for g in gradients] == [x.dtype for x in arrays], dtypes


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("name", [name for name, (_, shapes) in FUNCTIONS.items() if shapes])
def test_float64_of_numpy_is_float32_without_a_warning(name):
    function, shapes = FUNCTIONS[name]
    found = jax.eval_shape(lambda: function(*drawn(shapes, ["float64"] * len(shapes))))
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    "name", [n for n in FUNCTIONS if n in ("dropout", "all options") or n.endswith("with all")]
)
def test_gradient_with_dropout_passes_all_checks_of_jax(name):
    function, shapes = FUNCTIONS[name]
    arrays = jax.device_put(drawn(shapes, ["float32"] * len(shapes)))
    gradient = jax.jit(jax.grad(lambda *x: function(*x).sum(), range(len(arrays))))
    with checks():
        jax.block_until_ready(gradient(*arrays))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_mixed_dtypes_give_the_values_of_float64(name):
    function, shapes = FUNCTIONS[name]
    rotations = [
        [DTYPES[(i + start) % 4] for i in range(len(shapes))] for start in range(4 if shapes else 1)
    ]

    @jax.jit
    def run(cases):
        return [function(*arrays) for arrays in cases]

    with modes("strict", x64=True):
        exact, first, *others = (
            jax.device_put(drawn(shapes, dtypes))
            for dtypes in (["float64"] * len(shapes), *rotations)
        )
        with checks():
            found = jax.block_until_ready(run([first]))
        exact, *more = run([exact, *others])
    for dtypes, output in zip(rotations, [*found, *more], strict=True):
        tolerance = max([TOLERANCE[d] for d in dtypes], default=2e-5)
        size = np.abs(exact).max()
        np.testing.assert_allclose(
            np.asarray(output, np.float64) / size, np.asarray(exact) / size, atol=tolerance
        )
